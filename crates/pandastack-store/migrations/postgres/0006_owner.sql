-- Machines that belong to a service, such as `app:<id>`.
ALTER TABLE sandboxes ADD COLUMN owner TEXT;
CREATE INDEX sandboxes_by_owner ON sandboxes (owner) WHERE owner IS NOT NULL;
