-- Managed databases. Their machines are sandboxes whose owner is `database:<id>`.
CREATE TABLE databases (
    id            TEXT PRIMARY KEY,
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    state         TEXT NOT NULL,                -- `creating`, `ready`, `failed`, `deleting`
    sandbox_id    TEXT,                         -- its machine, once it is ready
    created_at_us BIGINT NOT NULL,
    spec          TEXT NOT NULL                 -- JSON
);
CREATE INDEX databases_by_workspace ON databases (workspace_id, created_at_us);
CREATE INDEX databases_by_state ON databases (state);
