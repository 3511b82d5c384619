"""Files of a sandbox. Paths are absolute; a missing one raises ``NotFoundError``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, AsyncIterator, BinaryIO, Callable, List, Optional, Tuple, Union

from .. import _wire
from ..errors import BadRequestError, NotFoundError
from ..models import FileContent, FileInfo, WriteResult
from ._io import invoke, run_blocking
from .transport import AsyncTransport

#: Called with the bytes moved so far and the total, which is ``None`` if the server did not tell.
Progress = Callable[[int, Optional[int]], Any]

#: Depth at which :meth:`AsyncSandboxFilesystem.walk` stops, should a tree contain itself.
WALK_DEPTH_MAX = 128


class AsyncSandboxFilesystem:
    """``sandbox.filesystem``."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id

    async def read(self, path: str) -> FileContent:
        """The whole file: bytes that print as text. Use :meth:`download` for what exceeds memory."""
        call = _wire.Call(
            "GET",
            self._path("/fs"),
            query=_query(path),
            accept="application/octet-stream",
            seconds_max=_wire.FILE_SECONDS_MAX,
            body_bytes_max=_wire.FILE_BODY_BYTES_MAX,
        )
        return FileContent((await self._transport.send(call)).body)

    async def read_text(self, path: str) -> str:
        """The whole file as UTF-8 text."""
        return (await self.read(path)).text

    async def write(self, path: str, content: Union[str, bytes, bytearray, memoryview]) -> WriteResult:
        """Replace a file's content, making it and its parent directories if need be."""
        body = content.encode("utf-8") if isinstance(content, str) else bytes(content)
        call = _wire.Call(
            "PUT",
            self._path("/fs"),
            query=_query(path),
            body=body,
            content_type="application/octet-stream",
            seconds_max=_wire.FILE_SECONDS_MAX,
        )
        return _written(await self._transport.send(call), path, len(body))

    async def upload(
        self, local_path: Union[str, Path], remote_path: str, *, on_progress: Optional[Progress] = None
    ) -> WriteResult:
        """Copy a local file into the sandbox, piece by piece."""
        call = _wire.Call(
            "PUT", self._path("/fs"), query=_query(remote_path), content_type="application/octet-stream"
        )
        file = await run_blocking(_open_file, local_path, "rb")
        try:
            size = (await run_blocking(os.fstat, file.fileno())).st_size
            answer = await self._transport.send_stream(
                call, _pieces(file, size, on_progress), size, idle_seconds_max=_wire.TRANSFER_IDLE_SECONDS_MAX
            )
        finally:
            await run_blocking(file.close)
        return _written(answer, remote_path, size)

    async def download(
        self, remote_path: str, local_path: Union[str, Path], *, on_progress: Optional[Progress] = None
    ) -> None:
        """Copy a file of the sandbox to a local path, which appears only once it is complete."""
        call = _wire.Call(
            "GET", self._path("/fs"), query=_query(remote_path), accept="application/octet-stream"
        )
        idle = _wire.TRANSFER_IDLE_SECONDS_MAX
        partial = Path(f"{os.fspath(local_path)}.part")
        async with await self._transport.open_stream(call, idle_seconds_max=idle) as stream:
            length = stream.headers.get("content-length")
            total = int(length) if length is not None and length.isdigit() else None
            file = await run_blocking(_open_file, partial, "wb")
            try:
                done = 0
                async for chunk in stream.chunks():
                    await run_blocking(file.write, chunk)
                    done += len(chunk)
                    if on_progress is not None:
                        await invoke(on_progress, done, total)
                await run_blocking(file.close)
                await run_blocking(os.replace, partial, local_path)
            except BaseException:
                file.close()
                partial.unlink()
                raise

    async def list(self, path: str = "/") -> List[FileInfo]:
        """The entries of a directory."""
        answer = await self._transport.send(_wire.get(self._path("/fs/dir"), _query(path)))
        return [FileInfo.from_dict(entry, parent=path) for entry in answer.records("entries")]

    async def listdir(self, path: str = "/") -> List[FileInfo]:
        """The same as :meth:`list`."""
        return await self.list(path)

    async def stat(self, path: str) -> FileInfo:
        """One file or directory."""
        answer = await self._transport.send(_wire.get(self._path("/fs/stat"), _query(path)))
        return FileInfo.from_dict({"path": path, **answer.record()})

    async def exists(self, path: str) -> bool:
        """Whether there is something at ``path``. A sandbox that is gone raises instead."""
        try:
            await self.stat(path)
        except NotFoundError as error:
            if error.code not in (None, "file_not_found"):
                raise
            return False
        return True

    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents; one that exists already is fine."""
        await self._transport.send(_wire.Call("POST", self._path("/fs/mkdir"), query=_query(path)))

    async def remove(self, path: str) -> None:
        """Delete a file, or a directory with all that is in it."""
        await self._transport.send(_wire.delete(self._path("/fs"), _query(path)))

    async def rename(self, old_path: str, new_path: str) -> None:
        """Move a file or directory within the sandbox."""
        _query(old_path)
        _query(new_path)
        await self._transport.send(_wire.post(self._path("/fs/rename"), {"from": old_path, "to": new_path}))

    async def walk(self, path: str = "/") -> AsyncIterator[Tuple[str, List[FileInfo], List[FileInfo]]]:
        """Yield ``(directory, its directories, its files)`` from the top down."""
        pending = [(path, 0)]
        while pending:
            directory, depth = pending.pop()
            entries = await self.list(directory)
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


def _written(answer: _wire.Answer, path: str, size: int) -> WriteResult:
    record = answer.record()
    written = record.get("bytes")
    return {"path": str(record.get("path", path)), "bytes": written if isinstance(written, int) else size}


def _open_file(path: Union[str, Path], mode: str) -> BinaryIO:
    return open(path, mode)  # type: ignore[return-value]


async def _pieces(file: BinaryIO, size: int, on_progress: Optional[Progress]) -> AsyncIterator[bytes]:
    """Exactly ``size`` bytes at most: the length is already in the request's header."""
    done = 0
    while done < size:
        piece = await run_blocking(file.read, min(_wire.TRANSFER_CHUNK_BYTES, size - done))
        if not piece:
            return
        yield piece
        done += len(piece)
        if on_progress is not None:
            await invoke(on_progress, done, size)
