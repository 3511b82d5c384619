"""E2B's own suites, as they are in checkouts of their repositories, against this platform.

    PANDASTACK_E2B_REPO=DIRECTORY PANDASTACK_E2B_INTERPRETER_REPO=DIRECTORY cargo xtask test --only e2b-suite

The suites talk to `https://api.platform.test` and `https://<port>-<sandbox>.platform.test`, as they do at
home: names and certificates are those of a small internet on this machine, which also has a registry with
stand-ins for the images that they build from. What failed is compared with `expected-*.txt` beside this file.

By hand, `run.py SUITE ARGUMENT...` runs one of them, with more arguments for pytest or vitest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from contextlib import ExitStack
from pathlib import Path
from typing import Dict, List, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from image_registry import REGISTRY, Image, Registry  # noqa: E402
from internet import HOST, RESOLVER, SERVER, InternetInABox  # noqa: E402
from platform_process import Platform  # noqa: E402
from relay import Relay  # noqa: E402
from suites import CLIENT, SUITES, Suite, prepared, run  # noqa: E402
from test_private_mirror import certificates  # noqa: E402

HERE = Path(__file__).parent
DOMAIN = "platform.test"
#: Images that the tests name. All of them are a small Debian here.
IMAGES = ("library/ubuntu:22.04", "library/ubuntu:24.04", "library/python:3", "library/node:lts")
#: Stand-ins for the servers of the internet that the tests ask, with their answers.
PUBLIC = {"1.1.1.1": 301, "8.8.8.8": 302, "connectivitycheck.gstatic.com": 204}
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: What runs a suite: its name server and its authorities are those of the small internet.
ENTER = r"""
mount --make-rprivate / && mount --bind "$0/resolv.conf" /etc/resolv.conf
mount --bind "$0/roots.pem" /etc/ssl/certs/ca-certificates.crt
exec "$@"
"""


class Outcome(NamedTuple):
    #: `passed`, `failed` or `skipped`.
    result: str
    why: str


Outcomes = Dict[str, Outcome]


def debian() -> bytes:
    """A small Debian, as a layer."""
    def make(into: Path) -> None:
        run("mmdebstrap", "--variant=minbase", "--include=ca-certificates,python3-minimal", "bookworm",
            into / "layer.tar")

    return (prepared("debian", b"bookworm 1", make) / "layer.tar").read_bytes()


def outcomes(report: Path) -> Outcomes:
    """What became of each test."""
    found: Outcomes = {}
    try:
        cases = ElementTree.parse(report).getroot().iter("testcase")
    except (OSError, ElementTree.ParseError) as error:
        return {"the suite": Outcome("failed", f"it ended without a report: {error}")}
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag: " ".join((child.get("message") or "").split())[:200] for child in case}
        bad = next((kind for kind in ("failure", "error") if kind in kinds), None)
        if bad is not None:
            found[name] = Outcome("failed", kinds[bad])
        elif name not in found or found[name].result != "failed":
            found[name] = Outcome("skipped" if "skipped" in kinds else "passed", "")
    return found


def expected(file: Path) -> Dict[str, str]:
    """Tests that are expected to fail, and why."""
    lines = file.read_text().splitlines() if file.exists() else []
    pairs = (line.rsplit("  # ", 1) for line in lines if line.strip() and not line.startswith("#"))
    return {name.strip(): why for name, why in pairs}


def run_suite(suite: Suite, work: Path, environment: Dict[str, str], more: List[str]) -> Outcomes:
    report = work / f"{suite.name}.xml"
    directory, command = suite.prepare(Path(os.environ[suite.variable]).resolve() / suite.package, report)
    words = ["unshare", "--mount", "sh", "-ec", ENTER, str(work), *command, *more]
    subprocess.run(words, cwd=directory, env=environment)
    return outcomes(report)


def compare(suite: str, found: Outcomes, known: Dict[str, str]) -> Dict[str, int]:
    """Says what is other than expected, and how many tests passed, failed and were left out."""
    counts = dict.fromkeys(("failed", "passed", "skipped"), 0)
    for name, (result, why) in sorted(found.items()):
        if result == "failed" and name in known:
            result, line = "skipped", f"excluded ({known[name]})"
        elif result == "failed":
            line = f"FAILED: {why}"
        elif result == "passed" and name in known:
            line = f"passed, expected to fail ({known[name]})"
        else:
            line = ""
        counts[result] += 1
        if line:
            print(f"{suite}: {name}: {line}")
    print(f"{suite}: {counts}")
    return counts


def main() -> int:
    only, more = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else (None, [])
    suites = [suite for suite in SUITES if os.environ.get(suite.variable) and only in (None, suite.name)]
    if not suites:
        print(f"no suite: set {CLIENT}, or name one of {', '.join(suite.name for suite in SUITES)}")
        return 1
    counts = []
    with tempfile.TemporaryDirectory(prefix="pandastack-e2b-") as directory, ExitStack() as stack:
        work = Path(directory)
        names = (f"{'IP' if host[0].isdigit() else 'DNS'}:{host}" for host in PUBLIC)
        certificates(work, REGISTRY.split(":")[0], *names)
        stack.enter_context(InternetInABox(PUBLIC, work / "server.pem"))
        registry = Registry(work / "server.pem")
        image = Image.of([debian()], {"Cmd": ["/bin/bash"], "Env": [SEARCH_PATH]})
        for name in IMAGES:
            registry.push(name.split(":")[0], image, name.split(":")[1])
        templates = sorted({suite.template for suite in suites})
        warm = [word for template in templates for word in ("--warm", template)]
        platform = Platform(
            "pdes", "10.251.0.0/16", *warm, "--resolver", RESOLVER, "--tls", "--domain", DOMAIN,
            "--guest-ca-bundle", str(work / "ca.pem"), "--guest-mirror", f"oci=https://{REGISTRY}",
        )
        try:
            platform.start()
            (work / "resolv.conf").write_text(f"nameserver {SERVER}\n")
            authorities = [Path("/etc/ssl/certs/ca-certificates.crt"), platform.data_dir / "tls/ca.pem"]
            (work / "roots.pem").write_text("".join(path.read_text() for path in authorities))
            key = subprocess.run(
                [platform.binary, "token", "create", "--format", "e2b"], env=platform.environment, check=True,
                capture_output=True, text=True,
            ).stdout.strip()
            environment = {**os.environ, "E2B_API_KEY": key, "E2B_DOMAIN": DOMAIN}
            environment.update(dict.fromkeys(("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"),
                                             "/etc/ssl/certs/ca-certificates.crt"))
            with Relay((HOST, 443), ("127.0.0.1", platform.port)):
                for suite in suites:
                    found = run_suite(suite, work, environment, more)
                    counts.append(compare(suite.name, found, expected(HERE / f"expected-{suite.name}.txt")))
        finally:
            platform.stop()
            registry.close()
    total = {kind: sum(one[kind] for one in counts) for kind in ("failed", "passed", "skipped")}
    # As pytest says it: `cargo xtask test` reads this line.
    print(f"{total['failed']} failed, {total['passed']} passed, {total['skipped']} skipped in 0.00s")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
