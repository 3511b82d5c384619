-- The record of truth, as in `../sqlite`: the same tables and columns, with PostgreSQL's names of types.
-- Columns are what queries select on; JSON columns hold what only code reads, and are text so that both databases return
-- the same. Times are microseconds since 1970. Every tenant's row names its workspace.

CREATE TABLE workspaces (
    id            TEXT PRIMARY KEY,
    created_at_us BIGINT NOT NULL
);

CREATE TABLE tokens (
    prefix          TEXT PRIMARY KEY,           -- public part of the key
    workspace_id    TEXT NOT NULL REFERENCES workspaces (id),
    hash            BYTEA NOT NULL,             -- SHA-256 of the whole key, which has 128 random bits
    label           TEXT NOT NULL,
    scope           TEXT NOT NULL,              -- `read`, `sandboxes` or `admin`
    created_at_us   BIGINT NOT NULL,
    expires_at_us   BIGINT,
    last_used_at_us BIGINT
);
CREATE INDEX tokens_by_workspace ON tokens (workspace_id);

CREATE TABLE hosts (
    id              TEXT PRIMARY KEY,
    summary         TEXT NOT NULL,              -- JSON: the last report without its sandboxes and snapshots
    last_seen_at_us BIGINT NOT NULL
);

CREATE TABLE sandboxes (
    id            TEXT PRIMARY KEY,
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    host_id       TEXT NOT NULL,
    state         TEXT NOT NULL,
    incarnation   BIGINT NOT NULL,
    template      TEXT NOT NULL,
    parent_id     TEXT,
    tree_id       TEXT,
    created_at_us BIGINT NOT NULL,
    changed_at_us BIGINT NOT NULL,              -- last transition; older reports do not override it
    expires_at_us BIGINT,
    metadata      TEXT NOT NULL,                -- JSON
    spec          TEXT NOT NULL                 -- JSON: lifetime, environment, size, engine, timings, usage totals
);
CREATE INDEX sandboxes_by_workspace ON sandboxes (workspace_id, created_at_us);
CREATE INDEX sandboxes_by_host ON sandboxes (host_id);
CREATE INDEX sandboxes_by_tree ON sandboxes (tree_id) WHERE tree_id IS NOT NULL;
CREATE INDEX sandboxes_by_parent ON sandboxes (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX sandboxes_by_expiry ON sandboxes (expires_at_us) WHERE expires_at_us IS NOT NULL;

CREATE TABLE snapshots (
    id            TEXT PRIMARY KEY,
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    sandbox_id    TEXT NOT NULL,
    host_id       TEXT NOT NULL,
    created_at_us BIGINT NOT NULL,
    expires_at_us BIGINT,
    spec          TEXT NOT NULL                 -- JSON
);
CREATE INDEX snapshots_by_workspace ON snapshots (workspace_id, created_at_us);
CREATE INDEX snapshots_by_host ON snapshots (host_id);
CREATE INDEX snapshots_by_sandbox ON snapshots (sandbox_id, created_at_us);
CREATE INDEX snapshots_by_expiry ON snapshots (expires_at_us) WHERE expires_at_us IS NOT NULL;

-- One transition, one row. Outlives its sandbox.
CREATE TABLE events (
    id           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    sandbox_id   TEXT NOT NULL,
    kind         TEXT NOT NULL,
    at_us        BIGINT NOT NULL,
    detail       TEXT
);
CREATE INDEX events_by_sandbox ON events (sandbox_id, id);
CREATE INDEX events_by_time ON events (at_us);

-- Append-only: what was used, as differences. Sums over any period are the bill.
CREATE TABLE usage_events (
    id                BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id      TEXT NOT NULL,
    sandbox_id        TEXT NOT NULL,
    at_us             BIGINT NOT NULL,
    creates           BIGINT NOT NULL,
    cpu_ms            BIGINT NOT NULL,
    memory_mb_seconds BIGINT NOT NULL,
    asleep_seconds    BIGINT NOT NULL,
    sent_bytes        BIGINT NOT NULL,
    received_bytes    BIGINT NOT NULL
);
CREATE INDEX usage_events_by_workspace ON usage_events (workspace_id, at_us);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME; END $$;
CREATE TRIGGER usage_events_are_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TABLE idempotency (
    workspace_id  TEXT NOT NULL,
    key           TEXT NOT NULL,
    fingerprint   BYTEA NOT NULL,               -- SHA-256 of method, path and body
    instance      TEXT NOT NULL,                -- the control process that works on it
    sandbox_id    TEXT,                         -- what it makes, once that has a row
    status        BIGINT,                       -- NULL while under way
    body          BYTEA,
    created_at_us BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, key)
);
CREATE INDEX idempotency_by_time ON idempotency (created_at_us);

-- Every call that could change something: who, what, when, outcome. Outlives keys and sandboxes.
CREATE TABLE audit (
    id           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    at_us        BIGINT NOT NULL,
    token_prefix TEXT NOT NULL,
    token_label  TEXT NOT NULL,
    method       TEXT NOT NULL,
    route        TEXT NOT NULL,
    path         TEXT NOT NULL,
    sandbox_id   TEXT,
    status       BIGINT NOT NULL,
    request_id   TEXT NOT NULL,
    took_ms      BIGINT NOT NULL
);
CREATE INDEX audit_by_workspace ON audit (workspace_id, id);
CREATE INDEX audit_by_sandbox ON audit (sandbox_id, id) WHERE sandbox_id IS NOT NULL;
CREATE INDEX audit_by_time ON audit (at_us);
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
