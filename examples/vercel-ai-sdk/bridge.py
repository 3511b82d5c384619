"""Runs code that may call tools of whoever started it. Standard input and output are the bridge: one JSON object a line.

In:  {"code": str, "tools": [names]}, then {"result": any} or {"error": str}, one for each call
Out: {"call": name, "arguments": {}}, and at the end {"printed": str, "error": str or null}
"""

import contextlib
import io
import json
import os
import sys
import traceback
import types

PRINTED_CHARS_MAX = 20_000

bridge = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what programs started by the code print must not look like a line of ours


def tell(**message):
    bridge.write(json.dumps(message) + "\n")


def tool(name):
    def call(**arguments):
        tell(call=name, arguments=arguments)
        answer = json.loads(sys.stdin.readline())
        if "error" in answer:
            raise RuntimeError(f"{name}: {answer['error']}")
        return answer["result"]

    return call


request = json.loads(sys.stdin.readline())
tools = types.SimpleNamespace(**{name: tool(name) for name in request["tools"]})
printed, error = io.StringIO(), None
with contextlib.redirect_stdout(printed):
    try:
        exec(compile(request["code"], "<program>", "exec"), {"__name__": "__main__", "tools": tools, "json": json})
    except BaseException as raised:
        # Without our own line above those of the program.
        error = "".join(traceback.format_exception(type(raised), raised, raised.__traceback__.tb_next))
tell(printed=printed.getvalue()[:PRINTED_CHARS_MAX], error=error)
