# Generated from _async/transport.py by tools/generate_sync.py: change that file, not this one.
"""Sending calls: connections, time limits, retries, and conversion of failures to errors.

What must hold: every method ends within its limit; every failure leaves as a ``PandaStackError``;
no answer grows past its limit in memory.
"""

from __future__ import annotations

import time
from typing import Iterator, Callable, Mapping, NoReturn, Optional, Union

import httpx

from .._config import Config
from .._retry import CapacityRetry, CreateRetryEvent
from .._version import __version__
from .._wire import (
    CONNECT_SECONDS_MAX,
    Answer,
    Call,
)
from ..errors import (
    ERROR_BODY_BYTES_MAX,
    APIConnectionError,
    NotFoundError,
    PandaStackError,
    RequestTimeout,
    SandboxTimeout,
    ServerError,
    error_from_response,
)
from ._io import TimeUp, invoke, sleep, within

#: Open connections at once; a hundred streams and ordinary calls beside them must fit.
CONNECTIONS_MAX = 512
#: Connections kept open while idle.
CONNECTIONS_IDLE_MAX = 32


class Transport:
    """One server, one key, one pool of connections."""

    def __init__(
        self,
        config: Config,
        *,
        call_seconds_max: float,
        create_retry_seconds: float,
        on_create_retry: Optional[Callable[[CreateRetryEvent], object]] = None,
    ) -> None:
        self.base_url = config.base_url
        self._call_seconds_max = call_seconds_max
        self._create_retry_seconds = create_retry_seconds
        self._on_create_retry = on_create_retry
        self._http = httpx.Client(
            headers={
                "Authorization": f"Bearer {config.api_key}",
                "User-Agent": f"pandastack-python/{__version__}",
            },
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_IDLE_MAX),
            follow_redirects=False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, call: Call) -> Answer:
        """Send a call; wait and repeat where a create is refused for lack of room."""
        retry = CapacityRetry(self._create_retry_seconds if call.is_create else 0.0)
        while True:
            try:
                return self._attempt(call)
            except PandaStackError as error:
                delay = retry.delay_after(error)
                if delay is None:
                    raise
                self._announce(call, retry, error, delay)
            sleep(delay)

    def open_stream(self, call: Call, *, idle_seconds_max: float) -> ByteStream:
        """Send a call whose answer is read piece by piece; errors before the first byte are raised here."""
        request = self._request(call, self._timeouts(idle_seconds_max))
        try:
            response = within(idle_seconds_max, self._http.send(request, stream=True))
        except (httpx.HTTPError, TimeUp) as error:
            self._fail(call, error, idle_seconds_max)
        stream = ByteStream(call, response, idle_seconds_max)
        if response.is_success:
            return stream
        try:
            body = stream.read_all(ERROR_BODY_BYTES_MAX)
        finally:
            stream.close()
        raise self._error(call, response, body)

    def send_stream(
        self, call: Call, content: Iterator[bytes], size: int, *, idle_seconds_max: float
    ) -> Answer:
        """Send a body that is read piece by piece; never repeated, since it can be read only once."""
        request = self._http.build_request(
            call.method,
            self._url(call),
            params=dict(call.query),
            content=content,
            headers={**call.headers(), "Content-Length": str(size)},
            timeout=self._timeouts(idle_seconds_max),
        )
        try:
            response = self._http.send(request)
        except httpx.HTTPError as error:
            self._fail(call, error, idle_seconds_max)
        if not response.is_success:
            raise self._error(call, response, response.content)
        return Answer(call.what, response.headers, response.content)

    def _attempt(self, call: Call) -> Answer:
        seconds = call.seconds_max if call.seconds_max is not None else self._call_seconds_max
        was_resent = False
        while True:
            try:
                return within(seconds, self._exchange(call, seconds))
            except NotFoundError:
                # The delete whose answer was lost did its work.
                if call.method == "DELETE" and was_resent:
                    return Answer(call.what, {}, b"")
                raise
            except (httpx.TimeoutException, TimeUp) as error:
                self._fail(call, error, seconds)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
                # A kept-open connection that the server closed at this very moment.
                if was_resent or not call.is_resendable:
                    self._fail(call, error, seconds)
                was_resent = True
            except httpx.HTTPError as error:
                self._fail(call, error, seconds)

    def _exchange(self, call: Call, seconds: float) -> Answer:
        deadline = time.monotonic() + seconds
        response = self._http.send(self._request(call, self._timeouts(seconds)), stream=True)
        try:
            limit = call.body_bytes_max if response.is_success else ERROR_BODY_BYTES_MAX
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > limit:
                    raise ServerError(f"{call.what}: the response is longer than {limit} bytes")
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer came too slowly")
        finally:
            response.close()
        if not response.is_success:
            raise self._error(call, response, bytes(body))
        return Answer(call.what, response.headers, bytes(body))

    def _url(self, call: Call) -> str:
        return f"{self.base_url}/v1{call.path}"

    def _request(self, call: Call, timeouts: httpx.Timeout) -> httpx.Request:
        return self._http.build_request(
            call.method,
            self._url(call),
            params=dict(call.query) or None,
            content=call.body,
            headers=call.headers(),
            timeout=timeouts,
        )

    @staticmethod
    def _timeouts(seconds: float) -> httpx.Timeout:
        return httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS_MAX))

    def _announce(self, call: Call, retry: CapacityRetry, error: PandaStackError, delay: float) -> None:
        if self._on_create_retry is None:
            return
        event = CreateRetryEvent(
            method=call.method,
            path=call.path,
            attempt=retry.attempt,
            status_code=error.status or 0,
            error=error.message,
            delay_seconds=delay,
            elapsed_seconds=retry.elapsed_seconds,
            retry_after_seconds=error.retry_after_seconds,
        )
        invoke(self._on_create_retry, event)

    @staticmethod
    def _error(call: Call, response: httpx.Response, body: bytes) -> PandaStackError:
        headers: Mapping[str, str] = response.headers
        if 300 <= response.status_code < 400:
            where = headers.get("location", "elsewhere")
            # Following would send the key to an address that was not configured.
            return ServerError(
                f"{call.what}: the server redirects to {where}",
                status=response.status_code,
                hint="set the base URL to the final address",
            )
        return error_from_response(
            response.status_code, headers, body, what=call.what, is_command=call.is_command
        )

    def _fail(self, call: Call, error: Union[Exception, TimeUp], seconds: float) -> NoReturn:
        raise transport_error(call, self.base_url, error, seconds) from error


