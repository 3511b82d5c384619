"""Every exception this package raises on purpose.

One tree under :class:`PandaStackError`, so ``except PandaStackError`` is always enough. What must
hold: an error made from a server's answer carries its ``status``, ``code`` and ``request_id``, and
its text ends with a ``hint:`` line whenever there is a next step to name. Turning a status into a
class happens in :func:`error_from_response` and nowhere else.
"""

from __future__ import annotations

import builtins
import json
from typing import Any, Dict, Mapping, Optional, Type

from ._retry_after import parse_retry_after

#: An error body longer than this is cut before it is read as JSON or shown.
ERROR_BODY_BYTES_MAX = 1024 * 1024
#: Longest excerpt shown of a body that is not our JSON envelope, such as a proxy's HTML page.
FOREIGN_BODY_CHARS_MAX = 300


class PandaStackError(Exception):
    """Base of every error of this package.

    ``status`` is the HTTP status, ``code`` the server's stable error code, ``request_id`` the id
    to quote to an operator, ``hint`` the next step; each is ``None`` where there is none.
    ``retry_after_seconds`` is the server's ``Retry-After``.
    """

    def __init__(
        self,
        message: str,
        *,
        status: Optional[int] = None,
        code: Optional[str] = None,
        request_id: Optional[str] = None,
        hint: Optional[str] = None,
        retry_after_seconds: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.request_id = request_id
        self.hint = hint
        self.retry_after_seconds = retry_after_seconds

    @property
    def status_code(self) -> Optional[int]:
        """Alias of ``status``."""
        return self.status

    def __str__(self) -> str:
        labels = [
            f"{name} {value}"
            for name, value in (
                ("status", self.status),
                ("code", self.code),
                ("request", self.request_id),
            )
            if value is not None
        ]
        text = self.message + (f" ({', '.join(labels)})" if labels else "")
        return f"{text}\nhint: {self.hint}" if self.hint else text


#: Spelling used by earlier releases.
PandastackError = PandaStackError


class BadRequestError(PandaStackError):
    """The request is invalid: a 4xx status, or this client refused to send it."""


class ArgumentTypeError(BadRequestError, TypeError):
    """An argument has the wrong type. Nothing was sent."""


class AuthError(PandaStackError):
    """The API key is missing, invalid, expired or not allowed to do this."""


class PermissionDeniedError(AuthError, BadRequestError):
    """The API key is valid but does not allow this (403)."""


class NotFoundError(PandaStackError):
    """The sandbox, snapshot, template, token or path does not exist (404)."""


class ConflictError(BadRequestError):
    """The state of the resource does not allow this (409)."""


class RateLimitError(BadRequestError):
    """Too many requests, or a quota is reached (429)."""


class ServerError(PandaStackError):
    """The server failed (5xx), or its response cannot be read."""


class CapacityError(ServerError):
    """No host has room for another machine (503 with ``Retry-After``, or 507)."""


class APIConnectionError(PandaStackError):
    """The server is unreachable, or the connection broke before the response was complete."""


#: Name used by earlier releases; shadows the builtin only where it is imported by name.
ConnectionError = APIConnectionError


class RequestTimeout(APIConnectionError, builtins.TimeoutError):
    """The server did not respond within the time limit of the call."""


class SandboxTimeout(PandaStackError, builtins.TimeoutError):
    """A command exceeded its ``timeout_seconds`` and was killed."""


class ExecInterrupted(PandaStackError):
    """The stream of a command ended before its exit code arrived; the command may still run.

    ``partial_stdout`` and ``partial_stderr`` hold the end of what had arrived.
    """

    def __init__(self, message: str, *, partial_stdout: str = "", partial_stderr: str = "") -> None:
        super().__init__(message, hint="check the sandbox's status; run the command again if it is safe to repeat")
        self.partial_stdout = partial_stdout
        self.partial_stderr = partial_stderr


class CommandFailed(PandaStackError):
    """A command run with ``check=True`` exited non-zero."""

    def __init__(self, message: str, *, exit_code: int, stdout: str = "", stderr: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class TemplateBuildError(PandaStackError):
    """A template build failed; ``build`` is its last state."""

    def __init__(self, message: str, *, build: object = None) -> None:
        super().__init__(message)
        self.build = build


class FunctionDeployError(PandaStackError):
    """A function's code could not be deployed; the message says why."""


_CLASS_BY_STATUS: Dict[int, Type[PandaStackError]] = {
    401: AuthError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    429: RateLimitError,
    507: CapacityError,
}

_HINT_BY_CODE = {
    "template_baking": "the template is being built for its first use; retry when it is ready",
}

_HINT_BY_STATUS = {
    401: "set PANDASTACK_API_KEY or pass api_key=; `pandastack up` writes a working key to ~/.config/pandastack/config.json",
    403: "use a key of the workspace that owns the resource",
    429: "wait and retry, or delete sandboxes that are no longer needed",
    501: "this server does not offer this feature",
    507: "delete snapshots and hibernated sandboxes to free disk space, and see `pandastack doctor`",
}

_TIMEOUT_PHRASES = ("timeout", "timed out", "deadline exceeded")


def is_timeout_message(message: str) -> bool:
    """Whether a server's sentence says that a command ran out of time."""
    lowered = message.lower()
    # "i/o timeout" is a network failure on the way to the guest, not the command's own limit.
    return "i/o timeout" not in lowered and any(phrase in lowered for phrase in _TIMEOUT_PHRASES)


def _envelope(body: bytes) -> Dict[str, Any]:
    try:
        parsed = json.loads(body[:ERROR_BODY_BYTES_MAX].decode("utf-8", "replace"))
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) and value else None


def _message(envelope: Mapping[str, Any], body: bytes, status: int, what: str) -> str:
    for key in ("error", "message", "detail"):
        value = envelope.get(key)
        if value:
            sentence = value if isinstance(value, str) else json.dumps(value)
            return f"{what}: {sentence}"
    foreign = body.decode("utf-8", "replace").strip()[:FOREIGN_BODY_CHARS_MAX]
    return f"{what}: HTTP {status}" + (f": {foreign}" if foreign else "")


def error_from_response(
    status: int, headers: Mapping[str, str], body: bytes, *, what: str, is_command: bool = False
) -> PandaStackError:
    """The typed error of a non-2xx answer. ``what`` names the call, e.g. ``POST /v1/sandboxes``."""
    envelope = _envelope(body)
    retry_after_seconds = parse_retry_after(headers.get("retry-after"))
    message = _message(envelope, body, status, what)
    code = _text(envelope.get("code"))
    kind = _CLASS_BY_STATUS.get(status)
    if kind is None:
        kind = BadRequestError if status < 500 else ServerError
    # A 503 counts as "try again" only with both marks: proxies answer bare 503s of their own.
    if status == 503 and retry_after_seconds is not None and _text(envelope.get("error")):
        kind = CapacityError
    if is_command and status >= 500 and (code == "exec_timeout" or is_timeout_message(message)):
        kind = SandboxTimeout
    hint = _text(envelope.get("hint")) or _HINT_BY_CODE.get(code or "") or _HINT_BY_STATUS.get(status)
    return kind(
        message,
        status=status,
        code=code,
        request_id=_text(envelope.get("request_id")) or headers.get("x-request-id"),
        hint=hint,
        retry_after_seconds=retry_after_seconds,
    )
