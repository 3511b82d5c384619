-- Keys have roles. Until now `admin` was also the operator of the installation, so those keys stay so.
ALTER TABLE tokens ADD COLUMN role TEXT NOT NULL DEFAULT 'developer';       -- viewer, developer, owner
ALTER TABLE tokens ADD COLUMN operator BIGINT NOT NULL DEFAULT 0;          -- 0 or 1
ALTER TABLE tokens ADD COLUMN allow_from TEXT;                              -- JSON: networks; NULL: everywhere
UPDATE tokens SET role = CASE scope WHEN 'read' THEN 'viewer' WHEN 'admin' THEN 'owner' ELSE 'developer' END,
    operator = CASE scope WHEN 'admin' THEN 1 ELSE 0 END;
ALTER TABLE tokens DROP COLUMN scope;

-- Workspaces are suspended and deleted. The row of a deleted one stays, so that its name is not used again.
ALTER TABLE workspaces ADD COLUMN state TEXT NOT NULL DEFAULT 'active';     -- active, suspended, deleting, deleted
ALTER TABLE workspaces ADD COLUMN suspended_at_us BIGINT;
ALTER TABLE workspaces ADD COLUMN suspend_reason TEXT;
