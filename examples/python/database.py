"""PostgreSQL in its own machine, and a branch of it."""

from pandastack import PandaStack

with PandaStack(max_create_retry_seconds=600) as client:
    database = client.databases.create(label="example")
    client.databases.query(database["id"], "CREATE TABLE notes AS SELECT 'hello' AS text")
    branch = client.databases.branch(database["id"])
    client.databases.query(branch["id"], "UPDATE notes SET text = 'changed in the branch'")
    print(client.databases.query(database["id"], "SELECT text FROM notes")["rows"])  # [['hello']]
    for made in (branch, database):
        client.databases.delete(made["id"])
