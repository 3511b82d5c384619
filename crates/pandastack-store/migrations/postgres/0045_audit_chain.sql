-- Every entry carries the hash of the one before. Entries from before this have none.
ALTER TABLE audit ADD COLUMN previous TEXT;
ALTER TABLE audit ADD COLUMN hash TEXT;
-- The hash of the newest entry, of the newest one that was pruned, and the entry that was exported last.
INSERT INTO installation (name, value) VALUES ('audit_head', ''), ('audit_pruned', ''), ('audit_exported', '0');
