"""Sources of the server's address and the key.

Order, for each of the two separately: argument, environment, ``config.json``, default. The config
file's token belongs to the config file's server: it is never sent to another origin.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from .errors import AuthError, BadRequestError

#: Default address of ``pandastack up``.
BASE_URL_DEFAULT = "http://127.0.0.1:8080"
#: A config file longer than this is not ours.
CONFIG_BYTES_MAX = 64 * 1024


@dataclass(frozen=True)
class Config:
    """A resolved address and key."""

    base_url: str
    api_key: str = field(repr=False)


def config_path(environ: Mapping[str, str]) -> Path:
    """``~/.config/pandastack/config.json``, under ``XDG_CONFIG_HOME`` if that is set."""
    home = environ.get("XDG_CONFIG_HOME")
    root = Path(home) if home else Path.home() / ".config"
    return root / "pandastack" / "config.json"


def _read_config_file(path: Path) -> Dict[str, Any]:
    try:
        with path.open("rb") as file:
            parsed = json.loads(file.read(CONFIG_BYTES_MAX))
    except (OSError, ValueError):
        return {}  # absent or foreign: the caller's error says what is missing
    return parsed if isinstance(parsed, dict) else {}


def _first(source: Mapping[str, Any], *names: str) -> Optional[str]:
    for name in names:
        value = source.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def normalize_base_url(url: str) -> str:
    """The address without trailing slash or ``/v1``; raises on anything that is not http(s)."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequestError(
            f"the server address {url!r} is not an http:// or https:// URL",
            hint=f"set PANDASTACK_API or base_url= to something like {BASE_URL_DEFAULT}",
        )
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        path = path[: -len("/v1")]
    return f"{parts.scheme}://{parts.netloc}{path}"


def _origin(url: str) -> Tuple[str, Optional[str], Optional[int]]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def resolve_config(
    base_url: Optional[str] = None,
    api_key: Optional[str] = None,
    environ: Optional[Mapping[str, str]] = None,
) -> Config:
    """Settle address and key; :class:`AuthError` when no key is found."""
    environ = os.environ if environ is None else environ
    chosen_url = base_url or _first(environ, "PANDASTACK_API", "PANDASTACK_API_URL")
    chosen_key = api_key or _first(environ, "PANDASTACK_API_KEY", "PANDASTACK_TOKEN")
    path = config_path(environ)
    file = {} if chosen_url and chosen_key else _read_config_file(path)
    file_url = _first(file, "api_url", "apiUrl")
    url = normalize_base_url(chosen_url or file_url or BASE_URL_DEFAULT)
    if not chosen_key and (not file_url or _origin(normalize_base_url(file_url)) == _origin(url)):
        chosen_key = _first(file, "token", "api_key", "apiKey")
    if not chosen_key:
        raise AuthError(
            f"no API key for {url}",
            hint=f"set PANDASTACK_API_KEY, pass api_key=, or run `pandastack up`, which writes one to {path}",
        )
    return Config(base_url=url, api_key=chosen_key)
