-- Hosts with a certificate. A host that was removed keeps its row: it can join again as its next membership.
CREATE TABLE host_identities (
    id            TEXT PRIMARY KEY,             -- of the host
    role          TEXT NOT NULL,                -- agent, edge
    membership    BIGINT NOT NULL,             -- number of times that it has joined
    joined_at_us  BIGINT NOT NULL,
    expires_at_us BIGINT NOT NULL,             -- of its newest certificate
    removed_at_us BIGINT
);

-- Tokens with which hosts join, once each.
CREATE TABLE host_tokens (
    id            TEXT PRIMARY KEY,             -- the public part
    hash          BYTEA NOT NULL,               -- SHA-256 of what the host presents
    role          TEXT NOT NULL,
    host_id       TEXT,                         -- the only host that may use it; NULL for one that is new
    created_by    TEXT NOT NULL,                -- prefix of the API key
    created_at_us BIGINT NOT NULL,
    expires_at_us BIGINT NOT NULL,
    used_at_us    BIGINT,
    used_by       TEXT
);

-- The authority that signs certificates of hosts: one row.
CREATE TABLE host_authority (
    id           TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    spec         TEXT NOT NULL                  -- JSON; the key is sealed
);

-- Other control servers cut the connections of a host that was removed.
CREATE FUNCTION tell_host_identity() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_notify('pandastack', 'identity ' || NEW.id); RETURN NULL; END $$;
CREATE TRIGGER host_identities_are_told AFTER INSERT OR UPDATE ON host_identities
    FOR EACH ROW EXECUTE FUNCTION tell_host_identity();
