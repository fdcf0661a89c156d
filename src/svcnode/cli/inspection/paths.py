"""What exists at a path, and whether this user can create a file there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def exists(path: Path) -> bool:
    """False if there is no such file, or this user may not look."""
    try:
        path.lstat()
    except OSError:
        return False
    return True


def can_create(file: Path) -> bool:
    """Whether this user can create the file, with the folders that are missing."""
    folder = existing_folder(file)
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def stores_files(file: Path) -> bool:
    """False on the file systems of the kernel, such as /proc, where permissions say that root may write."""
    info = os.statvfs(existing_folder(file))
    return bool(info.f_blocks or info.f_files)


def existing_folder(file: Path) -> Path:
    """The nearest folder of the path that exists."""
    return next(folder for folder in file.absolute().parents if exists(folder))
