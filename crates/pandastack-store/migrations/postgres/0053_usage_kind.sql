-- The kind of service that used it: sandbox, app, function, database or template. NULL: from before.
ALTER TABLE usage_events ADD COLUMN kind TEXT;
