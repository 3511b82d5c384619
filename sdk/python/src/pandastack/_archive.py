"""Directories as tar archives, on the local side. No network here."""

from __future__ import annotations

import os
import tarfile
import tempfile
from pathlib import Path
from typing import AbstractSet, BinaryIO, Optional, Union, cast

from ._ignore import Ignore

#: Paths that a build of an app creates again, and its history.
MADE_ANEW = frozenset({".git", "node_modules", ".venv", "venv", "__pycache__", ".next"})


def spool() -> BinaryIO:
    """A place for an archive that goes away with its ``with`` block."""
    return cast(BinaryIO, tempfile.TemporaryFile())


def packed(local_path: Union[str, Path], left_out: AbstractSet[str] = frozenset()) -> BinaryIO:
    """An archive of a directory without entries of these names, ready to be read from its beginning."""

    def kept(info: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
        return None if info.name.rsplit("/", 1)[-1] in left_out else info

    if not os.path.isdir(local_path):
        raise NotADirectoryError(f"{os.fspath(local_path)!r} is not a directory")
    file = spool()
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name in sorted(os.listdir(local_path)):
                archive.add(os.path.join(local_path, name), arcname=name, filter=kept)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def packed_context(local_path: Union[str, Path]) -> BinaryIO:
    """An archive of a build directory without files that its ``.dockerignore`` excludes, ready to be read."""
    if not os.path.isdir(local_path):
        raise NotADirectoryError(f"{os.fspath(local_path)!r} is not a directory")
    ignore = Ignore.of(local_path)
    file = spool()
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            _add(archive, local_path, "", ignore)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _add(archive: tarfile.TarFile, root: Union[str, Path], below: str, ignore: Ignore) -> None:
    for name in sorted(os.listdir(os.path.join(root, below))):
        path = f"{below}/{name}" if below else name
        full = os.path.join(root, path)
        excluded = ignore.excludes(path)
        if not excluded:
            archive.add(full, arcname=path, recursive=False)
        if os.path.isdir(full) and not os.path.islink(full) and (not excluded or ignore.may_keep_below):
            _add(archive, root, path, ignore)


def unpack(file: BinaryIO, local_path: Union[str, Path]) -> None:
    """Unpack an archive that a sandbox made, which is not to be trusted: nothing lands outside of ``local_path``."""
    file.seek(0)
    os.makedirs(local_path, exist_ok=True)
    with tarfile.open(fileobj=file, mode="r:") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(local_path, filter="data")
            return
        for member in archive.getmembers():
            _check(member)
        archive.extractall(local_path)


def _check(member: tarfile.TarInfo) -> None:
    """For a Python without extraction filters: only plain members that stay inside."""
    target = member.linkname if member.issym() or member.islnk() else ""
    for name in (member.name, target):
        if os.path.isabs(name) or ".." in Path(name).parts:
            raise tarfile.TarError(f"{member.name!r} would land outside of the directory")
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise tarfile.TarError(f"{member.name!r} is a device")
