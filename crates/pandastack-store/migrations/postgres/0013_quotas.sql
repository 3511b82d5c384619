-- What a workspace may have, and the numbers that are summed for it.
ALTER TABLE workspaces ADD COLUMN quota TEXT;                               -- JSON; NULL: the platform's own limits
ALTER TABLE sandboxes ADD COLUMN cpu BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN memory_mb BIGINT NOT NULL DEFAULT 0;
ALTER TABLE snapshots ADD COLUMN size_bytes BIGINT NOT NULL DEFAULT 0;
UPDATE sandboxes SET cpu = COALESCE((spec::json ->> 'cpu')::bigint, 0),
    memory_mb = COALESCE((spec::json ->> 'memory_mb')::bigint, 0);
UPDATE snapshots SET size_bytes = COALESCE((spec::json ->> 'size_bytes')::bigint, 0);
