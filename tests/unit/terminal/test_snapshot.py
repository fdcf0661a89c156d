"""One look at a node: which questions it is asked, what may keep them waiting, and what becomes of the answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.core.errors import ClientError, NodeFailedError, UnreachableError, VersionNotFoundError
from svcnode.core.model import Health, Identity
from svcnode.terminal.loop_lag import MAX_EXTENSION_S, LoopLagMonitor
from svcnode.terminal.render import health_text
from svcnode.terminal.snapshot import NodeSnapshot, OverallHealth, take_snapshot, take_snapshots
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time

if TYPE_CHECKING:
    from svcnode.client import AsyncClient

WHO = Identity(node_name="n", spec_version="v0.0.1", node_version="v1")
ANSWERS = {"identity": WHO, "health": Health.HEALTHY, "services": ()}
HANGS = 1e9


class FakeClient:
    """Takes its time for each answer; an exception is raised."""

    url, root, deviations = "http://n:1", "http://n:1/svc", ()

    def __init__(
        self,
        *,
        answers: dict[str, Any] | None = None,
        takes_s: dict[str, float] | None = None,
        closes_in_s: float = 0.0,
    ) -> None:
        self._answers = ANSWERS | (answers or {})
        self._takes_s = takes_s or {}
        self._closes_in_s = closes_in_s
        self.queries: list[tuple[str, float]] = []
        self.is_closed = False

    def __getattr__(self, what: str) -> Any:
        async def ask() -> Any:
            self.queries.append((what, asyncio.get_running_loop().time()))
            await asyncio.sleep(self._takes_s.get(what, 0.0))
            if isinstance(answer := self._answers[what], Exception):
                raise answer
            return answer

        return ask

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(self._closes_in_s)
        self.is_closed = True


async def look(client: FakeClient, timeout_s: float = 4.0) -> NodeSnapshot:
    with LoopLagMonitor() as pulse:
        return await take_snapshot(cast("AsyncClient", client), timeout_s, pulse)


def errors(look: NodeSnapshot) -> list[str]:
    return [str(error) for error in look.errors]


@in_virtual_time
async def test_a_node_that_answers_is_asked_one_thing_after_another() -> None:
    client = FakeClient(duration_s=dict.fromkeys(ANSWERS, 0.5))
    seen = await look(client)
    assert client.queries == [("identity", 0.0), ("health", 0.5), ("services", 1.0)]
    assert (seen.identity, seen.health, seen.services, seen.errors) == (WHO, Health.HEALTHY, (), ())


@pytest.mark.parametrize(
    ("slow", "path"), [("identity", "/svc/node"), ("health", "/svc/node/health"), ("services", "/svc/node/services")]
)
@in_virtual_time
async def test_one_that_is_never_answered_does_not_hide_the_others_and_is_named(slow: str, path: str) -> None:
    seen = await look(FakeClient(duration_s={slow: HANGS}))
    assert errors(seen) == [f"no whole answer from http://n:1{path} within 4 s"]
    assert {what for what in ANSWERS if getattr(seen, what) is not None} == ANSWERS.keys() - {slow}
    assert (seen.overall_health, health_text(seen)) == (OverallHealth.UNKNOWN, "unknown")
    assert seen.duration_s == pytest.approx(4.0)


@in_virtual_time
async def test_a_node_that_answers_nothing_in_time_is_unreachable_and_that_is_told_once() -> None:
    seen = await look(FakeClient(duration_s=dict.fromkeys(ANSWERS, HANGS)))
    assert errors(seen) == ["no whole answer from http://n:1 within 4 s"]
    assert health_text(seen) == "unreachable"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_an_answer_has_all_of_the_timeout() -> None:
    assert (await look(FakeClient(duration_s={"identity": 3.9}))).overall_health is OverallHealth.HEALTHY


@pytest.mark.parametrize("error", [UnreachableError("refused"), VersionNotFoundError("v9")])
@in_virtual_time
async def test_what_is_so_for_the_whole_node_is_asked_once(error: ClientError) -> None:
    client = FakeClient(cache={"identity": error})
    assert (await look(client)).errors == (error,)
    assert len(client.queries) == 1


@in_virtual_time
async def test_a_failure_of_one_answer_is_told_beside_the_others() -> None:
    seen = await look(FakeClient(cache={"identity": NodeFailedError("disk")}))
    assert (errors(seen), seen.health, health_text(seen)) == (["disk"], Health.HEALTHY, "failing")


@in_virtual_time
async def test_what_nobody_has_thought_of_is_told_in_the_row_of_its_node_and_spares_the_others() -> None:
    clients = [FakeClient(), FakeClient(cache={"health": UnicodeError("Empty Label")}), FakeClient()]
    looks = await take_snapshots(cast("list[AsyncClient]", clients), 4.0)
    assert [seen.overall_health for seen in looks] == [
        OverallHealth.HEALTHY,
        OverallHealth.UNKNOWN,
        OverallHealth.HEALTHY,
    ]
    assert errors(looks[1]) == ["asking it failed by itself: UnicodeError: Empty Label"]
    assert type(looks[1].errors[0]) is ClientError
    assert all(client.is_closed for client in clients)


@in_virtual_time
async def test_a_look_that_is_given_up_leaves_nothing_under_way() -> None:
    looking = asyncio.create_task(look(FakeClient(duration_s=dict.fromkeys(ANSWERS, HANGS))))
    await asyncio.sleep(3.0)
    looking.cancel()
    await asyncio.wait([looking])
    assert looking.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# ---- when we are stopped


async def stopped_after(after_s: float, *clients: FakeClient) -> list[NodeSnapshot]:
    loop = asyncio.get_running_loop()
    stopped = loop.create_future()
    loop.call_later(after_s, stopped.set_result, None)
    return await take_snapshots(cast("list[AsyncClient]", clients), 8.0, stopped=stopped)


@in_virtual_time
async def test_when_stopped_what_is_known_is_kept_and_the_rest_is_cut_short() -> None:
    clients = [
        FakeClient(),
        FakeClient(duration_s=dict.fromkeys(ANSWERS, HANGS)),
        FakeClient(duration_s={"health": HANGS}),
    ]
    whole, silent, half = await stopped_after(1.5, *clients)
    assert (whole.overall_health, whole.interrupted, whole.duration_s) == (OverallHealth.HEALTHY, "", 0.0)
    assert (silent.overall_health, silent.errors, silent.has_data) == (OverallHealth.UNKNOWN, (), False)
    assert silent.interrupted == "stopped after 1.5 s, before it had answered"
    assert (half.overall_health, half.errors, half.identity, half.health) == (OverallHealth.UNKNOWN, (), WHO, None)
    assert half.interrupted == "stopped after 1.5 s, before it had answered everything"
    assert all(client.is_closed for client in clients)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_a_200_is_no_green_light_when_the_rest_was_not_waited_for() -> None:
    (seen,) = await stopped_after(1.5, FakeClient(duration_s={"services": HANGS}))
    assert (seen.health, seen.overall_health, health_text(seen)) == (Health.HEALTHY, OverallHealth.UNKNOWN, "cut short")


@in_virtual_time
async def test_a_fault_that_is_known_when_stopped_is_told() -> None:
    failing = FakeClient(cache={"identity": NodeFailedError("disk")}, duration_s={"health": HANGS})
    (seen,) = await stopped_after(1.5, failing)
    assert (errors(seen), health_text(seen)) == (["disk"], "cut short")


@in_virtual_time
async def test_who_waits_for_a_place_when_stopped_was_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svcnode.terminal.snapshot.max_concurrent_nodes", lambda: 1)
    first, second = FakeClient(duration_s={"identity": HANGS}), FakeClient()
    *_, seen = await stopped_after(1.5, first, second)
    assert (seen.interrupted, seen.duration_s, second.queries) == ("stopped before it was asked", 0.0, [])


@in_virtual_time
async def test_who_has_answered_when_stopped_is_not_waited_for_to_part_and_not_cut_short() -> None:
    (seen,) = await stopped_after(1.5, FakeClient(closes_in_s=HANGS))
    assert (seen.overall_health, seen.interrupted) == (OverallHealth.HEALTHY, "")


@in_virtual_time
async def test_each_look_has_its_own_duration() -> None:
    clients = [FakeClient(duration_s={"identity": took_s}) for took_s in (0.5, 3.0)]
    looks = await take_snapshots(cast("list[AsyncClient]", clients), 8.0)
    assert [seen.duration_s for seen in looks] == [0.5, 3.0]


# ---- when we are slow ourselves


def hold_up(by_s: float) -> None:
    """As if the loop had been busy with something else for so long."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.clock.advance(by_s)


@in_virtual_time
async def test_a_node_is_not_blamed_for_what_we_were_late_with() -> None:
    loop = asyncio.get_running_loop()
    for number in range(4):
        loop.call_later(0.2 + 2.1 * number, hold_up, 2.0)
    client = FakeClient(duration_s=dict.fromkeys(ANSWERS, 0.1))
    seen = await look(client, timeout_s=1.0)
    assert (seen.overall_health, seen.errors) == (OverallHealth.HEALTHY, ())
    assert seen.duration_s > 2.0


@in_virtual_time
async def test_however_busy_we_are_a_node_that_hangs_is_cut_off_at_last() -> None:
    loop = asyncio.get_running_loop()
    for number in range(400):
        loop.call_later(0.3 * number, hold_up, 0.2)
    seen = await look(FakeClient(duration_s=dict.fromkeys(ANSWERS, HANGS)), timeout_s=1.0)
    assert seen.overall_health is OverallHealth.UNKNOWN
    assert seen.duration_s == pytest.approx(1.0 + MAX_EXTENSION_S, abs=0.3)
