-- Every call that could change something: who, what, when, outcome. Outlives keys and sandboxes.
CREATE TABLE audit (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    workspace_id TEXT NOT NULL,
    at_us        INTEGER NOT NULL,
    token_prefix TEXT NOT NULL,
    token_label  TEXT NOT NULL,
    method       TEXT NOT NULL,
    route        TEXT NOT NULL,
    path         TEXT NOT NULL,
    sandbox_id   TEXT,
    status       INTEGER NOT NULL,
    request_id   TEXT NOT NULL,
    took_ms      INTEGER NOT NULL
) STRICT;
CREATE INDEX audit_by_workspace ON audit (workspace_id, id);
CREATE INDEX audit_by_sandbox ON audit (sandbox_id, id) WHERE sandbox_id IS NOT NULL;
CREATE INDEX audit_by_time ON audit (at_us);
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'audit entries are never changed'); END;
