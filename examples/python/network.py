"""Outgoing and incoming connections of a sandbox."""

import urllib.request

from pandastack import PandaStack

with PandaStack() as client, client.sandboxes.create(template="base", network="none", ttl_seconds=600) as sandbox:
    sandbox.exec("mkdir -p /srv/www && echo served > /srv/www/index.html", check=True)
    sandbox.start("python3 -m http.server 8000 --directory /srv/www")
    is_up = "until curl -s localhost:8000 > /dev/null; do sleep 0.1; done"
    sandbox.exec(is_up, timeout_seconds=120, check=True)
    # In a browser: sandbox.preview_url(8000). Not every resolver knows `*.localhost`, so here the name goes with the request.
    request = urllib.request.Request(client.api_url, headers={"Host": sandbox.get_host(8000)})
    with urllib.request.urlopen(request, timeout=120) as answer:
        print(answer.read().decode().strip())  # served
    sandbox.set_network({"egress": "none"})
    print(sandbox.network()["egress"])  # none
