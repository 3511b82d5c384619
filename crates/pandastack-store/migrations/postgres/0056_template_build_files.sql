-- Snapshot of the machine with the files of a build that can be repeated.
ALTER TABLE template_builds ADD COLUMN files_snapshot_id TEXT;
