"""A file or a directory as a function's bundle."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

#: Paths that no function needs: histories, caches, and dependencies that the deployment installs again.
LEFT_OUT = {".git", "node_modules", "__pycache__", ".venv", "venv", ".DS_Store"}


#: How names of files end that are bundles already.
BUNDLES = (".zip", ".tar.gz", ".tgz")


def is_bundle(source: Path) -> bool:
    """Whether a file is a bundle already."""
    return source.is_file() and source.name.lower().endswith(BUNDLES)


def pack(source: Path) -> bytes:
    """A gzip-compressed tar archive of a directory's files, or of one file; a bundle as it is."""
    if is_bundle(source):
        return source.read_bytes()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        if source.is_file():
            archive.add(str(source), arcname=source.name)
        for root, directories, files in os.walk(source):
            directories[:] = sorted(name for name in directories if name not in LEFT_OUT)
            for name in sorted(set(files) - LEFT_OUT):
                full = Path(root) / name
                archive.add(str(full), arcname=full.relative_to(source).as_posix(), recursive=False)
    return packed.getvalue()
