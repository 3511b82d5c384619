"""Reading fields of the server's JSON."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from .errors import ServerError


#: Fields of records that hold a password or a token.
_SECRET = frozenset({"password", "connection_url", "pooled_url", "broker_token"})


class SecretRecord(Dict[str, Any]):
    """A record whose secrets do not show when it is printed or logged."""

    def __repr__(self) -> str:
        return repr({name: "***" if name in _SECRET and value else value for name, value in self.items()})


def need_text(data: Mapping[str, Any], name: str, what: str) -> str:
    """A required, non-empty string of an answer."""
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise ServerError(f"the server's response for {what} has no {name!r}")
    return value


def text(data: Mapping[str, Any], name: str, default: str = "") -> str:
    """A string of an answer, or ``default``."""
    value = data.get(name)
    return value if isinstance(value, str) else default


def optional_text(data: Mapping[str, Any], name: str) -> Optional[str]:
    """A string of an answer, or ``None``."""
    value = data.get(name)
    return value if isinstance(value, str) else None


def text_map(data: Mapping[str, Any], name: str) -> Dict[str, str]:
    """The names and values of an object of an answer, without values that are not strings."""
    value = data.get(name)
    if not isinstance(value, dict):
        return {}
    return {key: text for key, text in value.items() if isinstance(text, str)}


def integer(data: Mapping[str, Any], name: str, default: int = 0) -> int:
    """An integer of an answer, or ``default``."""
    value = optional_integer(data, name)
    return default if value is None else value


def optional_integer(data: Mapping[str, Any], name: str) -> Optional[int]:
    """An integer of an answer (a float is cut), or ``None``."""
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return int(value)
    except (OverflowError, ValueError):  # Infinity and NaN, which Python's JSON reader accepts
        return None
