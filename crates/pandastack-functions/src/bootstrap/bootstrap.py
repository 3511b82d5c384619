"""Runs a Python function: imports its handler, then answers calls from the runtime API until the machine ends.

What `_HANDLER` may name:

    module.function     called as function(event, context), as on AWS Lambda
    file.py:function    the same
    file.py             its `handler`, `lambda_handler`, `fetch(request)` or ASGI `app`; a file that defines none of them
                        is a script: run for each call, the event on standard input, JSON on standard output

Requests are written to the socket by hand, and an answer goes out together with the question for the next call: under
emulation the standard library's HTTP client alone would take longer than most handlers. For the same reason what few
handlers need is imported where it is used: a deploy waits for every module.
"""

import ast
import collections.abc
import gc
import importlib
import io
import json
import os
import resource
import socket
import sys
import threading
import time
import types

START = "/2018-06-01/runtime/"
CALLABLE_NAMES = ("handler", "lambda_handler", "fetch", "app", "application")
#: Bytes of a script's output that can be its answer. Beyond it the call fails.
SCRIPT_OUTPUT_MAX = 6 * 1024 * 1024


class Api:
    """One connection to the runtime API."""

    def __init__(self):
        host, port = os.environ["AWS_LAMBDA_RUNTIME_API"].rsplit(":", 1)
        self.host = host
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = b""
        self.ask_next = f"GET {START}invocation/next HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()

    def post(self, path, body, extra="", then_next=False):
        # Cheaper to say than for the runtime to find out.
        peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        head = (
            f"POST {START}{path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(body)}\r\n"
            f"Pandastack-Memory-Peak-Kb: {peak_kb}\r\n{extra}\r\n"
        )
        self.socket.sendall(head.encode() + body + (self.ask_next if then_next else b""))
        return self.read()

    def read(self):
        """Headers, with names in small letters, and the body of one answer."""
        while (end := self.pending.find(b"\r\n\r\n")) < 0:
            self.receive()
        lines = self.pending[:end].decode("latin-1").split("\r\n")
        self.pending = self.pending[end + 4 :]
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        while len(self.pending) < length:
            self.receive()
        body, self.pending = self.pending[:length], self.pending[length:]
        return headers, body

    def receive(self):
        part = self.socket.recv(1 << 16)
        if not part:
            # The runtime ends with the machine, or because a call took too long.
            os._exit(0)
        self.pending += part

    def stream(self, path, parts, content_type, then_next=True):
        """Answers in parts, as they come."""
        head = (
            f"POST {START}{path} HTTP/1.1\r\nHost: {self.host}\r\nTransfer-Encoding: chunked\r\n"
            f"Lambda-Runtime-Function-Response-Mode: streaming\r\nContent-Type: {content_type}\r\n"
            "Trailer: Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body\r\n\r\n"
        )
        self.socket.sendall(head.encode())
        trailer = b""
        try:
            for part in parts:
                if part:
                    self.socket.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        except Exception as error:
            print_failure()
            trailer = f"Lambda-Runtime-Function-Error-Type: {type(error).__name__}\r\n".encode()
        sys.stdout.flush()
        self.socket.sendall(b"0\r\n" + trailer + b"\r\n" + (self.ask_next if then_next else b""))
        return self.read()


def print_failure():
    import traceback

    traceback.print_exc()


class Context:
    """The context of a call, for the handler."""

    def __init__(self, headers):
        environ = os.environ
        self.aws_request_id = headers.get("lambda-runtime-aws-request-id", "")
        self.invoked_function_arn = headers.get("lambda-runtime-invoked-function-arn", "")
        self.function_name = environ.get("AWS_LAMBDA_FUNCTION_NAME", "")
        self.function_version = environ.get("AWS_LAMBDA_FUNCTION_VERSION", "")
        self.memory_limit_in_mb = environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")
        self.log_group_name = environ.get("AWS_LAMBDA_LOG_GROUP_NAME", self.function_name)
        self.log_stream_name = environ.get("AWS_LAMBDA_LOG_STREAM_NAME", self.aws_request_id)
        self.attempt = int(headers.get("pandastack-attempt", 1) or 1)
        self.identity = self.client_context = self.tenant_id = None
        self.deadline_ms = int(headers.get("lambda-runtime-deadline-ms", 0) or 0)

    def get_remaining_time_in_millis(self):
        return max(0, self.deadline_ms - int(time.time() * 1000))


def decoded(text):
    import base64

    return base64.b64decode(text)


