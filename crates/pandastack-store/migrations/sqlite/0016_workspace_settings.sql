-- What a workspace gives to sandboxes that are created without a value of their own.
ALTER TABLE workspaces ADD COLUMN settings TEXT;                            -- JSON; NULL: the platform's own defaults
