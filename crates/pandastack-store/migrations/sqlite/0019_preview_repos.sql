-- Repositories of GitHub whose pull requests get previews, and variables that those previews see.
CREATE TABLE preview_repos (
    workspace_id   TEXT NOT NULL REFERENCES workspaces (id),
    github_repo_id INTEGER NOT NULL,
    repo_full_name TEXT,                        -- `owner/name`; NULL: nobody said it
    enabled_at_us  INTEGER,                     -- NULL: it has variables, and nobody enabled its previews
    created_at_us  INTEGER NOT NULL,
    env            TEXT NOT NULL,               -- JSON
    PRIMARY KEY (workspace_id, github_repo_id)
) STRICT;
