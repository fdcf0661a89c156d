from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode import OptionError, ProbeError, Verdict
from svcnode.probes import make_probe

if TYPE_CHECKING:
    from pathlib import Path


def run_check(path: Path, **options: object) -> Verdict:
    # By its URL, as a configuration names it; so the entry point is under test, too.
    return asyncio.run(make_probe({"url": f"spool:{path}", **options}).check())


def test_a_folder_with_fewer_files_is_ready(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    assert run_check(tmp_path, max_files=2) == Verdict.ready()


def test_a_folder_with_as_many_files_is_not_ready(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).touch()
    assert run_check(tmp_path, max_files=2) == Verdict.not_ready(f"2 files or more wait there: {tmp_path}")


def test_folders_inside_are_not_counted(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert run_check(tmp_path, max_files=2) == Verdict.ready()


def test_a_missing_folder_is_failed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert run_check(gone) == Verdict.failed(f"no such file or directory: {gone}")


def test_a_file_is_failed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert run_check(file) == Verdict.failed(f"not a directory: {file}")


def test_a_url_without_a_folder_is_refused() -> None:
    with pytest.raises(ProbeError, match="names no folder"):
        make_probe("spool:")


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(ProbeError, match="relative path; write all of it"):
        make_probe("spool:outbox")


@pytest.mark.parametrize("value", [0, -1, "many", 1.5])
def test_a_wrong_option_is_refused_by_name(tmp_path: Path, value: object) -> None:
    with pytest.raises(OptionError, match=r"^max_files: "):
        run_check(tmp_path, max_files=value)
