-- Schedules, and one run per schedule and instant.
CREATE TABLE schedules (
    id              TEXT PRIMARY KEY,
    workspace_id    TEXT NOT NULL REFERENCES workspaces (id),
    name            TEXT NOT NULL,
    spec            TEXT NOT NULL,              -- JSON: when, what, how
    paused          BIGINT NOT NULL,           -- 0 or 1
    cursor_us       BIGINT NOT NULL,           -- every instant up to here is decided
    next_run_at_us  BIGINT,                    -- the first instant after the cursor; NULL when paused or over
    revision        BIGINT NOT NULL,           -- counts changes; whoever decides says which one it looked at
    failures        BIGINT NOT NULL,           -- in a row
    last_run_at_us  BIGINT,
    alert_run_id    TEXT,                       -- the run that an alert is still to be sent about
    alert_attempts  BIGINT NOT NULL,
    alert_at_us     BIGINT,
    created_at_us   BIGINT NOT NULL,
    updated_at_us   BIGINT NOT NULL
);
CREATE INDEX schedules_by_workspace ON schedules (workspace_id, created_at_us);
CREATE INDEX schedules_by_next_run ON schedules (next_run_at_us) WHERE next_run_at_us IS NOT NULL;
CREATE INDEX schedules_by_alert ON schedules (alert_at_us) WHERE alert_at_us IS NOT NULL;

CREATE TABLE schedule_runs (
    id               TEXT PRIMARY KEY,
    schedule_id      TEXT NOT NULL REFERENCES schedules (id),
    workspace_id     TEXT NOT NULL,
    origin           TEXT NOT NULL,             -- `schedule` or `manual`
    scheduled_for_us BIGINT NOT NULL,
    state            TEXT NOT NULL,
    not_before_us    BIGINT NOT NULL,          -- jitter and back-off
    attempt          BIGINT NOT NULL,
    interruptions    BIGINT NOT NULL,          -- attempts that ended with their server
    instance         TEXT,                      -- the control process that works on it
    is_catch_up      BIGINT NOT NULL,          -- 0 or 1: makes good a missed instant
    created_at_us    BIGINT NOT NULL,
    started_at_us    BIGINT,
    ended_at_us      BIGINT,
    outcome          TEXT NOT NULL              -- JSON: output, exit code, error
);
CREATE UNIQUE INDEX schedule_runs_one_per_instant ON schedule_runs (schedule_id, scheduled_for_us) WHERE origin = 'schedule';
CREATE INDEX schedule_runs_by_schedule ON schedule_runs (schedule_id, created_at_us);
CREATE INDEX schedule_runs_queued ON schedule_runs (not_before_us) WHERE state = 'queued';
CREATE INDEX schedule_runs_open ON schedule_runs (schedule_id, state) WHERE ended_at_us IS NULL;
CREATE INDEX schedule_runs_by_end ON schedule_runs (ended_at_us) WHERE ended_at_us IS NOT NULL;
