-- Hosts with a certificate. A host that was removed keeps its row: it can join again as its next membership.
CREATE TABLE host_identities (
    id            TEXT PRIMARY KEY,             -- of the host
    role          TEXT NOT NULL,                -- agent, edge
    membership    INTEGER NOT NULL,             -- number of times that it has joined
    joined_at_us  INTEGER NOT NULL,
    expires_at_us INTEGER NOT NULL,             -- of its newest certificate
    removed_at_us INTEGER
) STRICT;

-- Tokens with which hosts join, once each.
CREATE TABLE host_tokens (
    id            TEXT PRIMARY KEY,             -- the public part
    hash          BLOB NOT NULL,                -- SHA-256 of what the host presents
    role          TEXT NOT NULL,
    host_id       TEXT,                         -- the only host that may use it; NULL for one that is new
    created_by    TEXT NOT NULL,                -- prefix of the API key
    created_at_us INTEGER NOT NULL,
    expires_at_us INTEGER NOT NULL,
    used_at_us    INTEGER,
    used_by       TEXT
) STRICT;

-- The authority that signs certificates of hosts: one row.
CREATE TABLE host_authority (
    id           TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    spec         TEXT NOT NULL                  -- JSON; the key is sealed
) STRICT;
