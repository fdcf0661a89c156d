"""Services whose value must advance, in virtual time: what is remembered over checks, outages, pauses and reloads."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.model import Status
from svcnode.net.http_response import HttpResponse
from svcnode.node.definition import define
from svcnode.probes import make_probe
from svcnode.probes.http import HttpProbe
from tests.support.scheduling import block_loop, make_node, make_scheduler, now_s
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from svcnode.node.definition import Definition

UP, DOWN, INITIALIZING = Status.UP, Status.DOWN, Status.INITIALIZING
OFFLINE, MISSING = "offline", "missing"


class Indexer:
    """A server whose height a test sets, in a node that checks it every 10 s. It must grow within a minute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(HttpProbe, "send", self._respond)
        self._height: int | str = 100
        self.node = make_node()

    async def _respond(self, _: object) -> HttpResponse:
        if self._height == OFFLINE:
            raise ConnectionRefusedError
        document = {} if self._height == MISSING else {"height": self._height}
        return HttpResponse(200, {}, json.dumps(document).encode())

    def definition(self, *, within: str = "60s", starting: str = "/height < 0", **options: Any) -> Definition:
        """With a new probe, as after a reload."""
        require = f"/height advances within {within}"
        probe = make_probe({"url": "http://127.0.0.1:1/", "require": [require], "starting": [starting]})
        assert isinstance(probe, HttpProbe)
        object.__setattr__(probe.require[0].test, "clock", now_s)
        options = {"interval": "10s"} | options
        return define("indexer", **options, transition_interval=options["interval"], probe=probe)

    @asynccontextmanager
    async def checked(self, **options: Any) -> AsyncIterator[None]:
        """From the first check on, with the height 100."""
        self.node.add(self.definition(**options))
        async with make_scheduler(self.node):
            await asyncio.sleep(5.0)
            yield

    async def run(self, *heights: int | str) -> list[Status]:
        """The status after one check with each of them."""
        return [await self._run(height) for height in heights]

    async def _run(self, height: int | str) -> Status:
        self._height = height
        await asyncio.sleep(10.0)
        return self.status

    @property
    def status(self) -> Status:
        return self.node.state("indexer").status

    @property
    def code(self) -> str:
        return self.node.state("indexer").code


@in_virtual_time
async def test_a_service_is_initializing_until_its_value_has_moved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    indexer = Indexer(monkeypatch)
    async with indexer.checked():
        assert (indexer.status, indexer.code) == (INITIALIZING, "starting")
        assert await indexer.run(100, 101, 101) == [INITIALIZING, UP, UP]


@in_virtual_time
async def test_a_service_whose_value_never_moves_is_down_after_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    indexer = Indexer(monkeypatch)
    async with indexer.checked():
        assert await indexer.run(*[100] * 8) == [INITIALIZING] * 8
        assert await indexer.run(100) == [DOWN]
        assert indexer.code == "stalled"
        assert await indexer.run(101, 102) == [DOWN, UP]


@in_virtual_time
async def test_a_service_that_stops_is_down_after_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    indexer = Indexer(monkeypatch)
    async with indexer.checked():
        assert await indexer.run(101, *[101] * 6) == [UP] * 7
        assert await indexer.run(101, 101, 101) == [UP, UP, DOWN]


@in_virtual_time
async def test_an_outage_neither_ends_nor_extends_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down for three checks, and then ready again at once, because it has moved in time; but not for longer."""
    indexer = Indexer(monkeypatch)
    async with indexer.checked():
        assert await indexer.run(101, OFFLINE, OFFLINE, OFFLINE) == [UP, UP, UP, DOWN]
        assert await indexer.run(101, 101) == [DOWN, UP]
        assert await indexer.run(101, 101, 101, 101) == [UP, UP, UP, DOWN]
        assert indexer.code == "stalled"


@in_virtual_time
async def test_after_an_outage_longer_than_the_window_only_new_growth_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    indexer = Indexer(monkeypatch)
    async with indexer.checked():
        assert await indexer.run(101, *[OFFLINE] * 8) == [UP, UP, UP, *[DOWN] * 6]
        assert await indexer.run(101, 101) == [DOWN, DOWN]
        assert indexer.code == "stalled"
        assert await indexer.run(*[OFFLINE] * 8, 500) == [*[DOWN] * 8, INITIALIZING]  # of unknown age
        assert await indexer.run(501) == [UP]


@in_virtual_time
async def test_a_restarted_service_must_grow_from_its_new_value(monkeypatch: pytest.MonkeyPatch) -> None:
    indexer = Indexer(monkeypatch)
    async with indexer.checked():
        assert await indexer.run(101, OFFLINE, 0, 0, 1) == [UP] * 5
        assert await indexer.run(OFFLINE, 0, *[0] * 5) == [UP] * 7
        assert await indexer.run(0, 0) == [UP, DOWN]


@in_virtual_time
async def test_a_value_that_is_missing_for_a_while_is_compared_with_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    indexer = Indexer(monkeypatch)
    async with indexer.checked():
        assert await indexer.run(101, MISSING, MISSING, 102) == [UP] * 4
        assert await indexer.run(*[MISSING] * 9) == [*[UP] * 8, DOWN]


@in_virtual_time
async def test_after_this_machine_has_slept_growth_must_be_seen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    indexer = Indexer(monkeypatch)
    async with indexer.checked():
        assert await indexer.run(101) == [UP]
        block_loop(3600.0)
        assert await indexer.run(5000) == [INITIALIZING]
        assert await indexer.run(5001) == [UP]


@pytest.mark.parametrize("options", [{}, {"name": "Indexer 1"}, {"interval": "9s"}, {"timeout": "1s"}, {"fall": 4}])
@in_virtual_time
async def test_a_reload_with_the_same_probe_remembers_the_progress(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    indexer = Indexer(monkeypatch)
    async with indexer.checked():
        assert await indexer.run(101, 101) == [UP, UP]
        for _ in range(2):
            indexer.node.replace(indexer.definition(**options))
            assert await indexer.run(101, 101) == [UP, UP]
        assert DOWN in await indexer.run(*[101] * 6)  # the window has not begun again


@in_virtual_time
async def test_a_reload_with_another_condition_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    indexer = Indexer(monkeypatch)
    async with indexer.checked():
        assert await indexer.run(101) == [UP]
        indexer.node.replace(indexer.definition(within="90s"))
        assert await indexer.run(101, 102) == [INITIALIZING, UP]


@in_virtual_time
async def test_stopped_checks_that_start_again_remember_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    indexer = Indexer(monkeypatch)
    async with indexer.checked():
        assert await indexer.run(101) == [UP]
    async with make_scheduler(indexer.node):
        assert await indexer.run(101) == [UP]


@in_virtual_time
async def test_progress_is_remembered_while_the_service_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    indexer = Indexer(monkeypatch)
    async with indexer.checked(starting="/height < 200"):
        assert await indexer.run(*range(101, 111)) == [INITIALIZING] * 10
        assert await indexer.run(200) == [UP]
