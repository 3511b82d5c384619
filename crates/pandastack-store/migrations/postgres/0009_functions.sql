-- Functions, their immutable versions, the bundles these were made of, and calls.
CREATE TABLE functions (
    id            TEXT PRIMARY KEY,
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    name          TEXT NOT NULL,
    version       BIGINT NOT NULL,             -- the one that is called; 0 before the first
    versions      BIGINT NOT NULL,             -- numbers given so far; none is given twice
    created_at_us BIGINT NOT NULL,
    updated_at_us BIGINT NOT NULL,
    spec          TEXT NOT NULL,                -- JSON: settings, environment, aliases
    UNIQUE (workspace_id, name)
);

CREATE TABLE function_versions (
    function_id   TEXT NOT NULL REFERENCES functions (id) ON DELETE CASCADE,
    version       BIGINT NOT NULL,
    workspace_id  TEXT NOT NULL,
    state         TEXT NOT NULL,                -- building, ready, failed
    layer_key     TEXT,                         -- what its dependencies are made of
    created_at_us BIGINT NOT NULL,
    spec          TEXT NOT NULL,                -- JSON: snapshot, entrypoint, environment, log
    PRIMARY KEY (function_id, version)
);
CREATE INDEX function_versions_by_layer ON function_versions (workspace_id, layer_key) WHERE layer_key IS NOT NULL;
CREATE INDEX function_versions_by_state ON function_versions (state);

CREATE TABLE function_bundles (
    workspace_id  TEXT NOT NULL,
    sha256        TEXT NOT NULL,
    bytes         BYTEA NOT NULL,
    created_at_us BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, sha256)
);

-- One row per call. What is queued is found by its time, so a restart forgets none.
CREATE TABLE function_runs (
    id            TEXT PRIMARY KEY,
    function_id   TEXT NOT NULL REFERENCES functions (id) ON DELETE CASCADE,
    workspace_id  TEXT NOT NULL,
    state         TEXT NOT NULL,
    queued        BIGINT NOT NULL,             -- 1 while the queue must see to it
    due_at_us     BIGINT,                      -- when its next attempt begins; NULL while one runs
    created_at_us BIGINT NOT NULL,
    ended_at_us   BIGINT,
    duration_us   BIGINT NOT NULL,
    billed_ms     BIGINT NOT NULL,
    cold          BIGINT NOT NULL,
    event         BYTEA,                        -- while queued
    spec          TEXT NOT NULL                 -- JSON: the run as clients see it
);
CREATE INDEX function_runs_by_function ON function_runs (function_id, created_at_us);
CREATE INDEX function_runs_queued ON function_runs (due_at_us) WHERE queued = 1;
