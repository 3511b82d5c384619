-- Templates that workspaces make. A version of a template is a finished build, which has a snapshot.
CREATE TABLE templates (
    id            TEXT PRIMARY KEY,
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    name          TEXT NOT NULL,
    created_at_us BIGINT NOT NULL,
    spec          TEXT NOT NULL,                -- JSON
    UNIQUE (workspace_id, name)
);
CREATE TABLE template_builds (
    id            TEXT PRIMARY KEY,
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    template_id   TEXT NOT NULL,
    state         TEXT NOT NULL,                -- `waiting`, `queued`, `running`, `done`, `failed`
    created_at_us BIGINT NOT NULL,
    snapshot_id   TEXT,                         -- of one that is done
    spec          TEXT NOT NULL                 -- JSON
);
CREATE INDEX template_builds_by_workspace ON template_builds (workspace_id, created_at_us);
CREATE INDEX template_builds_by_snapshot ON template_builds (snapshot_id);
CREATE INDEX template_builds_by_state ON template_builds (state);
CREATE TABLE template_tags (
    template_id   TEXT NOT NULL,
    tag           TEXT NOT NULL,
    build_id      TEXT NOT NULL,
    created_at_us BIGINT NOT NULL,
    PRIMARY KEY (template_id, tag)
);
CREATE TABLE template_build_log (
    build_id      TEXT NOT NULL,
    line_number   BIGINT NOT NULL,
    line          TEXT NOT NULL,
    PRIMARY KEY (build_id, line_number)
);
-- Results of build steps: machines, found again by the hash of everything that the step depends on.
CREATE TABLE template_layers (
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    key           TEXT NOT NULL,
    snapshot_id   TEXT NOT NULL,
    used_at_us    BIGINT NOT NULL,
    config        TEXT NOT NULL,                -- JSON
    PRIMARY KEY (workspace_id, key)
);
