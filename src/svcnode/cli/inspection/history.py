"""Inspects the history: whether its file can be written, is ours, and has space."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote

from svcnode.cli.inspection.finding import Code, Level
from svcnode.cli.inspection.paths import can_create, existing_folder, exists, stores_files
from svcnode.history.errors import HistoryError, history_error_from, other_node_error
from svcnode.history.files import check_owner
from svcnode.history.migrations import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from svcnode.cli.inspection.finding import Finding
    from svcnode.cli.inspection.subject import Subject

MARGIN_BYTES = 16 * 1024 * 1024  # for the write-ahead log, and for what else is on the disk
FIRST_WITH_OWNER = 2  # the first version of the tables that says which node a history belongs to
_PATH = ("history", "path")


def history(subject: Subject) -> Iterator[Finding]:
    settings = subject.settings.history
    if settings.path is None:
        if not settings.has_folder:
            what = "there is no folder for the history, so it is kept in memory and lost at a restart"
            fix = "Set a path, or HOME for the user of the node; with keep = false, this is what you want"
            yield subject.finding(Code.HISTORY_IN_MEMORY, Level.WARNING, what, fix, _PATH)
        return
    path = settings.path
    is_writable = os.access(path, os.W_OK) if exists(path) else can_create(path) and stores_files(path)
    if not is_writable:
        what = f"this user cannot write the history {path}"
        fix = (
            f"Run svcnode as the user of the node; if that is this user, change the owner of {path.parent}, or set "
            "another path"
        )
        yield subject.finding(Code.HISTORY_UNWRITABLE, Level.FAULT, what, fix, _PATH)
        return
    if problem := _file_problem(path, subject.settings.node_name):
        fix = "Set another path, or use the file with the program and the node that it belongs to"
        yield subject.finding(Code.HISTORY_UNREADABLE, Level.FAULT, problem, fix, _PATH)
    yield from _disk_space(subject, path, settings.max_bytes)


def _file_problem(path: Path, node_name: str) -> str:
    """Why the history cannot be used; empty if it can, or is missing. Writes nothing: the node may be running."""
    import sqlite3

    try:
        check_owner(path)
        if not exists(path) or not path.stat().st_size:
            return ""
        # Without a write-ahead log, a lock would create one and leave it.
        mode = "mode=ro" if exists(path.with_name(f"{path.name}-wal")) else "immutable=1"
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?{mode}", uri=True, timeout=1.0)) as file:
            (version,) = file.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                return f"{path} has schema version {version}, and this svcnode knows up to version {VERSION}"
            if version < FIRST_WITH_OWNER:
                return ""
            (owner,) = file.execute("SELECT text FROM saved_state WHERE name = 'node'").fetchone() or (node_name,)
            return "" if owner == node_name else str(other_node_error(path, owner, node_name))
    except (HistoryError, OSError, sqlite3.Error) as exc:
        return str(history_error_from(exc, path))


def _disk_space(subject: Subject, path: Path, max_bytes: int) -> Iterator[Finding]:
    used = path.stat().st_size if exists(path) else 0
    info = os.statvfs(existing_folder(path))
    free = info.f_bavail * info.f_frsize
    needed = max(0, max_bytes - used) + MARGIN_BYTES
    if free < needed:
        what = f"the disk of {path} has {free // 1024**2} MiB left, and the history may grow by {needed // 1024**2} MiB"
        fix = "Free space on that disk, or set a smaller max_size"
        level = Level.FAULT if free < MARGIN_BYTES else Level.WARNING
        yield subject.finding(Code.DISK_SPACE_LOW, level, what, fix, ("history", "max_size"))
