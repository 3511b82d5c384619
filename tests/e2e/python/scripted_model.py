"""A stand-in for a model's API, run inside a sandbox: it lets a coding agent carry out a script.

The agent is real, its answers are scripted. A conversation with tools is asked to run one command after the
other; the number of results in it says which is next. After the last one the model repeats what the command
printed, so an agent that runs nothing, or that returns something else, cannot print the right text.

It speaks what the agents speak: Anthropic's Messages and OpenAI's Responses, streamed. Usage:
``scripted_model.py PORT COMMANDS``, where COMMANDS is a JSON file with a list of shell commands.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

#: Tools that run a command, and their parameter for it.
SHELLS = {"Bash": "command", "bash": "command", "exec_command": "cmd"}
#: Parameters that are required besides the command.
MORE = {"Bash": {"description": "Run the next step"}, "bash": {}, "exec_command": {}}

Event = Tuple[str, Dict[str, Any]]


def text_of(content: Any) -> str:
    """The text of a message or result, in any of the forms that it has."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(text_of(part) for part in content)
    return text_of(content.get("text", "")) if isinstance(content, dict) else ""


def shell_of(tools: List[Dict[str, Any]]) -> Optional[str]:
    return next((tool["name"] for tool in tools if tool.get("name") in SHELLS), None)


def next_step(
    tools: List[Dict[str, Any]], results: List[str], commands: List[str]
) -> Tuple[Optional[str], Any]:
    """The tool to call and its input, or no tool and the text to end with."""
    shell = shell_of(tools)
    if shell is None:
        return None, "A title"
    if len(results) < len(commands):
        return shell, {SHELLS[shell]: commands[len(results)], **MORE[shell]}
    return None, f"The last command printed: {results[-1].strip()}"


def messages(request: Dict[str, Any], commands: List[str]) -> Iterator[Event]:
    """The answer to a request for Anthropic's Messages."""
    blocks = [block for message in request["messages"] if isinstance(message["content"], list)
              for block in message["content"]]
    results = [text_of(block.get("content")) for block in blocks if block["type"] == "tool_result"]
    tool, step = next_step(request.get("tools", []), results, commands)
    usage = {"input_tokens": 1, "output_tokens": 1}
    yield "message_start", {"message": {
        "id": f"msg_{len(results)}", "type": "message", "role": "assistant", "model": request["model"],
        "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage,
    }}
    if tool:
        block = {"type": "tool_use", "id": f"toolu_{len(results)}", "name": tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(step)}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": step}
    yield "content_block_start", {"index": 0, "content_block": block}
    yield "content_block_delta", {"index": 0, "delta": delta}
    yield "content_block_stop", {"index": 0}
    reason = {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None}
    yield "message_delta", {"delta": reason, "usage": usage}
    yield "message_stop", {}


def responses(request: Dict[str, Any], commands: List[str]) -> Iterator[Event]:
    """The answer to a request for OpenAI's Responses."""
    outputs = [item for item in request["input"] if item["type"] == "function_call_output"]
    # Codex puts the command's exit code and time before what it printed.
    results = [text_of(item["output"]).rpartition("Output:")[2] for item in outputs]
    tool, step = next_step(request.get("tools", []), results, commands)
    if tool:
        call = {"call_id": f"call_{len(results)}", "name": tool, "arguments": json.dumps(step)}
        item = {"type": "function_call", "id": f"fc_{len(results)}", **call}
    else:
        text = {"type": "output_text", "text": step, "annotations": []}
        item = {"type": "message", "id": f"msg_{len(results)}", "role": "assistant", "content": [text]}
    head = {"id": f"resp_{len(results)}", "object": "response", "model": request["model"]}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    yield "response.created", {"response": {**head, "status": "in_progress", "output": []}}
    yield "response.output_item.added", {"output_index": 0, "item": item}
    yield "response.output_item.done", {"output_index": 0, "item": item}
    done = {**head, "status": "completed", "output": [item], "usage": usage}
    yield "response.completed", {"response": done}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    commands: List[str] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answers = {"/v1/messages": messages, "/v1/responses": responses}
        answer = answers.get(self.path.partition("?")[0])
        if answer is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for name, event in answer(request, self.commands):
            self.wfile.write(f"event: {name}\ndata: {json.dumps({'type': name, **event})}\n\n".encode())

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged."""


if __name__ == "__main__":
    Handler.commands = json.loads(Path(sys.argv[2]).read_text())
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
