-- Apps, their deployments and logs, names that lead to them, and webhook deliveries that were taken.
CREATE TABLE apps (
    id                   TEXT PRIMARY KEY,
    workspace_id         TEXT NOT NULL REFERENCES workspaces (id),
    name                 TEXT NOT NULL UNIQUE,  -- a host name label, so of the whole installation
    revision             BIGINT NOT NULL,      -- grows with every change; a change names the one it saw
    active_deployment_id TEXT,                  -- the version that serves
    created_at_us        BIGINT NOT NULL,
    updated_at_us        BIGINT NOT NULL,
    spec                 TEXT NOT NULL          -- JSON
);
CREATE INDEX apps_by_workspace ON apps (workspace_id, created_at_us);

CREATE TABLE deployments (
    id             TEXT PRIMARY KEY,
    app_id         TEXT NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    workspace_id   TEXT NOT NULL,
    status         TEXT NOT NULL,
    created_at_us  BIGINT NOT NULL,
    updated_at_us  BIGINT NOT NULL,
    finished_at_us BIGINT,
    spec           TEXT NOT NULL                -- JSON
);
CREATE INDEX deployments_by_app ON deployments (app_id, created_at_us);
CREATE INDEX deployments_under_way ON deployments (created_at_us) WHERE status IN ('queued', 'building', 'deploying');

CREATE TABLE deployment_log (
    deployment_id TEXT NOT NULL REFERENCES deployments (id) ON DELETE CASCADE,
    line_number   BIGINT NOT NULL,
    line          TEXT NOT NULL,
    PRIMARY KEY (deployment_id, line_number)
);

CREATE TABLE app_domains (
    domain        TEXT PRIMARY KEY,
    app_id        TEXT NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    created_at_us BIGINT NOT NULL
);
CREATE INDEX app_domains_by_app ON app_domains (app_id);

CREATE TABLE app_deliveries (
    app_id      TEXT NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    delivery    TEXT NOT NULL,
    at_us       BIGINT NOT NULL,
    PRIMARY KEY (app_id, delivery)
);
CREATE INDEX app_deliveries_by_time ON app_deliveries (at_us);
