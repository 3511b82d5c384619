"""Runs Python code. The lines in and out are those of `wire.py`, which is the first part of this program;
`charts.py` is the second one.

Executions take turns and share one namespace. Nothing outside of Python's own library is needed.
"""

import ast
import asyncio
import builtins
import inspect
import io
import linecache
import subprocess
import sys
import traceback

REPRESENTATIONS = {
    "html": "_repr_html_",
    "markdown": "_repr_markdown_",
    "svg": "_repr_svg_",
    "png": "_repr_png_",
    "jpeg": "_repr_jpeg_",
    "pdf": "_repr_pdf_",
    "latex": "_repr_latex_",
    "json": "_repr_json_",
    "javascript": "_repr_javascript_",
}
MIME_FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
}


class Stream(io.TextIOBase):
    """Replaces `sys.stdout` and `sys.stderr`. Sends whole lines, and the rest when it is flushed."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, wire, name, fd):
        self.wire, self.name, self.fd = wire, name, fd
        self.buffer = open(fd, "wb", 0, closefd=False)
        self.held, self.lock = "", threading.RLock()

    def writable(self):
        return True

    def isatty(self):
        return False

    def fileno(self):
        return self.fd

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self.lock:
            lines, end, rest = (self.held + text).rpartition("\n")
            self.held = rest
            self.tell(lines + end)
            if len(rest) > TEXT_CHARS_MAX:
                self.flush()
        return len(text)

    def flush(self):
        with self.lock:
            held, self.held = self.held, ""
            self.tell(held)

    def tell(self, text):
        for start in range(0, len(text), TEXT_CHARS_MAX):
            self.wire.send(self.name, text=text[start:start + TEXT_CHARS_MAX], timestamp=time.time_ns())


def representations(value):
    """An object in every form that it offers."""
    fields = {}
    try:
        fields["text"] = value if isinstance(value, str) else repr(value)
    except Exception as error:
        fields["text"] = f"<{type(value).__name__}, whose repr failed: {error}>"
    for field, method in REPRESENTATIONS.items():
        found = None if isinstance(value, type) else getattr(value, method, None)
        if not callable(found):
            continue
        try:
            data = found()
        except Exception:
            continue
        data = data[0] if isinstance(data, tuple) else data
        if data is not None:
            fields[field] = encoded(data)
    bundle = None if isinstance(value, type) else getattr(value, "_repr_mimebundle_", None)
    if callable(bundle):
        try:
            data = bundle()
            data = data[0] if isinstance(data, tuple) else data
            fields.update({MIME_FIELDS[kind]: encoded(part) for kind, part in data.items() if kind in MIME_FIELDS})
        except Exception:
            pass
    # A module of the user's own may have that name.
    if isinstance(value, getattr(sys.modules.get("pandas"), "DataFrame", ())):
        fields["data"] = json.loads(value.to_json(orient="columns", date_format="iso", default_handler=str))
        fields["data"] = {column: list(cells.values()) for column, cells in fields["data"].items()}
    return fields


def encoded(data):
    return base64.b64encode(data).decode("ascii") if isinstance(data, bytes) else data


class Machine:
    """Whose memory this is. A copy of a machine would draw the random numbers that its original and its siblings draw."""

    def __init__(self):
        # Also the first run draws afresh: the interpreter may be a fork of one that other machines have, too.
        self.known = [""] * len(MACHINE_FILES)

    def refresh(self):
        """Gives the generators that were loaded new seeds, where the memory went on as something else."""
        found = machine()
        if found == self.known:
            return
        is_another_sandbox = found[0] != self.known[0]
        self.known = found
        # Also after a sleep or a rollback: secrets come from it, and there may be a snapshot of what it was.
        self.reseed("ssl", lambda ssl: ssl.RAND_add(os.urandom(64), 64.0))
        # The same sandbox keeps the seeds that its code chose.
        for name in ("random", "numpy.random", "torch") if is_another_sandbox else ():
            self.reseed(name, lambda module: module.seed())

    @staticmethod
    def reseed(name, seed):
        try:
            if name in sys.modules:
                seed(sys.modules[name])
        except Exception:
            # A module of the user's own may have that name; the code that is to run has nothing to do with it.
            pass


class Kernel:
    def __init__(self):
        self.machine = Machine()
        self.wire = Wire()
        self.requests = Requests(self.wire)
        self.catchers = [Catcher(self.wire, name, fd) for name, fd in (("stdout", 1), ("stderr", 2))]
        sys.stdin = open(0, closefd=False)
        sys.stdout, sys.stderr = Stream(self.wire, "stdout", 1), Stream(self.wire, "stderr", 2)
        # A function, not a method: choosing a backend sets the signature of `pyplot.show`.
        self.show = lambda *_, **__: self.show_figures()
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.count = 0
        main = type(sys)("__main__")
        sys.modules["__main__"] = main
        self.names = main.__dict__
        self.names.update(__builtins__=builtins, display=self.display, __shell__=self.shell)
        sys.path.insert(0, "")

    def display(self, *values):
        for value in values:
            self.wire.send("result", is_main_result=False, **representations(value))

    @staticmethod
    def shell(command):
        subprocess.run(command, shell=True)

    def serve(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while (request := self.requests.next()) is not None:
            self.wire.current = request["run"]
            self.count += 1
            self.wire.send("started", execution_count=self.count)
            self.run_one(request)
            sys.stdout.flush()
            sys.stderr.flush()
            for catcher in self.catchers:
                catcher.settle()
            self.wire.send("ended")
            self.wire.current = None

    def run_one(self, request):
        before = dict(os.environ)
        os.environ.update(request.get("env") or {})
        try:
            self.machine.refresh()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.execute(request["code"])
            self.show_figures()
        except BaseException as error:
            self.tell(error)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if request.get("env"):
                os.environ.clear()
                os.environ.update(before)

    @staticmethod
    def dedented(code):
        """As notebooks do: what the first line of code is indented by goes from every line that begins with it."""
        lines = code.split("\n")
        first = next((line for line in lines if line.strip()), "")
        indent = first[:len(first) - len(first.lstrip(" \t"))]
        return "\n".join(line.removeprefix(indent) for line in lines) if indent else code

    def execute(self, code):
        name = f"<cell {self.count}>"
        code = self.dedented(code)
        tree = self.parse(code, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        self.patch_show()
        self.evaluate(tree, name, "exec")
        if last is not None:
            value = self.evaluate(last, name, "eval")
            self.patch_show()
            if value is not None:
                self.names["_"] = value
                if not self.is_drawn(value):
                    self.wire.send("result", is_main_result=True, **representations(value))

    def parse(self, code, name):
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            return ast.parse(code, name)
        except SyntaxError:
            translated = "\n".join(self.magic(line) for line in code.split("\n"))
            if translated == code:
                raise
            return ast.parse(translated, name)

    @staticmethod
    def magic(line):
        """`!command` and `%pip ...`, as notebooks know them."""
        text = line.lstrip()
        indent = line[:len(line) - len(text)]
        if text.startswith("!"):
            return f"{indent}__shell__({text[1:]!r})"
        if text.startswith("%pip "):
            return f"{indent}__shell__({'python3 -m ' + text[1:]!r})"
        return line

    def evaluate(self, tree, name, mode):
        program = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(program, self.names)
        if program.co_flags & inspect.CO_COROUTINE:
            value = self.loop.run_until_complete(value)
        return value

    def tell(self, error):
        here = error.__traceback__
        while here is not None and not here.tb_frame.f_code.co_filename.startswith("<cell "):
            here = here.tb_next
        text = "".join(traceback.format_exception(type(error), error, here))
        self.wire.send("error", name=type(error).__name__, value=str(error), traceback=text)

    def patch_show(self):
        plots = sys.modules.get("matplotlib.pyplot")
        if plots is not None and plots.show is not self.show:
            plots.show = self.show

    @staticmethod
    def is_drawn(value):
        """A figure is shown as a picture by itself."""
        figures = sys.modules.get("matplotlib.figure")
        return figures is not None and isinstance(value, figures.Figure)

    def show_figures(self):
        plots = sys.modules.get("matplotlib.pyplot")
        for number in plots.get_fignums() if plots is not None else []:
            figure = plots.figure(number)
            picture = io.BytesIO()
            figure.savefig(picture, format="png", bbox_inches="tight")
            fields = {"text": repr(figure), "png": encoded(picture.getvalue())}
            chart = chart_of(figure)
            self.wire.send("result", is_main_result=False, **fields, **({"chart": chart} if chart else {}))
            plots.close(figure)


Kernel().serve()
