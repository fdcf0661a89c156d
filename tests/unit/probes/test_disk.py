"""Disk probes on the real file system, and on a simulated one with a known size."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.net.url import UrlError
from svcnode.probes import make_probe
from svcnode.probes.disk import DiskSpace, disk_space
from tests.support.verdicts import READY, failed, not_ready

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.core.model import Verdict

GIB = 1024**3
BLOCK_BYTES = 4096


def check(path: Path | str, **options: object) -> Verdict:
    return asyncio.run(make_probe({"url": f"disk:{path}", **options}).check())


def disk(monkeypatch: pytest.MonkeyPatch, *, free_gib: float, reserved_gib: float = 0.0) -> None:
    """Every disk has 100 GiB; the reserved part of the free space is for root only."""
    blocks_per_gib = GIB // BLOCK_BYTES
    free, reserved = int(free_gib * blocks_per_gib), int(reserved_gib * blocks_per_gib)
    info = os.statvfs_result((BLOCK_BYTES, BLOCK_BYTES, 100 * blocks_per_gib, free + reserved, free, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: info)


# ---- the real file system


def test_a_disk_with_enough_free_space_is_ready(tmp_path: Path) -> None:
    assert check(tmp_path, min_free="1B", warn_free="2B") == READY


def test_a_disk_below_min_free_is_failed_and_the_reason_has_its_size(tmp_path: Path) -> None:
    verdict = check(tmp_path, min_free="9000000TB")
    assert verdict == failed(ReasonCode.DISK_LOW)
    info = os.statvfs(tmp_path)
    assert f"{info.f_blocks * info.f_frsize / GIB:.1f} GiB" in verdict.reason
    assert "9000000TB" in verdict.reason


def test_a_disk_below_warn_free_is_not_ready(tmp_path: Path) -> None:
    assert check(tmp_path, min_free="1B", warn_free="9000000TB") == not_ready(ReasonCode.DISK_LOW)


def test_a_file_selects_the_file_system_it_is_on(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    assert check(tmp_path / "ledger.db", min_free="1B") == READY


def test_a_missing_path_is_failed(tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()

    probe = make_probe({"url": f"disk:{folder}", "min_free": "1B"})
    assert asyncio.run(probe.check()) == READY
    folder.rmdir()
    assert asyncio.run(probe.check()) == failed(ReasonCode.FILE_NOT_FOUND)


def test_a_path_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "my disk").mkdir()
    assert check(f"{tmp_path}/my%20disk", min_free="1B") == READY


# ---- a file system of 100 GiB


@pytest.mark.parametrize(
    ("options", "free_gib", "outcome"),
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
def test_free_space_is_compared_with_sizes_and_shares(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], free_gib: float, outcome: str
) -> None:
    disk(monkeypatch, free_gib=free_gib)
    assert check("/", **options).outcome.value == outcome


def test_the_reason_has_the_free_space_and_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, free_gib=2.5)
    for options, numbers in (
        ({"min_free": "5GiB"}, ("5GiB", "2.5")),
        ({"min_free": "1%", "warn_free": "9%"}, ("9%", "2.5")),
    ):
        reason = check("/data", **options).reason
        assert all(number in reason for number in (*numbers, "100.0 GiB", "/data"))


@pytest.mark.parametrize(
    ("blocks", "amount"),
    [(64 * 256, "32.0 of 64.0 MiB"), (4, "8.0 of 16.0 KiB"), (256 * 1024, "0.5 of 1.0 GiB")],
)
def test_the_reason_of_a_small_disk_has_a_small_unit(monkeypatch: pytest.MonkeyPatch, blocks: int, amount: str) -> None:
    info = os.statvfs_result((BLOCK_BYTES, BLOCK_BYTES, blocks, blocks // 2, blocks // 2, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: info)
    assert check("/boot", min_free="5GiB").reason.startswith(amount)


@pytest.mark.parametrize("path", ["/proc", "/sys"])
@pytest.mark.parametrize("options", [{}, {"min_free": "0%"}, {"min_free": "0B"}])
def test_a_file_system_without_blocks_is_failed(path: str, options: dict[str, str]) -> None:
    assert os.statvfs(path).f_blocks == 0  # 5 % of nothing is always free
    assert check(path, **options) == failed(ReasonCode.NOT_SUPPORTED)


def test_space_reserved_for_root_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, free_gib=1.0, reserved_gib=50.0)
    assert check("/").outcome.value == "failed"


# ---- configuration


@pytest.mark.parametrize("url", ["disk:", "disk://"])
def test_a_url_without_a_path_is_rejected(url: str) -> None:
    with pytest.raises(UrlError) as caught:
        make_probe(url)
    assert caught.value.part == "path"


def test_options_in_a_query_are_rejected() -> None:
    with pytest.raises(UrlError) as caught:
        make_probe("disk:///var?min_free=50%25")
    assert caught.value.part == "path"


@pytest.mark.parametrize("value", ["5", "5 apples", "100%", "-1%", "\u0665%", "%", "", 5, 0.05, True, None, []])
def test_an_amount_that_is_neither_a_size_nor_a_share_is_rejected(value: object) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "disk:/", "min_free": value})
    assert caught.value.option == "min_free"


@pytest.mark.parametrize(
    "options",
    [
        {"warn_free": "5%"},
        {"warn_free": "4%"},
        {"min_free": "10GiB", "warn_free": "10GiB"},
        {"min_free": "10GiB", "warn_free": "9GiB"},
    ],
)
def test_a_warn_free_below_min_free_is_rejected(options: dict[str, str]) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "disk:/", **options})
    assert caught.value.option == "warn_free"


def test_a_size_and_a_share_are_not_compared_at_configuration_time() -> None:
    make_probe({"url": "disk:/", "min_free": "10GiB", "warn_free": "1%"})


def test_an_amount_keeps_its_text() -> None:
    assert disk_space("5 %") == DiskSpace("5 %", share=0.05)
    assert disk_space("1.5KiB") == DiskSpace("1.5KiB", bytes=1536)
