-- Workspaces that may use a template of another one. `*` means all.
CREATE TABLE template_readers (
    template_id TEXT NOT NULL,
    reader      TEXT NOT NULL,
    PRIMARY KEY (template_id, reader)
);
CREATE INDEX template_readers_by_reader ON template_readers (reader);
