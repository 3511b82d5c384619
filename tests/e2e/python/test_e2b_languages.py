"""Languages and charts of the code interpreter, by E2B's unmodified client."""

from __future__ import annotations

from typing import Any, Iterator

import e2b_code_interpreter as interpreter
import pytest

from conftest import RUN
from test_e2b import TIMEOUT, feature


@pytest.fixture(scope="module")
def code() -> Iterator[interpreter.Sandbox]:
    made = interpreter.Sandbox.create(timeout=TIMEOUT, metadata=RUN)
    yield made
    made.kill()


#: Code that draws a chart, and what is found of it.
CHARTS = {
    "plt.plot([1, 2], [3, 4], label='a')\nplt.xlabel('Time (s)')": ("line", "a", [(1, 3), (2, 4)]),
    "plt.scatter([1, 2], [3, 4], label='b')\nplt.xlabel('Time (s)')": ("scatter", "b", [(1, 3), (2, 4)]),
    "plt.barh(['c', 'd'], [5, 5])": ("bar", "c", 5),
    "plt.pie([1, 3], labels=['e', 'f'])": ("pie", "e", 90),
    "plt.boxplot([1, 2, 3, 4, 5, 20], patch_artist=True, tick_labels=['g'])": ("box_and_whisker", "g", [20]),
}


@feature("code interpreter: charts", "lines, scatter plots, bars, pies, box plots and several axes as data")
def test_charts(code: interpreter.Sandbox) -> None:
    draw = "\n".join(f"plt.figure()\n{one}" for one in CHARTS)
    several = "figure, axes = plt.subplots(1, 2)\naxes[0].plot([1])\naxes[1].bar(['h'], [1])"
    program = f"import matplotlib.pyplot as plt\n{draw}\n{several}\nfigure.suptitle('Both');"
    ran = code.run_code(program, timeout=TIMEOUT)
    assert ran.error is None and all(result.png for result in ran.results), ran.error
    *found, both = [result.chart for result in ran.results]
    for chart, (kind, label, shown) in zip(found, CHARTS.values()):
        first: Any = chart.elements[0]
        values = [getattr(first, name, None) for name in ("points", "value", "angle", "outliers")]
        assert (chart.type.value, first.label) == (kind, label) and shown in values, chart
    assert (found[0].x_label, found[0].x_unit) == ("Time (s)", "s")
    assert (both.title, [chart.type.value for chart in both.elements]) == ("Both", ["line", "bar"])


@feature(
    "code interpreter: languages",
    "JavaScript, TypeScript, Bash, R and Java, with a default context of each",
)
def test_languages(code: interpreter.Sandbox) -> None:
    ran = code.run_code("import os from 'os'; const x = 41; console.log(os.platform()); [x]", language="js")
    assert (ran.results[0].text, ran.results[0].json, ran.logs.stdout) == ("[ 41 ]", [41], ["linux\n"])
    assert code.run_code("x + 1", language="javascript").text == "42"
    failed = code.run_code("null.x", language="js").error
    assert failed is not None and failed.name == "TypeError" and "<cell-" in failed.traceback
    typed = "enum E { One = 1 }\nconst n: number = await Promise.resolve<number>(41)"
    assert code.run_code(typed, language="ts").error is None
    assert code.run_code("n + E.One", language="typescript").text == "42"
    assert code.run_code("x=41; cd /srv; sh -c 'echo err >&2'", language="bash").logs.stderr == ["err\n"]
    assert code.run_code("echo $PWD $((x + 1))", language="bash").logs.stdout == ["/srv 42\n"]
    failed = code.run_code("echo before; exit_status() { return 3; }; exit_status", language="bash")
    assert failed.error is not None and failed.error.value == "3"
    check_r(code)
    check_java(code)
    context = code.create_code_context(language="javascript", cwd="/tmp")
    assert context.language == "javascript"
    assert code.run_code("process.cwd() + typeof x", context=context).text == "/tmpundefined"
    with pytest.raises(Exception, match="language `cobol` is not supported"):
        code.run_code("1", language="cobol")


def check_r(code: interpreter.Sandbox) -> None:
    ran = code.run_code("print('Hello'); x <- 41; getwd()", language="r", timeout=TIMEOUT)
    assert (ran.logs.stdout, ran.text) == (['[1] "Hello"\n'], '[1] "/home/user"')
    shown = "data.frame(a = x + 1)\nplot(x)\nSys.getenv('MINE')"
    ran = code.run_code(shown, envs={"MINE": "m"}, language="r")
    table, text, plot = ran.results
    assert "<td>42</td>" in (table.html or "") and text.text == '[1] "m"' and plot.png, ran
    failed = code.run_code("f <- function() stop('no')\nf()", language="r").error
    assert failed is not None and failed.value == "no" and "f() at <cell-3>#2" in failed.traceback, failed
    with pytest.raises(Exception):
        code.run_code("repeat {}", language="r", timeout=3)
    assert code.run_code("x", language="r", timeout=60).text == "[1] 41"


def check_java(code: interpreter.Sandbox) -> None:
    ran = code.run_code('System.out.println("Hello"); int x = 41;', language="java", timeout=TIMEOUT)
    assert (ran.logs.stdout[0], ran.error) == ("Hello", None)
    assert code.run_code("x + 1", language="java", timeout=60).text == "42"
    mine = 'System.getProperty("MINE", "none") + System.getProperty("user.dir")'
    assert code.run_code(mine, envs={"MINE": "m"}, language="java", timeout=60).text == "m/home/user"
    assert code.run_code(mine, language="java", timeout=60).text == "none/home/user"
    failed = code.run_code("int y = 1;\nint z = y / 0;", language="java", timeout=60).error
    assert failed is not None and failed.name == "java.lang.ArithmeticException", failed
    with pytest.raises(Exception):
        code.run_code("while (true) x = 41;", language="java", timeout=3)
    assert code.run_code("x", language="java", timeout=60).text == "41"
