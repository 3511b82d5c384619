"""A machine on disk, woken by the next call with everything it had in memory."""

from pandastack import PandaStack

with PandaStack() as client, client.sandboxes.create(template="base", ttl_seconds=600) as sandbox:
    sandbox.exec("sleep 1000 & echo $! > /srv/pid", check=True)
    sandbox.hibernate()
    print(sandbox.refresh().status)  # hibernated
    print(sandbox.exec("kill -0 $(cat /srv/pid) && echo it still runs").stdout.strip())  # it still runs
