-- Names that users gave, unique in a workspace. They go with their rows.
ALTER TABLE sandboxes ADD COLUMN name TEXT;
CREATE UNIQUE INDEX sandboxes_by_name ON sandboxes (workspace_id, name) WHERE name IS NOT NULL;
ALTER TABLE snapshots ADD COLUMN name TEXT;
CREATE UNIQUE INDEX snapshots_by_name ON snapshots (workspace_id, name) WHERE name IS NOT NULL;
ALTER TABLE databases ADD COLUMN name TEXT;
CREATE UNIQUE INDEX databases_by_name ON databases (workspace_id, name) WHERE name IS NOT NULL;