class Request:
    """An HTTP request, for handlers in `fetch` style."""

    def __init__(self, event):
        http = event.get("requestContext", {}).get("http", {})
        self.method = http.get("method", "POST")
        self.path = event.get("rawPath", "/")
        self.query_string = event.get("rawQueryString", "")
        self.headers = dict(event.get("headers", {}))
        cookies = event.get("cookies") or []
        if cookies:
            self.headers["cookie"] = "; ".join(cookies)
        domain = event.get("requestContext", {}).get("domainName", "localhost")
        scheme = self.headers.get("x-forwarded-proto", "http")
        query = f"?{self.query_string}" if self.query_string else ""
        self.url = f"{scheme}://{domain}{self.path}{query}"
        body = event.get("body") or ""
        self.body = decoded(body) if event.get("isBase64Encoded") else body.encode()
        self.event = event

    @property
    def query(self):
        import urllib.parse

        return dict(urllib.parse.parse_qsl(self.query_string, keep_blank_values=True))

    def text(self):
        return self.body.decode()

    def json(self):
        return json.loads(self.body)


class Response:
    """An HTTP answer, for handlers in `fetch` style: Response(body, status, headers)."""

    def __init__(self, body="", status=200, headers=None):
        self.body, self.status, self.headers = body, status, dict(headers or {})


def http_answer(value):
    """Whatever a `fetch` handler returned, as an answer of payload 2.0."""
    if isinstance(value, tuple):
        value = Response(value[-1], value[0], value[1] if len(value) > 2 else None)
    if not isinstance(value, Response):
        if isinstance(value, dict) and "statusCode" in value:
            return value
        kind = "application/json" if isinstance(value, (dict, list)) else "text/plain; charset=utf-8"
        value = Response(json.dumps(value) if isinstance(value, (dict, list)) else value or "", 200, {"content-type": kind})
    headers = {str(name).lower(): str(text) for name, text in value.headers.items()}
    answer = {"statusCode": value.status, "headers": headers}
    if isinstance(value.body, (bytes, bytearray)):
        import base64

        answer["body"], answer["isBase64Encoded"] = base64.b64encode(value.body).decode(), True
    else:
        answer["body"] = value.body if isinstance(value.body, str) else str(value.body)
    return answer


def as_request(event, headers):
    """A direct call of a `fetch` handler is a POST of its event."""
    if headers.get("pandastack-http") == "1" or (isinstance(event, dict) and "requestContext" in event):
        return Request(event)
    return Request({"headers": {"content-type": "application/json"}, "rawPath": "/", "body": json.dumps(event)})


def run_coroutine(value):
    if isinstance(value, collections.abc.Awaitable):
        import asyncio

        async def wait():
            return await value

        return asyncio.run(wait())
    return value


def asgi(app):
    """An ASGI application as a `fetch` handler."""
    import urllib.parse

    async def call(request):
        parsed = urllib.parse.urlsplit(request.url)
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method,
            "scheme": parsed.scheme, "path": urllib.parse.unquote(request.path), "raw_path": request.path.encode(),
            "query_string": request.query_string.encode(), "root_path": "", "server": (parsed.hostname, parsed.port or 80),
            "client": ("127.0.0.1", 0),
            "headers": [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in request.headers.items()],
        }
        sent, body = {}, bytearray()
        incoming = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive():
            return incoming.pop() if incoming else {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.start":
                sent.update(message)
            elif message["type"] == "http.response.body":
                body.extend(message.get("body", b""))

        await app(scope, receive, send)
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in sent.get("headers", [])}
        return Response(bytes(body), sent.get("status", 500), headers)

    return call


def script(path):
    """A file without a handler: each call runs it in a copy of this process."""
    import runpy

    with open(path, encoding="utf-8") as source:
        tree = ast.parse(source.read(), path)
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            try:
                # Copies share what was imported before.
                importlib.import_module(name)
            except Exception:
                pass

    def call(event, context):
        read_side, write_side = os.pipe()
        given = os.memfd_create("event")
        text = json.dumps(event).encode()
        os.write(given, text)
        os.lseek(given, 0, os.SEEK_SET)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(read_side)
                os.dup2(given, 0)
                os.dup2(write_side, 1)
                sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False), encoding="utf-8")
                sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding="utf-8", line_buffering=True)
                sys.argv = [path]
                if len(text) < 100_000:
                    os.environ["PANDASTACK_INPUT"] = text.decode()
                runpy.run_path(path, run_name="__main__")
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            except BaseException:
                print_failure()
            finally:
                try:
                    sys.stdout.flush()
                finally:
                    os._exit(code)
        os.close(write_side)
        os.close(given)
        output = bytearray()
        while part := os.read(read_side, 1 << 16):
            os.write(1, part)
            if len(output) <= SCRIPT_OUTPUT_MAX:
                output += part
        os.close(read_side)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            raise ScriptFailed(f"the script exited with {code}")
        if len(output) > SCRIPT_OUTPUT_MAX:
            raise ScriptFailed(f"the script printed more than {SCRIPT_OUTPUT_MAX} bytes")
        text = output.decode(errors="replace").strip()
        for candidate in (text, text.rsplit("\n", 1)[-1]):
            try:
                return json.loads(candidate)
            except ValueError:
                pass
        return text

    return call


