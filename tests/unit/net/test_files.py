"""Files that options name: regular and small, and never waited for."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.net.files import file_version, open_regular_file, read_at_most, read_in_time, read_small_file
from svcnode.net.os_errors import CodedOSError

LIMIT = 100_000


def refusal(path: str | Path) -> ReasonCode:
    with pytest.raises(CodedOSError) as caught:
        read_small_file(path, LIMIT)
    return caught.value.code


def test_a_file_of_the_largest_size_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * LIMIT)
    assert len(read_small_file(tmp_path / "file", LIMIT)) == LIMIT
    assert read_in_time(str(tmp_path / "file"), LIMIT) == b"x" * LIMIT
    (tmp_path / "file").write_bytes(b"x" * (LIMIT + 1))
    assert refusal(tmp_path / "file") is ReasonCode.FILE_NOT_READABLE


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused = [refusal(path) for path in (tmp_path / "pipe", tmp_path, "/dev/zero")]
    assert refused == [ReasonCode.NOT_A_FILE] * 3


def test_a_pipe_that_replaces_the_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    info = (tmp_path / "file").stat()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(Path, "stat", lambda _: info)
    with pytest.raises(CodedOSError):
        open_regular_file(tmp_path / "pipe")


def test_a_path_with_a_null_character_is_refused_and_a_missing_file_an_error_of_the_system(tmp_path: Path) -> None:
    assert refusal("a\0b") is ReasonCode.FILE_NOT_FOUND
    with pytest.raises(FileNotFoundError):
        read_in_time(tmp_path / "missing", LIMIT)


def test_a_file_without_data_for_now_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # as /proc/kmsg, which is a regular file
    descriptor = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    with FileIO(descriptor) as file, pytest.raises(CodedOSError) as caught:
        read_at_most(file, LIMIT)
    assert caught.value.code is ReasonCode.FILE_NOT_READABLE


def test_a_replaced_file_has_another_version(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    assert file_version(path) == file_version("a\0b") == ()
    for one in (path, other):
        one.write_text("same")
        os.utime(one, (1, 1))
    before = file_version(path)
    assert before == file_version(path) != ()
    other.replace(path)
    assert file_version(path) != before
