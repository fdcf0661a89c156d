"""Real files: fresh, old, missing, unreadable, of other sorts, and with and without what should stand in them."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.probes import make_probe
from svcnode.probes.base import MAX_CLOCK_SKEW_S
from svcnode.probes.file import MAX_READ_BYTES, FileProbe
from tests.support.probe_assertions import no_free_descriptors
from tests.support.verdicts import NO_DESCRIPTORS

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 65534


def look_at(path: Path, **options: object) -> Verdict:
    return asyncio.run(make_probe({"url": f"file:{path}", **options}).check())


def aged(path: Path, age_s: float) -> Path:
    """The file, last changed so long ago; with a negative age, in the future."""
    changed_at_s = time.time() - age_s
    os.utime(path, (changed_at_s, changed_at_s))
    return path


@pytest.fixture
def beat(tmp_path: Path) -> Path:
    """A file that somebody touches to say that they live."""
    path = tmp_path / "beat"
    path.write_text("state=ok\nheight=1200\n")
    return path


# ---- being there


def test_a_file_that_is_there_is_ready_however_old_it_is(beat: Path) -> None:
    assert look_at(aged(beat, 10 * 365 * 86400)) == Verdict.ready()


def test_a_missing_file_is_failed_and_is_not_created_by_looking(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    assert look_at(path, max_age="60s", contains="ok") == Verdict.failed(f"no such file or directory: {path}")
    assert not path.exists()


def test_a_file_below_what_is_no_folder_is_failed(beat: Path) -> None:
    assert look_at(beat / "below") == Verdict.failed(f"not a directory: {beat}/below")


def test_a_link_counts_as_what_it_leads_to(beat: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(beat)
    assert look_at(link, contains="state=ok") == Verdict.ready()
    beat.unlink()
    assert look_at(link).outcome is Outcome.FAILED


def test_a_probe_sees_a_file_go_and_come_back(beat: Path) -> None:
    probe = make_probe(f"file:{beat}")
    assert asyncio.run(probe.check()) == Verdict.ready()
    beat.unlink()
    assert asyncio.run(probe.check()).outcome is Outcome.FAILED
    beat.touch()
    assert asyncio.run(probe.check()) == Verdict.ready()


# ---- being fresh


def test_a_file_changed_within_its_age_is_ready(beat: Path) -> None:
    assert look_at(aged(beat, 50), max_age="60s") == Verdict.ready()


def test_a_file_that_is_too_old_is_failed(beat: Path) -> None:
    assert look_at(aged(beat, 3600), max_age="60s") == Verdict.failed(f"3600 s old, allowed are 60 s: {beat}")


def test_a_file_dated_in_the_future_is_failed_or_it_would_stay_fresh_for_ever(beat: Path) -> None:
    verdict = look_at(aged(beat, -86400), max_age="60s")
    assert verdict == Verdict.failed(f"dated 86400 s in the future, allowed are 60 s: {beat}")


def test_clocks_may_differ_a_little(beat: Path) -> None:
    assert look_at(aged(beat, 5 - MAX_CLOCK_SKEW_S), max_age="60s") == Verdict.ready()


def test_touching_a_file_makes_it_fresh_again(beat: Path) -> None:
    assert look_at(aged(beat, 3600), max_age="60s").outcome is Outcome.FAILED
    beat.touch()
    assert look_at(beat, max_age="60s") == Verdict.ready()


# ---- holding something


def test_a_file_that_holds_the_text_is_ready(beat: Path) -> None:
    assert look_at(beat, contains="height=12") == Verdict.ready()


def test_a_file_without_the_text_is_failed(beat: Path) -> None:
    assert look_at(beat, contains="state=bad") == Verdict.failed(f'does not hold "state=bad": {beat}')


def test_an_empty_file_holds_nothing(beat: Path) -> None:
    beat.write_bytes(b"")
    assert look_at(beat, contains="ok").outcome is Outcome.FAILED


def test_the_text_is_looked_for_as_utf_8_among_whatever_bytes_there_are(beat: Path) -> None:
    beat.write_bytes(b"\xff\x00" + "zustand=grün".encode() + b"\xfe")
    assert look_at(beat, contains="=grün") == Verdict.ready()


def test_only_the_beginning_of_a_large_file_is_read(beat: Path) -> None:
    with beat.open("wb") as file:
        file.seek(MAX_READ_BYTES - 2)
        file.write(b"ok, and ko")
    assert look_at(beat, contains="ok") == Verdict.ready()
    assert look_at(beat, contains="ko").outcome is Outcome.FAILED


# ---- other sorts


def pipe_at(path: Path) -> None:
    os.mkfifo(path)


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def zeros_at(path: Path) -> None:
    path.symlink_to("/dev/zero")


SORTS: dict[str, Callable[[Path], None]] = {
    "directory": Path.mkdir,
    "pipe": pipe_at,
    "socket": socket_at,
    "device": zeros_at,
}


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("options", [{}, {"max_age": "1s"}, {"contains": "\0"}])
def test_what_is_no_regular_file_is_failed_and_not_waited_for(tmp_path: Path, sort: str, options: Any) -> None:
    """A directory in place of a file is what a container is given when nobody made the file first."""
    path = tmp_path / "beat"
    SORTS[sort](path)
    assert look_at(path, **options) == Verdict.failed(f"is a {sort}, not a file: {path}")


@pytest.mark.parametrize("sort", ["pipe", "device"])
def test_what_takes_the_place_of_a_file_while_it_is_opened_is_not_waited_for(
    beat: Path, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    was = beat.stat()
    beat.unlink()
    SORTS[sort](beat)
    monkeypatch.setattr(Path, "stat", lambda _: was)
    assert look_at(beat, contains="\0") == Verdict.failed(f"is a {sort}, not a file: {beat}")


def test_a_file_that_cannot_be_read_is_failed(beat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")  # to root, no system says that

    monkeypatch.setattr(os, "open", refuse)
    assert look_at(beat) == Verdict.failed(f"cannot be read: permission denied: {beat}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_that_is_not_for_whom_we_run_as_is_failed() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "beat").touch(mode=0o000)
        (folder / "hidden").mkdir(mode=0o700)
        folder.chmod(0o755)
        for path in (folder / "beat", folder / "hidden/beat"):
            probe = make_probe(f"file:{path}")
            assert isinstance(probe, FileProbe)
            os.seteuid(NOBODY)
            try:
                verdict = probe._check_now()
            finally:
                os.seteuid(0)
            assert verdict == Verdict.failed(f"cannot be read: permission denied: {path}")


def test_running_out_of_open_files_is_our_own_fault(beat: Path) -> None:
    probe = make_probe(f"file:{beat}")
    assert isinstance(probe, FileProbe)
    with no_free_descriptors():
        assert probe._check_now() == NO_DESCRIPTORS


# ---- how it is named


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "FILE:{}"])
def test_a_url_names_a_file(beat: Path, form: str) -> None:
    assert asyncio.run(make_probe(form.format(beat)).check()) == Verdict.ready()


@pytest.mark.parametrize("name", ["a b", "50%25", "what%3F", "#1", "é", "a&b=c", "a:b@c"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name.replace("%25", "%").replace("%3F", "?")).touch()
    assert look_at(tmp_path / name) == Verdict.ready()


def test_a_relative_path_is_taken_from_where_the_program_runs(beat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(beat.parent)
    assert look_at(Path("beat"), contains="ok") == Verdict.ready()


@pytest.mark.parametrize("url", ["file:", "file://"])
def test_a_url_that_names_no_file_is_refused_with_one_that_does(url: str) -> None:
    with pytest.raises(ProbeError, match=r'names no file; write its path, as in "file:/run/app/heartbeat"'):
        make_probe(url)


def test_options_in_a_query_are_refused_rather_than_passed_over(beat: Path) -> None:
    with pytest.raises(ProbeError, match="takes no query"):
        make_probe(f"file://{beat}?max_age=60s")


def test_a_null_character_is_refused() -> None:
    with pytest.raises(ProbeError, match="no null characters"):
        make_probe("file:/run/app%00")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_age": 60}, r'^max_age: must be a string with a unit, not a whole number; write "60s"'),
        ({"max_age": "60"}, r'^max_age: "60" is not a duration'),
        ({"max_age": "-1s"}, r"^max_age: "),
        ({"contains": 7}, r"^contains: must be a string, not a whole number"),
        ({"max_agee": "60s"}, r'^max_agee: unknown option; did you mean "max_age"\?'),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_by_name(options: dict[str, object], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        make_probe({"url": "file:/run/app", **options})
