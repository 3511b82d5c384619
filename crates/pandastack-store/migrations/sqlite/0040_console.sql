-- Sessions of the web console. Each belongs to an API key and ends with it.
CREATE TABLE console_sessions (
    hash            BLOB PRIMARY KEY,           -- SHA-256 of the cookie, which has 256 random bits
    id              TEXT NOT NULL UNIQUE,       -- public; names the session in lists
    workspace_id    TEXT NOT NULL REFERENCES workspaces (id),
    token_prefix    TEXT NOT NULL,
    browser         TEXT NOT NULL,
    created_at_us   INTEGER NOT NULL,
    last_used_at_us INTEGER NOT NULL,
    expires_at_us   INTEGER NOT NULL
) STRICT;
CREATE INDEX console_sessions_by_workspace ON console_sessions (workspace_id, created_at_us);
CREATE INDEX events_by_workspace ON events (workspace_id, id);
