"""Objects print what they are, and no secrets."""

from __future__ import annotations

import copy
import json
import pickle

from conftest import KEY

SECRETS = {
    "password": "hunter2",
    "connection_url": "postgres://u:hunter2@h/d",
    "pooled_url": "postgres://u:hunter2@p/d",
    "broker_token": "hunter2-token",
}


def printed(thing):
    """The printed form, without the word that distinguishes the async class."""
    return repr(getattr(thing, "_target", thing)).replace("Async", "", 1)


def test_handle_reprs_show_id_and_state(server, client, sandbox):
    process = {"id": 7, "pid": 9, "state": "running", "command": f"curl -H {KEY}"}
    server.on("GET", "/v1/sandboxes/s1/processes/7", 200, process)
    server.on("GET", "/v1/sandboxes/s1/processes/7", 200, {**process, "state": "exited", "exit_code": 3})
    server.on("POST", "/v1/sandboxes/s1/repl/sessions", 201, {"id": "c1", "language": "python", "cwd": "/"})
    assert printed(client) == f"PandaStack(base_url={server.url!r})"
    assert printed(sandbox) == "Sandbox(id='s1', status='running', template='base')"
    handle = sandbox.process(7)
    assert printed(handle) == "Process(id=7, state='running')"
    assert printed(handle.refresh()) == "Process(id=7, state='exited', exit_code=3)"
    assert printed(sandbox.create_code_context()) == "CodeContext(id='c1', language='python')"


def test_a_password_in_the_base_url_is_not_printed(make_client):
    client = make_client(base_url="http://me:hunter2@127.0.0.1:1/proxy")
    assert printed(client) == "PandaStack(base_url='http://127.0.0.1:1/proxy')"


def test_the_repr_of_a_stream_shows_its_process(server, sandbox):
    headers = {"Content-Type": "text/event-stream", "X-PandaStack-Process": "7"}
    events = [b'event: exit\ndata: {"exit_code":0}\n\n']
    server.on("POST", "/v1/sandboxes/s1/exec/stream", 200, chunks=events, headers=headers)
    stream = sandbox.exec_stream("make")
    assert printed(stream) == "ExecStream(process_id=7, exit_code=None)"
    stream.wait()
    assert printed(stream) == "ExecStream(process_id=7, exit_code=0)"


def test_records_contain_passwords_but_do_not_print_them(server, client):
    record = {"id": "d1", "status": "running", "label": "shop", **SECRETS}
    for path in ("/v1/databases/d1", "/v1/databases/d1/connection"):
        server.on("GET", path, 200, record)
    server.on("GET", "/v1/databases", 200, {"items": [record]})
    for database in (client.databases.get("d1"), client.databases.connection("d1"), *client.databases.list()):
        assert "hunter2" not in f"{database} {[database]!r}" and "'label': 'shop'" in f"{database}"
        assert database == record and json.loads(json.dumps(database)) == record
        assert "hunter2" not in repr([copy.deepcopy(database), pickle.loads(pickle.dumps(database))])


def test_a_new_key_does_not_print_its_secret(server, client):
    server.on("POST", "/v1/me/tokens", 201, {"prefix": "pds_ab", "label": "ci", "token": KEY})
    token = client.tokens.create("ci")
    assert token.token == KEY and KEY not in repr(token) and "pds_ab" in repr(token)
