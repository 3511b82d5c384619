"""Sources of the server's address and the key."""

from __future__ import annotations

import json

import pytest

import pandastack
from pandastack._config import BASE_URL_DEFAULT, resolve_config
from pandastack._preview import preview_url

ENV = {"PANDASTACK_API": "http://env:1", "PANDASTACK_API_URL": "http://env2:1", "PANDASTACK_API_KEY": "envkey", "PANDASTACK_TOKEN": "envtoken"}


def resolve(tmp_path, file=None, environ=None, **arguments):
    folder = tmp_path / "pandastack"
    folder.mkdir(exist_ok=True)
    if file is not None:
        (folder / "config.json").write_text(file if isinstance(file, str) else json.dumps(file))
    config = resolve_config(environ={"XDG_CONFIG_HOME": str(tmp_path), **(environ or {})}, **arguments)
    return config.base_url, config.api_key


FILE = {"api_url": "http://file:1/", "token": "filekey"}


@pytest.mark.parametrize(
    "file,environ,arguments,expected",
    [
        (FILE, ENV, {"base_url": "http://arg:1/v1/", "api_key": "arg"}, ("http://arg:1", "arg")),
        (FILE, ENV, {}, ("http://env:1", "envkey")),
        (FILE, {"PANDASTACK_API_URL": "http://env2:1", "PANDASTACK_TOKEN": "t"}, {}, ("http://env2:1", "t")),
        (FILE, {}, {}, ("http://file:1", "filekey")),
        ({"apiUrl": "http://file:1", "apiKey": "k"}, {}, {}, ("http://file:1", "k")),
        ({"token": "k"}, {"PANDASTACK_API": "http://env:1"}, {}, ("http://env:1", "k")),
        (FILE, {"PANDASTACK_API": "http://file:1/v1"}, {}, ("http://file:1", "filekey")),
        (None, {"PANDASTACK_API_KEY": "k"}, {}, (BASE_URL_DEFAULT, "k")),
        (None, {"PANDASTACK_API_KEY": "k"}, {"base_url": "https://h/prefix/v1"}, ("https://h/prefix", "k")),
    ],
)
def test_precedence(tmp_path, file, environ, arguments, expected):
    assert resolve(tmp_path, file, environ, **arguments) == expected


def test_the_config_file_token_is_sent_only_to_its_own_server(tmp_path):
    with pytest.raises(pandastack.AuthError, match="http://other:1"):
        resolve(tmp_path, FILE, {"PANDASTACK_API": "http://other:1"})


@pytest.mark.parametrize("file", [None, "not json", "[]", '{"token": 5}', '{"token": " "}'])
def test_no_key(tmp_path, file):
    with pytest.raises(pandastack.AuthError, match="hint"):
        resolve(tmp_path, file)


@pytest.mark.parametrize("url", ["ftp://x", "localhost:8080", "http://", "x"])
def test_bad_address(tmp_path, url):
    with pytest.raises(pandastack.BadRequestError, match="PANDASTACK_API"):
        resolve(tmp_path, base_url=url, api_key="k")


def test_client_arguments(monkeypatch):
    monkeypatch.setenv("PANDASTACK_TOKEN", "t")
    assert pandastack.Client is pandastack.PandaStack
    assert pandastack.PandaStack("http://pos:1").api_url == "http://pos:1"
    assert pandastack.PandaStack(api_base="http://b:1", token="x").base_url == "http://b:1"
    monkeypatch.setenv("PANDASTACK_API", "http://switched:1")
    assert pandastack.PandaStack().base_url == "http://switched:1"


def test_key_is_not_in_reprs(tmp_path):
    assert "secret" not in repr(resolve_config("http://h", "secret", {}))


@pytest.mark.parametrize(
    "base,host,scheme,expected",
    [
        ("https://api.example.com", None, None, "https://80-s.example.com"),
        ("https://example.com:8443", None, None, "https://80-s.example.com"),
        ("http://127.0.0.1:8080", None, None, "http://80-s.localhost:8080"),
        ("http://localhost:8080", None, None, "http://80-s.localhost:8080"),
        ("http://[::1]:8080", None, "https", "https://80-s.localhost:8080"),
        ("https://api.example.com", "p.example:99", None, "https://80-s.p.example:99"),
    ],
)
def test_preview_url(base, host, scheme, expected):
    assert preview_url(base, "s", 80, host=host, scheme=scheme) == expected
