-- People with a role in a workspace, by what the login provider calls them.
CREATE TABLE members (
    id                 TEXT PRIMARY KEY,
    workspace_id       TEXT NOT NULL REFERENCES workspaces (id),
    issuer             TEXT,                    -- with the subject: who it is; NULL until the first sign-in
    subject            TEXT,
    email              TEXT,                    -- lower case
    name               TEXT,
    role               TEXT,                    -- given by an owner
    group_role         TEXT,                    -- given by the groups of the last sign-in
    operator           INTEGER NOT NULL,        -- 0 or 1, by groups
    created_at_us      INTEGER NOT NULL,
    last_sign_in_at_us INTEGER
) STRICT;
CREATE UNIQUE INDEX members_by_subject ON members (workspace_id, issuer, subject);
CREATE INDEX members_by_email ON members (email);

-- A sign-in of a member is a key that ends with its member.
ALTER TABLE tokens ADD COLUMN member_id TEXT;
ALTER TABLE tokens ADD COLUMN client TEXT;      -- browser or device
CREATE INDEX tokens_by_member ON tokens (member_id);