class ByteStream:
    """The body of an open answer. Close it, or use it in a ``with`` block."""

    def __init__(self, call: Call, response: httpx.Response, idle_seconds_max: float) -> None:
        self._call = call
        self._response = response
        self._idle_seconds_max = idle_seconds_max

    @property
    def headers(self) -> Mapping[str, str]:
        """The answer's headers."""
        return self._response.headers

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives; ends with the body, raises when the connection breaks or falls silent."""
        seconds = self._call.seconds_max
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            for chunk in self._response.iter_bytes():
                yield chunk
                if deadline is not None and time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the stream outlived its limit")
        except httpx.TimeoutException as error:
            if seconds is not None and deadline is not None and time.monotonic() > deadline:
                raise transport_error(self._call, "the server", error, seconds) from error
            silence = f"{self._call.what}: the stream was silent for {self._idle_seconds_max:g} s"
            raise APIConnectionError(silence) from error
        except httpx.HTTPError as error:
            raise transport_error(self._call, "the server", error, self._idle_seconds_max) from error

    def read_all(self, limit: int) -> bytes:
        """The body, cut at ``limit``."""
        body = bytearray()
        for chunk in self.chunks():
            body += chunk
            if len(body) >= limit:
                break
        return bytes(body[:limit])

    def close(self) -> None:
        """Drop the rest of the body and give the connection back or close it."""
        self._response.close()

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def transport_error(call: Call, server: str, error: BaseException, seconds: float) -> PandaStackError:
    """The typed error of a failed exchange."""
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return APIConnectionError(
            f"{call.what}: cannot connect to {server}: {error or type(error).__name__}",
            hint="start the server with `pandastack up`, or set PANDASTACK_API to where it listens",
        )
    if isinstance(error, (httpx.TimeoutException, TimeUp)):
        kind = SandboxTimeout if call.is_command else RequestTimeout
        return kind(f"{call.what}: no complete answer within {seconds:g} s")
    return APIConnectionError(f"{call.what}: the connection broke: {error or type(error).__name__}")
