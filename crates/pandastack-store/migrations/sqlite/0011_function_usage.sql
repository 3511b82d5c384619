-- Calls of functions and their time, as usage of the machine that served them.
ALTER TABLE usage_events ADD COLUMN function_id TEXT;
ALTER TABLE usage_events ADD COLUMN calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage_events ADD COLUMN billed_ms INTEGER NOT NULL DEFAULT 0;
-- Calls that were given up are listed and queued again.
CREATE INDEX function_runs_by_state ON function_runs (function_id, state, created_at_us);
