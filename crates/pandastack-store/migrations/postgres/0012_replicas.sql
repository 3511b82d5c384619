-- Several control servers on one database. A row is a server that has joined; it lives for as long as its connection holds
-- the advisory lock of its number.
CREATE TABLE replicas (
    number   INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    instance TEXT NOT NULL,
    address  TEXT NOT NULL                      -- where the other servers reach it
);

-- What one server commits, the others hear: the number of an event, the id of a host that reported.
CREATE FUNCTION tell_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_notify('pandastack', 'event ' || NEW.id); RETURN NULL; END $$;
CREATE TRIGGER events_are_told AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION tell_event();

CREATE FUNCTION tell_host() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_notify('pandastack', 'host ' || NEW.id); RETURN NULL; END $$;
CREATE TRIGGER hosts_are_told AFTER INSERT OR UPDATE ON hosts FOR EACH ROW EXECUTE FUNCTION tell_host();