class ScriptFailed(Exception):
    """A script ended with an error of its own."""


def find():
    """The handler, and whether it is in `fetch` style."""
    root, entrypoint = os.environ["LAMBDA_TASK_ROOT"], os.environ["_HANDLER"]
    sys.path.insert(0, root)
    file, _, name = entrypoint.partition(":")
    if file.endswith(".py"):
        path = os.path.join(root, file)
        if not os.path.isfile(path):
            raise ImportError(f"the bundle has no file {file!r}")
        if not name:
            with open(path, encoding="utf-8") as source:
                tree = ast.parse(source.read(), path)
            defined = set()
            for node in tree.body:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    defined.add(node.name)
                elif isinstance(node, ast.Assign):
                    defined.update(target.id for target in node.targets if isinstance(target, ast.Name))
                elif isinstance(node, (ast.Import, ast.ImportFrom)):
                    defined.update(alias.asname or alias.name for alias in node.names)
            name = next((known for known in CALLABLE_NAMES if known in defined), "")
            if not name:
                return script(path), False
        module = file[: -len(".py")].replace("/", ".")
    else:
        module, _, name = entrypoint.rpartition(".")
        module = module.replace("/", ".")
        if not module:
            raise ImportError(f"the entrypoint {entrypoint!r} is neither a file nor module.function")
    found = importlib.import_module(module)
    if not hasattr(found, name):
        raise AttributeError(f"module {module!r} has no {name!r}")
    handler = getattr(found, name)
    if name in ("app", "application"):
        return asgi(handler), True
    return handler, name == "fetch"


def reseed():
    """A copy must not draw the random numbers of its siblings."""
    import random

    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if ssl := sys.modules.get("ssl"):
        ssl.RAND_add(os.urandom(64), 64.0)


seeded_for = ""
seeding = threading.Lock()


def is_stream(value):
    return isinstance(value, (types.GeneratorType, io.IOBase))


def encoded(parts, head=None):
    if head is not None:
        yield json.dumps(head).encode() + b"\0" * 8
    for part in parts:
        yield part if isinstance(part, (bytes, bytearray)) else str(part).encode()


def stream(api, path, value, fetch):
    if isinstance(value, Response) or fetch:
        response = value if isinstance(value, Response) else Response(value)
        head = {"statusCode": response.status, "headers": response.headers}
        return api.stream(path, encoded(response.body, head), "application/vnd.awslambda.http-integration-response")
    return api.stream(path, encoded(value), "application/octet-stream")


def failure(error, request_id):
    import traceback

    stack = traceback.format_list(traceback.extract_tb(error.__traceback__)[1:])
    return json.dumps(
        {
            "errorMessage": str(error), "errorType": type(error).__name__,
            "stackTrace": [] if isinstance(error, ScriptFailed) else stack, "requestId": request_id,
        }
    ).encode()


def serve(handler, fetch):
    global seeded_for
    api = Api()
    api.socket.sendall(api.ask_next)
    while True:
        headers, body = api.read()
        request_id = headers.get("lambda-runtime-aws-request-id")
        if request_id is None:
            continue
        instance = headers.get("pandastack-instance", "")
        if instance != seeded_for:
            with seeding:
                if instance != seeded_for:
                    reseed()
                    seeded_for = instance
        path = f"invocation/{request_id}"
        try:
            event = json.loads(body) if body else None
            if fetch:
                value = run_coroutine(handler(as_request(event, headers)))
                streams = is_stream(value) or (isinstance(value, Response) and is_stream(value.body))
                value = value if streams else http_answer(value)
            else:
                value = run_coroutine(handler(event, Context(headers)))
                streams = is_stream(value)
            if streams:
                stream(api, path + "/response", value, fetch)
                continue
            answer = json.dumps(value, ensure_ascii=False).encode()
            sys.stdout.flush()
        except Exception as error:
            print_failure()
            sys.stdout.flush()
            sys.stderr.flush()
            api.post(path + "/error", failure(error, request_id), then_next=True)
            continue
        api.post(path + "/response", answer, then_next=True)


def main():
    sys.stdout.reconfigure(line_buffering=True)
    try:
        handler, fetch = find()
    except BaseException as error:
        print_failure()
        Api().post("init/error", failure(error, ""))
        sys.exit(1)
    # Existing objects are in every copy; looking through them for garbage would only make pages differ.
    gc.collect()
    gc.freeze()
    for _ in range(int(os.environ.get("PANDASTACK_CONCURRENCY", "1")) - 1):
        threading.Thread(target=serve, args=(handler, fetch), daemon=True).start()
    serve(handler, fetch)


if __name__ == "__main__":
    sys.modules["pandastack_function"] = sys.modules["__main__"]
    main()
