-- Repositories of GitHub whose pull requests get previews, and variables that those previews see.
CREATE TABLE preview_repos (
    workspace_id   TEXT NOT NULL REFERENCES workspaces (id),
    github_repo_id BIGINT NOT NULL,
    repo_full_name TEXT,                        -- `owner/name`; NULL: nobody said it
    enabled_at_us  BIGINT,                      -- NULL: it has variables, and nobody enabled its previews
    created_at_us  BIGINT NOT NULL,
    env            TEXT NOT NULL,               -- JSON
    PRIMARY KEY (workspace_id, github_repo_id)
);
