-- How the last try to restore a database went: a column of its own, because it is written while others change the rest.
ALTER TABLE databases ADD COLUMN drill TEXT;                                -- JSON; NULL before the first one
UPDATE databases SET drill = json_extract(spec, '$.drill') WHERE json_type(spec, '$.drill') = 'object';
