"""The disk that the tests run on, and, where the numbers matter, one of a size that the test chooses."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.probes import make_probe
from svcnode.probes.disk import Space, space

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1024**3
BLOCK_BYTES = 4096


def look_at(path: Path | str, **options: object) -> Verdict:
    return asyncio.run(make_probe({"url": f"disk:{path}", **options}).check())


def disk(monkeypatch: pytest.MonkeyPatch, *, free_gib: float, reserved_gib: float = 0.0) -> None:
    """From now on every disk has 100 GiB, some of them free, and some of those only for root."""
    blocks_per_gib = GIB // BLOCK_BYTES
    free, reserved = int(free_gib * blocks_per_gib), int(reserved_gib * blocks_per_gib)
    about = os.statvfs_result((BLOCK_BYTES, BLOCK_BYTES, 100 * blocks_per_gib, free + reserved, free, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: about)


# ---- a real one


def test_a_disk_with_room_is_ready(tmp_path: Path) -> None:
    assert look_at(tmp_path, min_free="1B", warn_free="2B") == Verdict.ready()


def test_a_disk_without_the_room_is_failed_with_what_it_has(tmp_path: Path) -> None:
    verdict = look_at(tmp_path, min_free="9000000TB")
    about = os.statvfs(tmp_path)
    total_gib = about.f_blocks * about.f_frsize / GIB
    assert verdict.reason.endswith(f" of {total_gib:.1f} GiB are free, less than min_free, 9000000TB: {tmp_path}")
    assert verdict == Verdict.failed(verdict.reason)


def test_a_disk_that_is_getting_full_is_not_ready(tmp_path: Path) -> None:
    verdict = look_at(tmp_path, min_free="1B", warn_free="9000000TB")
    assert "less than warn_free, 9000000TB" in verdict.reason
    assert verdict == Verdict.not_ready(verdict.reason)


def test_a_file_stands_for_the_disk_that_holds_it(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    assert look_at(tmp_path / "ledger.db", min_free="1B") == Verdict.ready()


def test_a_path_that_is_gone_is_failed(tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()

    probe = make_probe({"url": f"disk:{folder}", "min_free": "1B"})
    assert asyncio.run(probe.check()) == Verdict.ready()
    folder.rmdir()
    assert asyncio.run(probe.check()) == Verdict.failed(f"no such file or directory: {folder}")


def test_a_path_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "my disk").mkdir()
    assert look_at(f"{tmp_path}/my%20disk", min_free="1B") == Verdict.ready()


# ---- one of 100 GiB


@pytest.mark.parametrize(
    ("options", "free_gib", "seen"),
    [
        ({}, 5.0, "ready"),
        ({}, 4.9, "failed"),
        ({"min_free": "5GiB"}, 5.0, "ready"),
        ({"min_free": "5GiB"}, 4.9, "failed"),
        ({"min_free": "10%"}, 10.0, "ready"),
        ({"min_free": "10%"}, 9.9, "failed"),
        ({"min_free": "12.5%"}, 12.4, "failed"),
        ({"min_free": "5 %"}, 5.1, "ready"),
        ({"min_free": "0%"}, 0.0, "ready"),
        ({"min_free": "0B"}, 0.0, "ready"),
        ({"warn_free": "20%"}, 20.0, "ready"),
        ({"warn_free": "20%"}, 19.9, "not_ready"),
        ({"warn_free": "20%"}, 4.9, "failed"),
        ({"min_free": "1GiB", "warn_free": "10GiB"}, 9.9, "not_ready"),
        ({"min_free": "1GiB", "warn_free": "10%"}, 9.9, "not_ready"),
        ({"min_free": "1%", "warn_free": "10GiB"}, 9.9, "not_ready"),
        ({"min_free": "1%", "warn_free": "10GiB"}, 0.9, "failed"),
    ],
)
def test_what_is_free_is_held_against_sizes_and_shares(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], free_gib: float, seen: str
) -> None:
    disk(monkeypatch, free_gib=free_gib)
    assert look_at("/", **options).outcome.value == seen


def test_a_reason_says_how_much_is_free_and_how_much_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, free_gib=2.5)
    assert look_at("/data", min_free="5GiB") == Verdict.failed(
        "2.5 of 100.0 GiB are free, less than min_free, 5GiB: /data"
    )
    assert look_at("/data", min_free="1%", warn_free="10%") == Verdict.not_ready(
        "2.5 of 100.0 GiB are free, less than warn_free, 10%: /data"
    )


@pytest.mark.parametrize(
    ("blocks", "told"),
    [(64 * 256, "32.0 of 64.0 MiB"), (4, "8.0 of 16.0 KiB"), (256 * 1024, "0.5 of 1.0 GiB")],
)
def test_a_small_disk_is_told_in_a_small_unit(monkeypatch: pytest.MonkeyPatch, blocks: int, told: str) -> None:
    about = os.statvfs_result((BLOCK_BYTES, BLOCK_BYTES, blocks, blocks // 2, blocks // 2, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: about)
    assert look_at("/boot", min_free="5GiB").reason == f"{told} are free, less than min_free, 5GiB: /boot"


@pytest.mark.parametrize("path", ["/proc", "/sys"])
@pytest.mark.parametrize("options", [{}, {"min_free": "0%"}, {"min_free": "0B"}])
def test_a_file_system_that_holds_no_data_is_failed(path: str, options: dict[str, str]) -> None:
    """It has no room at all, of which 5 % would always be free."""
    assert os.statvfs(path).f_blocks == 0
    assert look_at(path, **options) == Verdict.failed(f"on a file system of 0 blocks, which holds no data: {path}")


def test_what_is_kept_for_root_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, free_gib=1.0, reserved_gib=50.0)
    assert look_at("/").outcome.value == "failed"


# ---- how it is named


@pytest.mark.parametrize("url", ["disk:", "disk://"])
def test_a_url_that_names_no_path_is_refused_with_one_that_does(url: str) -> None:
    with pytest.raises(ProbeError, match=r'names no path; write one on the disk, as in "disk:/var/lib/app"'):
        make_probe(url)


def test_options_in_a_query_are_refused_rather_than_passed_over() -> None:
    with pytest.raises(ProbeError, match="takes no query"):
        make_probe("disk:///var?min_free=50%25")


@pytest.mark.parametrize("value", ["5", "5 apples", "100%", "-1%", "\u0665%", "%", "", 5, 0.05, True, None, []])
def test_an_amount_is_a_size_or_a_share(value: object) -> None:
    with pytest.raises(OptionError, match=r'^min_free: is a size such as "5GiB" or a share such as "10%", not '):
        make_probe({"url": "disk:/", "min_free": value})


@pytest.mark.parametrize(
    "options",
    [
        {"warn_free": "5%"},
        {"warn_free": "4%"},
        {"min_free": "10GiB", "warn_free": "10GiB"},
        {"min_free": "10GiB", "warn_free": "9GiB"},
    ],
)
def test_a_warning_that_would_never_be_told_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"^warn_free: is more than min_free, "):
        make_probe({"url": "disk:/", **options})


def test_a_size_and_a_share_are_not_compared_before_the_disk_is_known() -> None:
    make_probe({"url": "disk:/", "min_free": "10GiB", "warn_free": "1%"})


def test_an_amount_is_shown_as_it_was_written() -> None:
    assert space("5 %") == Space("5 %", share=0.05)
    assert space("1.5KiB") == Space("1.5KiB", bytes=1536)
