-- Durable disks. They outlive sandboxes.
CREATE TABLE volumes (
    id            TEXT PRIMARY KEY,
    workspace_id  TEXT NOT NULL REFERENCES workspaces (id),
    name          TEXT NOT NULL,
    host_id       TEXT NOT NULL,
    state         TEXT NOT NULL,                -- creating, ready, deleting
    generation    INTEGER NOT NULL,             -- raised with every writer
    created_at_us INTEGER NOT NULL,
    spec          TEXT NOT NULL,                -- JSON
    UNIQUE (workspace_id, name)
) STRICT;
CREATE INDEX volumes_by_host ON volumes (host_id);

-- Who has a volume. A row counts for as long as its sandbox has one, so a volume is free when its machine is confirmed
-- gone, and at no other time.
CREATE TABLE volume_holders (
    volume_id  TEXT NOT NULL REFERENCES volumes (id) ON DELETE CASCADE,
    sandbox_id TEXT NOT NULL,
    read_only  INTEGER NOT NULL,                -- 0 or 1
    PRIMARY KEY (volume_id, sandbox_id)
) STRICT;
CREATE INDEX volume_holders_by_sandbox ON volume_holders (sandbox_id);
