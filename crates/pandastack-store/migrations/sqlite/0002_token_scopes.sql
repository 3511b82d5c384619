-- Keys may do less than everything: `read`, `sandboxes` or `admin`.

ALTER TABLE tokens ADD COLUMN scope TEXT NOT NULL DEFAULT 'sandboxes';
UPDATE tokens SET scope = 'admin' WHERE is_admin;
ALTER TABLE tokens DROP COLUMN is_admin;
