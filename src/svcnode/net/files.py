"""Small files that options name: certificates, keys, credentials. Only regular files are opened, and reads are bounded.

A mount may hang, so the event loop reads no file: a check reads in a `DaemonCall`, with the deadline of the check, and
a configuration is read with `read_in_time`.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode
from svcnode.net.os_errors import CodedOSError
from svcnode.net.threads import call_with_timeout

if TYPE_CHECKING:
    from io import FileIO

    FileVersion = tuple[int, ...]

READ_TIMEOUT_S = 5.0
MAX_PEM_BYTES = 4 * 1024 * 1024  # a bundle of all public certificate authorities is 0.2 MiB
_CHUNK_BYTES = 64 * 1024
_FILE_TYPES = {stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


def open_regular_file(path: str | Path) -> FileIO:
    """Open a file for reading. Raises an OSError for anything but a regular file."""
    _require_regular_file(Path(path).stat())  # before it is opened: opening a device can have effects
    file = open(path, "rb", buffering=0, opener=_open_nonblocking)  # noqa: SIM115  the caller closes it
    try:
        _require_regular_file(os.fstat(file.fileno()))
    except BaseException:
        file.close()
        raise
    return file


def _open_nonblocking(path: str, flags: int) -> int:
    """Opening does not block, even if a pipe has replaced the file since stat()."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _require_regular_file(info: os.stat_result) -> None:
    file_type = stat.S_IFMT(info.st_mode)
    if file_type != stat.S_IFREG:
        name = _FILE_TYPES.get(file_type, "device")
        raise CodedOSError(f"not a regular file but a {name}", ReasonCode.NOT_A_FILE)


def read_at_most(file: FileIO, max_bytes: int) -> bytes:
    """The start of an open file, or all of it."""
    content = b""
    while len(content) < max_bytes:
        part = file.read(min(_CHUNK_BYTES, max_bytes - len(content)))
        if part is None:  # a file of the kernel that has no data for now, such as /proc/kmsg
            raise CodedOSError("reading it would block", ReasonCode.FILE_NOT_READABLE)
        if not part:
            break
        content += part
    return content


def read_small_file(path: str | Path, max_bytes: int) -> bytes:
    """A whole file. Raises an OSError if it cannot be read, or is larger. Blocks while its mount hangs."""
    try:
        with open_regular_file(path) as file:
            content = read_at_most(file, max_bytes + 1)
    except ValueError:  # a null character in the path
        raise CodedOSError("invalid path", ReasonCode.FILE_NOT_FOUND) from None
    if len(content) > max_bytes:
        raise CodedOSError(f"larger than {max_bytes // 1024} KiB", ReasonCode.FILE_NOT_READABLE)
    return content


def read_in_time(path: str | Path, max_bytes: int) -> bytes:
    """As `read_small_file`, but raises TimeoutError after `READ_TIMEOUT_S`."""
    return call_with_timeout(partial(read_small_file, path, max_bytes), READ_TIMEOUT_S)


def file_version(path: str | Path) -> FileVersion:
    """Changes when the file is changed or replaced; empty if it cannot be read. Blocks while its mount hangs."""
    try:
        info = Path(path).stat()
    except (OSError, ValueError):
        return ()
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
