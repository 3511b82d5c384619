-- What a repository's host was told of a deployment: NULL nothing, 'begin', 'end'. What is over already is not told any more.
ALTER TABLE deployments ADD COLUMN told TEXT;
UPDATE deployments SET told = 'end' WHERE status NOT IN ('queued', 'building', 'deploying');
CREATE INDEX deployments_untold ON deployments (created_at_us) WHERE told IS NULL OR told <> 'end';
