"""The file with the last view of the registry."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from typing import TYPE_CHECKING

import pytest

from svcnode.net.etcd_json import KeyValue
from svcnode.sharing.cache import CachedView, FileCache
from tests.support.registry_keys import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VIEW = CachedView(
    2**63 + 5,
    70,
    [
        KeyValue(f"{ROOT}services/web/client", '{"version":1,"position":0,"options":{"name":"Ä"}}'.encode(), 3, 9, 0),
        KeyValue(f"{ROOT}issues/k/client", b'{"version":1,"reason":"\xff"}', 4, 4, 77),
    ],
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "nodes" / "n" / "registry.json"


def save(path: Path, view: CachedView = VIEW) -> None:
    asyncio.run(FileCache(path).save(ROOT, view))


def load(path: Path) -> CachedView | None:
    return asyncio.run(FileCache(path).load(ROOT))


def test_what_is_saved_is_loaded_and_only_its_user_may_read_it(path: Path) -> None:
    assert load(path) is None
    save(path)
    save(path)
    assert load(path) == VIEW
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_save_that_was_interrupted_changes_nothing(path: Path) -> None:
    save(path)
    path.with_name("registry.json.new").write_text("half")
    assert load(path) == VIEW
    save(path, VIEW._replace(revision=80))
    assert load(path) == VIEW._replace(revision=80)


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


def changed(**fields: object) -> bytes:
    return json.dumps({"version": 1, "root": ROOT, "cluster_id": 1, "revision": 1, "keys": [], **fields}).encode()


@pytest.mark.parametrize(
    "make",
    [
        lambda path: write(path, b""),
        lambda path: write(path, b"\xff\x00"),
        lambda path: write(path, b"[]"),
        lambda path: write(path, b"{}"),
        lambda path: write(path, changed(root="/svcnode/v1/other/")),
        lambda path: write(path, changed(version=2)),
        lambda path: write(path, changed(keys=[["k", "v"]])),
        lambda path: write(path, changed(keys=[["k", 1, 1, 1, 0]])),
        lambda path: write(path, changed(revision="x")),
        lambda path: path.mkdir(parents=True),
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_with_one_warning(
    path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    make(path)
    with caplog.at_level(logging.WARNING):
        assert load(path) is None
    assert [getattr(record, "event", "") for record in caplog.records] == ["registry_cache_failed"]


def test_a_folder_that_cannot_be_written_is_one_warning_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "nodes").write_text("a file")
    cache = FileCache(tmp_path / "nodes" / "n" / "registry.json")

    async def save_twice() -> None:
        await cache.save(ROOT, VIEW)
        await cache.save(ROOT, VIEW)

    with caplog.at_level(logging.WARNING):
        asyncio.run(save_twice())
        assert len(caplog.records) == 1
        (tmp_path / "nodes").unlink()
        asyncio.run(save_twice())
        assert len(caplog.records) == 1
    assert asyncio.run(cache.load(ROOT)) == VIEW
