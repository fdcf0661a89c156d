from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode import OptionError, Outcome, ReasonCode, Verdict
from svcnode.core.url import UrlError
from svcnode.probes import make_probe
from svcnode.testing import run_check

if TYPE_CHECKING:
    from pathlib import Path


def check(path: Path, **options: object) -> Verdict:
    # By its URL, as in a configuration; so the entry point is tested too.
    return run_check({"url": f"spool:{path}", **options})


def test_a_directory_with_fewer_files_is_ready(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    assert check(tmp_path, max_files=2) == Verdict.ready()


def test_a_directory_with_too_many_files_is_not_ready(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).touch()
    verdict = check(tmp_path, max_files=2)
    assert (verdict.outcome, verdict.code) == (Outcome.NOT_READY, ReasonCode.LAGGING)


def test_directories_are_not_counted(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert check(tmp_path, max_files=2) == Verdict.ready()


def test_a_missing_directory_is_failed(tmp_path: Path) -> None:
    verdict = check(tmp_path / "missing")
    assert (verdict.outcome, verdict.code) == (Outcome.FAILED, ReasonCode.FILE_NOT_FOUND)


def test_a_file_is_failed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert check(file).outcome is Outcome.FAILED


@pytest.mark.parametrize("url", ["spool:", "spool:outbox"])
def test_a_url_without_an_absolute_path_is_rejected(url: str) -> None:
    with pytest.raises(UrlError) as caught:
        make_probe(url)
    assert caught.value.part == "path"


@pytest.mark.parametrize("value", [0, -1, "many", 1.5])
def test_an_invalid_option_is_named(tmp_path: Path, value: object) -> None:
    with pytest.raises(OptionError) as caught:
        check(tmp_path, max_files=value)
    assert caught.value.option == "max_files"
