-- Snapshots that end by themselves, and the ways queries find relatives.
ALTER TABLE snapshots ADD COLUMN expires_at_us INTEGER;
CREATE INDEX snapshots_by_expiry ON snapshots (expires_at_us) WHERE expires_at_us IS NOT NULL;
CREATE INDEX snapshots_by_sandbox ON snapshots (sandbox_id, created_at_us);
CREATE INDEX sandboxes_by_parent ON sandboxes (parent_id) WHERE parent_id IS NOT NULL;
