-- What a workspace may have, and the numbers that are summed for it.
ALTER TABLE workspaces ADD COLUMN quota TEXT;                               -- JSON; NULL: the platform's own limits
ALTER TABLE sandboxes ADD COLUMN cpu INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN memory_mb INTEGER NOT NULL DEFAULT 0;
ALTER TABLE snapshots ADD COLUMN size_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE sandboxes SET cpu = COALESCE(json_extract(spec, '$.cpu'), 0),
    memory_mb = COALESCE(json_extract(spec, '$.memory_mb'), 0);
UPDATE snapshots SET size_bytes = COALESCE(json_extract(spec, '$.size_bytes'), 0);
