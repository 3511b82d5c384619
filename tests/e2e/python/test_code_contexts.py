"""Code contexts: those of `code-interpreter`, which are forks of an interpreter, and other languages."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, Iterator, List, Optional

import pytest

from pandastack import BadRequestError, CodeContext, NotFoundError, PandaStack, Sandbox

from conftest import RUN, wait_for

#: The first plot of a context takes at most so many times as long as the second one.
RATIO_MAX = 3.0
#: Contexts that may show it: on a busy machine single plots are slow, but not the first one of each context.
ROUNDS = 4
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9, 16])\nplt.show()"
#: Whether a context is a fork, and not an interpreter that was started for it. Nothing else has imported it.
IS_FORK = "'matplotlib.pyplot' in __import__('sys').modules"
#: A context with its interpreter on an emulated machine, however busy its host is.
RUN_SECONDS_MAX = 120


def value(context: CodeContext, code: str) -> Optional[str]:
    """The last expression's, or what was printed."""
    ran = context.run_code(code, timeout_seconds=RUN_SECONDS_MAX)
    assert ran.error is None, ran.error
    return ran.text or ran.stdout.strip()


def plot_seconds(context: CodeContext) -> float:
    began = time.monotonic()
    ran = context.run_code(PLOT, timeout_seconds=RUN_SECONDS_MAX)
    assert ran.error is None and [result for result in ran.results if result.png], ran
    chart = json.loads(ran.results[-1].data["application/vnd.e2b.chart+json"])
    assert (chart["type"], chart["elements"][0]["points"][-1]) == ("line", [3, 16])
    return time.monotonic() - began


@pytest.fixture(scope="module")
def box(client: PandaStack) -> Iterator[Sandbox]:
    with client.sandboxes.create(template="code-interpreter", ttl_seconds=1800, metadata=RUN) as made:
        yield made


def test_a_first_plot_takes_little_longer_than_a_second(box: Sandbox) -> None:
    measured: List[str] = []
    for _ in range(ROUNDS):
        with box.create_code_context() as context:
            value(context, "1")
            first, second = plot_seconds(context), plot_seconds(context)
        if first <= RATIO_MAX * second:
            return
        measured.append(f"{first:.2f} s, then {second:.2f} s")
    raise AssertionError(f"plots of fresh contexts took {'; '.join(measured)}")


def test_a_fork_is_what_a_new_interpreter_would_be(box: Sandbox) -> None:
    with box.create_code_context(cwd="/tmp") as context:
        assert value(context, IS_FORK) == "True"
        user = box.exec("id -u user; id -g user; id -G user", check=True).stdout.split()
        uid, gid, groups = int(user[0]), int(user[1]), {int(group) for group in user[2:]}
        code = "import os\n(os.getresuid(), os.getresgid(), set(os.getgroups()) | {os.getgid()})"
        found = value(context, code)
        assert found == repr(((uid,) * 3, (gid,) * 3, groups))
        assert value(context, "os.getcwd(), os.environ['HOME']") == repr(("/tmp", "/home/user"))
        # Its files in /proc are its own, as those of every process.
        found = value(context, "os.stat('/proc/self').st_uid, open('/proc/self/oom_score_adj').read()")
        assert found == repr((uid, "0\n"))
    with box.create_code_context(cwd="/root") as context:
        assert value(context, "import os\nos.getuid(), " + IS_FORK) == repr((0, False))


def test_a_fork_ends_with_its_context_and_its_context_with_it(box: Sandbox) -> None:
    context = box.create_code_context()
    pid = value(context, "import os, subprocess\nos.getpid()")
    value(context, "child = subprocess.Popen(['sleep', '1000'])")
    context.close()
    # Together with what it started.
    wait_for("its processes are gone", lambda: not box.exec(f"kill -0 {pid} || pgrep -x sleep").ok)
    with box.create_code_context() as context:
        lost = context.run_code("import os; os._exit(3)", timeout_seconds=RUN_SECONDS_MAX).error
        assert lost is not None and "exited with 3" in lost, lost


def test_code_in_a_deleted_sandbox_fails(own: Sandbox) -> None:
    context = own.create_code_context(cwd="/tmp")
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(context.run_code, "open('runs', 'w').close()\nimport time\ntime.sleep(1000)", 300)
        wait_for("the code runs", lambda: own.filesystem.exists("/tmp/runs"))
        own.delete()
        with pytest.raises(NotFoundError, match="was deleted while the code ran"):
            ran.result(RUN_SECONDS_MAX)


def test_sandboxes_draw_numbers_of_their_own(box: Sandbox, client: PandaStack) -> None:
    draw = "import numpy, random, uuid\nnumpy.random.random(), random.random(), str(uuid.uuid4())"
    with client.sandboxes.create(template="code-interpreter", ttl_seconds=600, metadata=RUN) as other:
        drawn = []
        for sandbox in (box, other):
            with sandbox.create_code_context() as context:
                assert value(context, IS_FORK) == "True"
                drawn.append(str(value(context, draw)).split(", "))
    assert all(mine != theirs for mine, theirs in zip(*drawn)), drawn


def test_a_new_context_imports_what_was_replaced(client: PandaStack) -> None:
    with client.sandboxes.create(template="code-interpreter", ttl_seconds=600, metadata=RUN) as made:
        with made.create_code_context() as before:
            where = value(before, "import pandas\npandas.__file__")
            made.filesystem.write(str(where), "__version__ = 'mine'\n")
            assert value(before, "import pandas\npandas.__version__") != "mine", "it keeps what it imported"
            with made.create_code_context() as after:
                assert value(after, "import pandas\npandas.__version__") == "mine"
                assert value(after, IS_FORK) == "False"


#: For each language: code that keeps 41, code that shows one more, and a random number.
LANGUAGES = {
    "javascript": ("let x = 41", "x + 1", "Math.random()"),
    "typescript": ("enum E { One = 1 }\nlet x: number = 41", "x + E.One", "Math.random()"),
    "bash": ("x=41; echo $RANDOM", "echo $((x + 1))", "echo $RANDOM $RANDOM"),
    "r": ("x <- 41; set.seed(1)", "cat(x + 1)", "runif(1)"),
    "java": ("int x = 41; Math.random()", "x + 1", "Math.random()"),
}


def test_contexts_of_every_language_are_copied_with_their_state(client: PandaStack) -> None:
    with client.sandboxes.create(template="code-interpreter", ttl_seconds=1800, metadata=RUN) as made:
        check_copies(made)


def check_copies(own: Sandbox) -> None:
    contexts = {language: own.create_code_context(language, cwd="/tmp") for language in LANGUAGES}
    drawn: Dict[str, List[Optional[str]]] = {language: [] for language in LANGUAGES}
    for language, (keep, _, _) in LANGUAGES.items():
        value(contexts[language], keep)
    own.hibernate()
    with own.fork() as child:
        for sandbox in (own, child):
            found = {context.id: context for context in sandbox.code_contexts()}
            for language, (_, show, draw) in LANGUAGES.items():
                context = found[contexts[language].id]
                assert (context.language, context.cwd, value(context, show)) == (language, "/tmp", "42")
                drawn[language].append(value(context, draw))
    assert all(mine != theirs for mine, theirs in drawn.values()), drawn


def test_a_language_without_its_program_is_refused(own: Sandbox) -> None:
    own.exec("mv /usr/local/bin/node /usr/local/bin/not-node", check=True)
    with pytest.raises(BadRequestError, match="JavaScript needs `node`, which is not in the sandbox; use the"):
        own.create_code_context("js")
    assert own.code_contexts() == []
