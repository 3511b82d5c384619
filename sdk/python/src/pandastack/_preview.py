"""Public addresses of a sandbox's ports.

``<scheme>://<port>-<sandbox id>.<suffix>``. The id is the credential; nothing else is in the URL.
"""

from __future__ import annotations

import ipaddress
from typing import Optional
from urllib.parse import urlsplit


def preview_suffix(base_url: str) -> str:
    """The host suffix of previews for the server at ``base_url``.

    A plain-http server is a box of one's own that serves previews on the API's listen address, so
    its port stays; a loopback address becomes ``localhost``, whose subdomains resolve by themselves.
    An https server has previews on the standard port of the API's domain.
    """
    parts = urlsplit(base_url)
    host = (parts.hostname or "localhost").lower()
    if _is_loopback(host):
        host = "localhost"
    elif host.startswith("api."):
        host = host[len("api.") :]
    return f"{host}:{parts.port}" if parts.scheme == "http" and parts.port else host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def preview_url(base_url: str, sandbox_id: str, port: int, *, host: Optional[str], scheme: Optional[str]) -> str:
    """The preview address of one port; ``host`` replaces the suffix, ``scheme`` the API's own."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ValueError(f"port must be 1-65535, got {port!r}")
    return f"{scheme or urlsplit(base_url).scheme}://{port}-{sandbox_id}.{host or preview_suffix(base_url)}"
