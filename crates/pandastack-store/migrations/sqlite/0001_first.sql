-- The record of truth. Columns are what queries select on; JSON columns hold what only code reads.
-- Times are microseconds since 1970. Every tenant's row names its workspace.

CREATE TABLE workspaces (
    id            TEXT PRIMARY KEY,
    created_at_us INTEGER NOT NULL
) STRICT;

CREATE TABLE tokens (
    prefix          TEXT PRIMARY KEY,           -- public part of the key
    workspace_id    TEXT NOT NULL REFERENCES workspaces (id),
    hash            BLOB NOT NULL,              -- SHA-256 of the whole key, which has 128 random bits
    label           TEXT NOT NULL,
    is_admin        INTEGER NOT NULL,
    created_at_us   INTEGER NOT NULL,
    expires_at_us   INTEGER,
    last_used_at_us INTEGER
) STRICT;
CREATE INDEX tokens_by_workspace ON tokens (workspace_id);

CREATE TABLE hosts (
    id              TEXT PRIMARY KEY,
    summary         TEXT NOT NULL,              -- JSON: the last report without its sandboxes and snapshots
    last_seen_at_us INTEGER NOT NULL
) STRICT;

CREATE TABLE sandboxes (
    id            TEXT PRIMARY KEY,
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    host_id       TEXT NOT NULL,
    state         TEXT NOT NULL,
    incarnation   INTEGER NOT NULL,
    template      TEXT NOT NULL,
    parent_id     TEXT,
    tree_id       TEXT,
    created_at_us INTEGER NOT NULL,
    changed_at_us INTEGER NOT NULL,             -- last transition; older reports do not override it
    expires_at_us INTEGER,
    metadata      TEXT NOT NULL,                -- JSON
    spec          TEXT NOT NULL                 -- JSON: lifetime, environment, size, engine, timings, usage totals
) STRICT;
CREATE INDEX sandboxes_by_workspace ON sandboxes (workspace_id, created_at_us);
CREATE INDEX sandboxes_by_host ON sandboxes (host_id);
CREATE INDEX sandboxes_by_tree ON sandboxes (tree_id) WHERE tree_id IS NOT NULL;
CREATE INDEX sandboxes_by_expiry ON sandboxes (expires_at_us) WHERE expires_at_us IS NOT NULL;

CREATE TABLE snapshots (
    id            TEXT PRIMARY KEY,
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    sandbox_id    TEXT NOT NULL,
    host_id       TEXT NOT NULL,
    created_at_us INTEGER NOT NULL,
    spec          TEXT NOT NULL                 -- JSON
) STRICT;
CREATE INDEX snapshots_by_workspace ON snapshots (workspace_id, created_at_us);
CREATE INDEX snapshots_by_host ON snapshots (host_id);

-- One transition, one row. Outlives its sandbox.
CREATE TABLE events (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    workspace_id TEXT NOT NULL,
    sandbox_id   TEXT NOT NULL,
    kind         TEXT NOT NULL,
    at_us        INTEGER NOT NULL,
    detail       TEXT
) STRICT;
CREATE INDEX events_by_sandbox ON events (sandbox_id, id);
CREATE INDEX events_by_time ON events (at_us);

-- Append-only: what was used, as differences. Sums over any period are the bill.
CREATE TABLE usage_events (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    workspace_id      TEXT NOT NULL,
    sandbox_id        TEXT NOT NULL,
    at_us             INTEGER NOT NULL,
    creates           INTEGER NOT NULL,
    cpu_ms            INTEGER NOT NULL,
    memory_mb_seconds INTEGER NOT NULL,
    asleep_seconds    INTEGER NOT NULL,
    sent_bytes        INTEGER NOT NULL,
    received_bytes    INTEGER NOT NULL
) STRICT;
CREATE INDEX usage_events_by_workspace ON usage_events (workspace_id, at_us);
CREATE TRIGGER usage_events_are_never_changed BEFORE UPDATE ON usage_events
BEGIN SELECT RAISE(ABORT, 'usage_events is append-only'); END;
CREATE TRIGGER usage_events_are_never_removed BEFORE DELETE ON usage_events
BEGIN SELECT RAISE(ABORT, 'usage_events is append-only'); END;

CREATE TABLE idempotency (
    workspace_id  TEXT NOT NULL,
    key           TEXT NOT NULL,
    fingerprint   BLOB NOT NULL,                -- SHA-256 of method, path and body
    instance      TEXT NOT NULL,                -- the control process that works on it
    sandbox_id    TEXT,                         -- what it makes, once that has a row
    status        INTEGER,                      -- NULL while under way
    body          BLOB,
    created_at_us INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, key)
) STRICT;
CREATE INDEX idempotency_by_time ON idempotency (created_at_us);
