"""File probes on real files: recent, old, missing, not readable, of other types, with and without the text."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.probes import make_probe
from svcnode.probes.base import MAX_CLOCK_SKEW_S
from svcnode.probes.file import MAX_READ_BYTES
from tests.support.verdicts import READY, UNEXPECTED_RESPONSE, failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.core.model import Verdict

NOT_READABLE = failed(ReasonCode.FILE_NOT_READABLE)
NOT_A_FILE = failed(ReasonCode.NOT_A_FILE)


def check(path: Path, **options: object) -> Verdict:
    return asyncio.run(make_probe({"url": f"file:{path}", **options}).check())


def with_age(path: Path, age_s: float) -> Path:
    """The file with this age; a negative age is in the future."""
    changed_at_s = time.time() - age_s
    os.utime(path, (changed_at_s, changed_at_s))
    return path


@pytest.fixture
def heartbeat(tmp_path: Path) -> Path:
    path = tmp_path / "heartbeat"
    path.write_text("state=ok\nheight=1200\n")
    return path


def test_a_file_dated_in_the_future_is_failed_except_for_a_small_clock_skew(heartbeat: Path) -> None:
    assert check(with_age(heartbeat, 5 - MAX_CLOCK_SKEW_S), max_age="60s") == READY
    verdict = check(with_age(heartbeat, -86400), max_age="60s")
    assert verdict == failed(ReasonCode.CLOCK_SKEW)
    assert "86400 s" in verdict.reason


def test_the_text_is_searched_as_utf_8_in_any_bytes_at_the_beginning_of_a_file(heartbeat: Path) -> None:
    heartbeat.write_bytes(b"\xff\x00" + "zustand=grün".encode() + b"\xfe")
    assert check(heartbeat, contains="=grün") == READY
    with heartbeat.open("wb") as file:
        file.seek(MAX_READ_BYTES - 2)
        file.write(b"ok, and ko")
    assert check(heartbeat, contains="ok") == READY
    assert check(heartbeat, contains="ko") == UNEXPECTED_RESPONSE


def pipe_at(path: Path) -> None:
    os.mkfifo(path)


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def zeros_at(path: Path) -> None:
    path.symlink_to("/dev/zero")


FILE_TYPES: dict[str, Callable[[Path], None]] = {
    "directory": Path.mkdir,
    "pipe": pipe_at,
    "socket": socket_at,
    "device": zeros_at,
}


@pytest.mark.parametrize("file_type", FILE_TYPES)
@pytest.mark.parametrize("options", [{}, {"max_age": "1s"}, {"contains": "\0"}])
def test_a_file_of_another_type_is_failed_without_blocking(tmp_path: Path, file_type: str, options: Any) -> None:
    """A container engine creates a directory if the file of a bind mount does not exist."""
    path = tmp_path / "heartbeat"
    FILE_TYPES[file_type](path)
    assert check(path, **options) == NOT_A_FILE


def test_a_file_that_cannot_be_opened_is_failed(heartbeat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")  # root never gets this error

    monkeypatch.setattr(os, "open", deny)
    assert check(heartbeat) == NOT_READABLE
