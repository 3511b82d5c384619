-- URLs that receive events of a workspace, and what is sent to them.
CREATE TABLE webhooks (
    id               TEXT PRIMARY KEY,
    workspace_id     TEXT NOT NULL REFERENCES workspaces (id),
    spec             TEXT NOT NULL,             -- JSON; URL and secret are sealed
    events           TEXT NOT NULL,             -- filters as ',a,b,'; empty for all events
    enabled          INTEGER NOT NULL,          -- 0 or 1
    disabled_reason  TEXT,
    failing_since_us INTEGER,                   -- first failed attempt since the last success
    created_at_us    INTEGER NOT NULL
) STRICT;
CREATE INDEX webhooks_by_workspace ON webhooks (workspace_id);

CREATE TABLE webhook_deliveries (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    webhook_id    TEXT NOT NULL,
    workspace_id  TEXT NOT NULL,
    event_id      TEXT NOT NULL,
    kind          TEXT NOT NULL,
    body          TEXT NOT NULL,                -- JSON, as it is sent
    state         TEXT NOT NULL,                -- pending, delivered, failed
    attempts      INTEGER NOT NULL,
    result        TEXT,                         -- of the last attempt
    created_at_us INTEGER NOT NULL,
    due_at_us     INTEGER,                      -- NULL once it has ended
    ended_at_us   INTEGER
) STRICT;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (due_at_us) WHERE due_at_us IS NOT NULL;
CREATE INDEX webhook_deliveries_pending ON webhook_deliveries (webhook_id, due_at_us) WHERE due_at_us IS NOT NULL;
CREATE INDEX webhook_deliveries_turn ON webhook_deliveries (workspace_id, due_at_us, id) WHERE due_at_us IS NOT NULL;
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (ended_at_us) WHERE ended_at_us IS NOT NULL;
CREATE INDEX webhook_deliveries_by_webhook ON webhook_deliveries (webhook_id, id);
