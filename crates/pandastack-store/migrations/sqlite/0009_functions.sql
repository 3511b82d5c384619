-- Functions, their immutable versions, the bundles these were made of, and calls.
CREATE TABLE functions (
    id            TEXT PRIMARY KEY,
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    name          TEXT NOT NULL,
    version       INTEGER NOT NULL,             -- the one that is called; 0 before the first
    versions      INTEGER NOT NULL,             -- numbers given so far; none is given twice
    created_at_us INTEGER NOT NULL,
    updated_at_us INTEGER NOT NULL,
    spec          TEXT NOT NULL,                -- JSON: settings, environment, aliases
    UNIQUE (workspace_id, name)
) STRICT;

CREATE TABLE function_versions (
    function_id   TEXT NOT NULL REFERENCES functions (id) ON DELETE CASCADE,
    version       INTEGER NOT NULL,
    workspace_id  TEXT NOT NULL,
    state         TEXT NOT NULL,                -- building, ready, failed
    layer_key     TEXT,                         -- what its dependencies are made of
    created_at_us INTEGER NOT NULL,
    spec          TEXT NOT NULL,                -- JSON: snapshot, entrypoint, environment, log
    PRIMARY KEY (function_id, version)
) STRICT;
CREATE INDEX function_versions_by_layer ON function_versions (workspace_id, layer_key) WHERE layer_key IS NOT NULL;
CREATE INDEX function_versions_by_state ON function_versions (state);

CREATE TABLE function_bundles (
    workspace_id  TEXT NOT NULL,
    sha256        TEXT NOT NULL,
    bytes         BLOB NOT NULL,
    created_at_us INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, sha256)
) STRICT;

-- One row per call. What is queued is found by its time, so a restart forgets none.
CREATE TABLE function_runs (
    id            TEXT PRIMARY KEY,
    function_id   TEXT NOT NULL REFERENCES functions (id) ON DELETE CASCADE,
    workspace_id  TEXT NOT NULL,
    state         TEXT NOT NULL,
    queued        INTEGER NOT NULL,             -- 1 while the queue must see to it
    due_at_us     INTEGER,                      -- when its next attempt begins; NULL while one runs
    created_at_us INTEGER NOT NULL,
    ended_at_us   INTEGER,
    duration_us   INTEGER NOT NULL,
    billed_ms     INTEGER NOT NULL,
    cold          INTEGER NOT NULL,
    event         BLOB,                        -- while queued
    spec          TEXT NOT NULL                 -- JSON: the run as clients see it
) STRICT;
CREATE INDEX function_runs_by_function ON function_runs (function_id, created_at_us);
CREATE INDEX function_runs_queued ON function_runs (due_at_us) WHERE queued = 1;
