# Generated from _async/filesystem.py by tools/generate_sync.py: change that file, not this one.
"""Files of a sandbox. Paths are absolute; a missing one raises ``NotFoundError``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Iterator, BinaryIO, Callable, Dict, List, Optional, Tuple, Union

from .._check import checked
from .. import _archive, _wire
from ..errors import BadRequestError, NotFoundError, ServerError
from ..file_models import FileChange, FileContent, FileInfo, GrepMatch, WriteResult
from ._io import invoke, run_blocking
from .exec_stream import server_events
from .transport import Transport

#: Called with the bytes moved so far and the total, which is ``None`` if the server did not tell.
Progress = Callable[[int, Optional[int]], Any]

#: Depth at which :meth:`SandboxFilesystem.walk` stops, should a tree contain itself.
WALK_DEPTH_MAX = 128


@checked
class SandboxFilesystem:
    """``sandbox.filesystem``."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id

    def read(self, path: str, *, offset: int = 0, length: Optional[int] = None) -> FileContent:
        """Read a file or a part of it, as bytes that print as text. Use :meth:`download` for large files."""
        call = _wire.Call(
            "GET",
            self._path("/fs"),
            query=_query(path),
            accept="application/octet-stream",
            seconds_max=_wire.FILE_SECONDS_MAX,
            body_bytes_max=_wire.FILE_BODY_BYTES_MAX,
            extra=_range(offset, length),
        )
        return FileContent((self._transport.send(call)).body)

    def read_text(self, path: str) -> str:
        """Read a file as UTF-8 text."""
        return (self.read(path)).text

    def write(
        self,
        path: str,
        content: Union[str, bytes, bytearray, memoryview],
        *,
        append: bool = False,
        mode: Optional[int] = None,
        user: Optional[str] = None,
    ) -> WriteResult:
        """Write a file. Creates it and its parent directories if needed.

        Readers see the old file until the new one is complete, which keeps the old one's permissions and owner.
        ``append`` adds to it instead. ``mode`` sets the permissions; ``user`` owns a file that is new.
        """
        body = content.encode("utf-8") if isinstance(content, str) else bytes(content)
        options = _wire.given(write="append" if append else None, mode=_octal(mode), user=user)
        call = _wire.Call(
            "PUT",
            self._path("/fs"),
            query={**_query(path), **options},
            body=body,
            content_type="application/octet-stream",
            seconds_max=_wire.FILE_SECONDS_MAX,
            is_once=append,
        )
        return _written(self._transport.send(call), path, len(body))

    def upload(
        self, local_path: Union[str, Path], remote_path: str, *, on_progress: Optional[Progress] = None
    ) -> WriteResult:
        """Upload a local file in chunks."""
        call = _wire.Call(
            "PUT", self._path("/fs"), query=_query(remote_path), content_type="application/octet-stream"
        )
        return self._send_file(call, local_path, remote_path, on_progress)

    def download(
        self, remote_path: str, local_path: Union[str, Path], *, on_progress: Optional[Progress] = None
    ) -> None:
        """Download a file. The local path appears when the download is complete."""
        call = _wire.Call(
            "GET", self._path("/fs"), query=_query(remote_path), accept="application/octet-stream"
        )
        self._save(call, local_path, on_progress)

    def list(
        self, path: str = "/", *, recursive: bool = False, depth: Optional[int] = None, limit: Optional[int] = None
    ) -> List[FileInfo]:
        """List a directory. With ``recursive`` or ``depth``, include subdirectories."""
        options = _wire.given(recursive="1" if recursive else None, depth=_number(depth), limit=_number(limit))
        answer = self._transport.send(_wire.get(self._path("/fs/dir"), {**_query(path), **options}))
        return [FileInfo.from_dict(entry, parent=path) for entry in answer.records("entries")]

    def listdir(self, path: str = "/") -> List[FileInfo]:
        """The same as :meth:`list`."""
        return self.list(path)

    def stat(self, path: str) -> FileInfo:
        """Get the attributes of a file or directory."""
        answer = self._transport.send(_wire.get(self._path("/fs/stat"), _query(path)))
        return FileInfo.from_dict({"path": path, **answer.record()})

    def exists(self, path: str) -> bool:
        """Check whether ``path`` exists. Raises if the sandbox does not."""
        try:
            self.stat(path)
        except NotFoundError as error:
            if error.code not in (None, "file_not_found"):
                raise
            return False
        return True

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents. Has no effect if it exists."""
        self._transport.send(_wire.Call("POST", self._path("/fs/mkdir"), query=_query(path)))

    def remove(self, path: str) -> None:
        """Delete a file, or a directory with its contents."""
        self._transport.send(_wire.delete(self._path("/fs"), _query(path)))

    def rename(self, old_path: str, new_path: str, *, make_parents: bool = False) -> None:
        """Move a file or directory within the sandbox."""
        body: Dict[str, Any] = {"from": _query(old_path)["path"], "to": _query(new_path)["path"]}
        if make_parents:
            body["make_parents"] = True
        self._transport.send(_wire.post(self._path("/fs/rename"), body, seconds_max=_wire.FILE_SECONDS_MAX))

    def copy(self, path: str, new_path: str) -> None:
        """Copy a file or a whole tree within the sandbox, with permissions and owners."""
        body = {"from": _query(path)["path"], "to": _query(new_path)["path"]}
        self._transport.send(_wire.post(self._path("/fs/copy"), body, seconds_max=_wire.FILE_SECONDS_MAX))

    def chmod(self, path: str, mode: int, *, recursive: bool = False) -> FileInfo:
        """Set permissions, such as ``0o644``."""
        return self._change(path, {"mode": _octal(mode), "recursive": recursive})

    def chown(
        self, path: str, user: Optional[str] = None, group: Optional[str] = None, *, recursive: bool = False
    ) -> FileInfo:
        """Set owner and group, each by name or number."""
        return self._change(path, {**_wire.given(user=user, group=group), "recursive": recursive})

    def find(
        self,
        path: str = "/",
        glob: Optional[str] = None,
        *,
        depth: Optional[int] = None,
        limit: Optional[int] = None,
    ) -> List[FileInfo]:
        """Find files below a directory: ``*.py`` matches names, ``src/**/*.py`` paths relative to it."""
        options = _wire.given(glob=glob, depth=_number(depth), limit=_number(limit))
        answer = self._transport.send(_wire.get(self._path("/fs/find"), {**_query(path), **options}))
        return [FileInfo.from_dict(entry, parent=path) for entry in answer.records("entries")]

    def grep(
        self,
        pattern: str,
        path: str = "/",
        *,
        glob: Optional[str] = None,
        ignore_case: bool = False,
        fixed: bool = False,
        limit: Optional[int] = None,
    ) -> List[GrepMatch]:
        """Search text files by regular expression, or by plain text with ``fixed``."""
        flags = _wire.given(ignore_case="1" if ignore_case else None, fixed="1" if fixed else None)
        options = {"pattern": pattern, **_wire.given(glob=glob, limit=_number(limit)), **flags}
        answer = self._transport.send(_wire.get(self._path("/fs/grep"), {**_query(path), **options}))
        return [GrepMatch.from_dict(match) for match in answer.records("matches")]

    def upload_dir(self, local_path: Union[str, Path], remote_path: str) -> WriteResult:
        """Upload the contents of a local directory in one call."""
        with run_blocking(_archive.packed, local_path) as archive:
            size = (run_blocking(os.fstat, archive.fileno())).st_size
            call = _wire.Call(
                "PUT", self._path("/fs/tar"), query=_query(remote_path), content_type="application/x-tar"
            )
            answer = self._transport.send_stream(
                call, _pieces(archive, size, None), size, idle_seconds_max=_wire.TRANSFER_IDLE_SECONDS_MAX
            )
        return _written(answer, remote_path, size)

    def download_dir(self, remote_path: str, local_path: Union[str, Path]) -> None:
        """Download the contents of a directory into a local one. Nothing is written outside of it."""
        call = _wire.Call("GET", self._path("/fs/tar"), query=_query(remote_path), accept="application/x-tar")
        idle = _wire.TRANSFER_IDLE_SECONDS_MAX
        with run_blocking(_archive.spool) as archive:
            with self._transport.open_stream(call, idle_seconds_max=idle) as stream:
                for chunk in stream.chunks():
                    run_blocking(archive.write, chunk)
            run_blocking(_archive.unpack, archive, local_path)

    def upload_archive(self, local_path: Union[str, Path], remote_path: str) -> WriteResult:
        """Unpack a local tar archive into a directory of the sandbox."""
        call = _wire.Call("PUT", self._path("/fs/tar"), query=_query(remote_path), content_type="application/x-tar")
        return self._send_file(call, local_path, remote_path, None)

    def download_archive(self, remote_path: str, local_path: Union[str, Path]) -> None:
        """Download a directory as a tar archive. The local file appears when the download is complete."""
        call = _wire.Call("GET", self._path("/fs/tar"), query=_query(remote_path), accept="application/x-tar")
        self._save(call, local_path, None)

    def watch(
        self, path: str, *, recursive: bool = True, resume: Optional[str] = None
    ) -> Iterator[FileChange]:
        """Watch a file or directory for changes, until the caller stops or it is deleted.

        ``resume`` is the ``id`` of the last change that was seen: what happened since comes first. If that is no
        longer known, the first change is an ``overflow``. A watched sandbox does not go to sleep.
        """
        options = {"recursive": "1" if recursive else "0"}
        call = _wire.get(self._path("/fs/watch"), {**_query(path), **options})
        call = _wire.resumed(_wire.as_event_stream(call, has_limit=False), resume)
        idle = _wire.STREAM_IDLE_SECONDS_MAX
        with self._transport.open_stream(call, idle_seconds_max=idle) as stream:
            for event in server_events(stream):
                payload = event.payload() or {}
                if event.name == "error":
                    raise ServerError(f"the watch of {path} ended: {payload.get('error')}")
                if event.name == "change":
                    yield FileChange.from_dict(event.id, payload)
                elif event.name == "watching" and resume is not None and payload.get("resumed") is not True:
                    yield FileChange(id=event.id, kind="overflow", path=path)

    def signed_url(
        self, path: str, *, method: str = "GET", expires_in_seconds: Optional[int] = None
    ) -> str:
        """Create a temporary URL that reads (``GET``) or writes (``PUT``) one file without a key.

        It stops working when it expires or when this client's key is revoked.
        """
        body = {**_query(path), "method": method, **_wire.given(expires_in_seconds=expires_in_seconds)}
        record = (self._transport.send(_wire.post(self._path("/fs/sign"), body))).record()
        return f"{self._transport.base_url}{record.get('target', '')}"

    def _send_file(
        self, call: _wire.Call, local_path: Union[str, Path], remote_path: str, on_progress: Optional[Progress]
    ) -> WriteResult:
        file = run_blocking(_open_file, local_path, "rb")
        try:
            size = (run_blocking(os.fstat, file.fileno())).st_size
            answer = self._transport.send_stream(
                call, _pieces(file, size, on_progress), size, idle_seconds_max=_wire.TRANSFER_IDLE_SECONDS_MAX
            )
        finally:
            run_blocking(file.close)
        return _written(answer, remote_path, size)

    def _save(self, call: _wire.Call, local_path: Union[str, Path], on_progress: Optional[Progress]) -> None:
        idle = _wire.TRANSFER_IDLE_SECONDS_MAX
        partial = Path(f"{os.fspath(local_path)}.part")
        with self._transport.open_stream(call, idle_seconds_max=idle) as stream:
            length = stream.headers.get("content-length")
            total = int(length) if length is not None and length.isdigit() else None
            file = run_blocking(_open_file, partial, "wb")
            try:
                done = 0
                for chunk in stream.chunks():
                    run_blocking(file.write, chunk)
                    done += len(chunk)
                    if on_progress is not None:
                        invoke(on_progress, done, total)
                run_blocking(file.close)
                run_blocking(os.replace, partial, local_path)
            except BaseException:
                file.close()
                partial.unlink()
                raise

    def _change(self, path: str, body: Dict[str, Any]) -> FileInfo:
        call = _wire.post(self._path("/fs"), body, method="PATCH", seconds_max=_wire.FILE_SECONDS_MAX)
        answer = self._transport.send(_wire.asking(call, _query(path)))
        return FileInfo.from_dict({"path": path, **answer.record()})

    def walk(self, path: str = "/") -> Iterator[Tuple[str, List[FileInfo], List[FileInfo]]]:
        """Yield ``(directory, its directories, its files)`` from the top down."""
        pending = [(path, 0)]
        while pending:
            directory, depth = pending.pop()
            entries = self.list(directory)
            directories = [entry for entry in entries if entry.is_dir]
            yield directory, directories, [entry for entry in entries if not entry.is_dir]
            if depth < WALK_DEPTH_MAX:
                pending.extend((entry.path, depth + 1) for entry in reversed(directories))

    def _path(self, rest: str) -> str:
        return _wire.sandbox_path(self._sandbox_id, rest)


def _query(path: str) -> dict[str, str]:
    if not isinstance(path, str) or not path.startswith("/"):
        raise BadRequestError(f"sandbox paths are absolute, got {path!r}", hint="begin the path with /")
    return {"path": path}


def _range(offset: int, length: Optional[int]) -> Dict[str, str]:
    if offset == 0 and length is None:
        return {}
    if offset < 0 or (length is not None and length < 1):
        raise BadRequestError(f"offset {offset} and length {length} are not a valid range")
    end = "" if length is None else str(offset + length - 1)
    return {"Range": f"bytes={offset}-{end}"}


def _octal(mode: Optional[int]) -> Optional[str]:
    return None if mode is None else f"{mode:04o}"


def _number(value: Optional[int]) -> Optional[str]:
    return None if value is None else str(value)


def _written(answer: _wire.Answer, path: str, size: int) -> WriteResult:
    record = answer.record()
    written = record.get("bytes")
    return {"path": str(record.get("path", path)), "bytes": written if isinstance(written, int) else size}


def _open_file(path: Union[str, Path], mode: str) -> BinaryIO:
    return open(path, mode)  # type: ignore[return-value]


def _pieces(file: BinaryIO, size: int, on_progress: Optional[Progress]) -> Iterator[bytes]:
    """Exactly ``size`` bytes at most: the length is already in the request's header."""
    done = 0
    while done < size:
        piece = run_blocking(file.read, min(_wire.TRANSFER_CHUNK_BYTES, size - done))
        if not piece:
            return
        yield piece
        done += len(piece)
        if on_progress is not None:
            invoke(on_progress, done, size)
