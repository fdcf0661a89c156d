"""Snapshots of nodes in virtual time: requests, timeouts, errors and interrupts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.cli.terminal.loop_lag import MAX_EXTENSION_S, LoopLagMonitor
from svcnode.cli.terminal.render import health_text
from svcnode.cli.terminal.snapshot import NodeSnapshot, NodeSource, OverallHealth, take_snapshot, take_snapshots
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import (
    ClientError,
    NodeFailedError,
    UnexpectedResponseError,
    UnreachableError,
    VersionIgnoredError,
    VersionNotFoundError,
)
from svcnode.core.model import Health, Identity
from tests.support.scheduling import block_loop
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from svcnode.client import AsyncClient

IDENTITY = Identity(node_name="n", spec_version="v0.0.1", node_version="v1")
RESPONSES = {"identity": IDENTITY, "health": Health.HEALTHY, "services": ()}
NOT_FOUND = UnexpectedResponseError("404", code=ReasonCode.NOT_FOUND)
FOREVER_S = 1e9


class FakeClient:
    """Responds after a delay; raises a response that is an exception."""

    url, root, deviations = "http://n:1", "http://n:1/svc", ()

    def __init__(
        self,
        *,
        responses: dict[str, Any] | None = None,
        duration_s: dict[str, float] | None = None,
        close_duration_s: float = 0.0,
    ) -> None:
        self._responses = RESPONSES | (responses or {})
        self._duration_s = duration_s or {}
        self._close_duration_s = close_duration_s
        self.requests: list[tuple[str, float]] = []
        self.is_closed = False

    def __getattr__(self, name: str) -> Any:
        async def request() -> Any:
            self.requests.append((name, asyncio.get_running_loop().time()))
            await asyncio.sleep(self._duration_s.get(name, 0.0))
            if isinstance(response := self._responses[name], Exception):
                raise response
            return response

        return request

    async def aclose(self) -> None:
        await asyncio.sleep(self._close_duration_s)
        self.is_closed = True


async def snapshot_of(client: FakeClient, timeout_s: float = 4.0) -> NodeSnapshot:
    with LoopLagMonitor() as lag_monitor:
        return await take_snapshot(source_of(client), timeout_s, lag_monitor)


def source_of(client: FakeClient, other: FakeClient | None = None) -> NodeSource:
    return NodeSource(cast("AsyncClient", client), cast("AsyncClient | None", other))


def errors(snapshot: NodeSnapshot) -> list[tuple[type[ClientError], str]]:
    return [(type(error), error.url or error.problem) for error in snapshot.errors]


@in_virtual_time
async def test_requests_are_sent_one_after_another() -> None:
    client = FakeClient(duration_s=dict.fromkeys(RESPONSES, 0.5))
    snapshot = await snapshot_of(client)
    assert client.requests == [("identity", 0.0), ("health", 0.5), ("services", 1.0)]
    assert (snapshot.identity, snapshot.health, snapshot.services, snapshot.errors) == (
        IDENTITY,
        Health.HEALTHY,
        (),
        (),
    )


@pytest.mark.parametrize(
    ("slow", "path"), [("identity", "/svc/node"), ("health", "/svc/node/health"), ("services", "/svc/node/services")]
)
@in_virtual_time
async def test_a_request_that_hangs_does_not_hide_the_other_responses(slow: str, path: str) -> None:
    snapshot = await snapshot_of(FakeClient(duration_s={slow: FOREVER_S}))
    assert errors(snapshot) == [(UnreachableError, f"http://n:1{path}")]
    assert [error.code for error in snapshot.errors] == [ReasonCode.TIMEOUT]
    assert {name for name in RESPONSES if getattr(snapshot, name) is not None} == RESPONSES.keys() - {slow}
    assert (snapshot.overall_health, health_text(snapshot)) == (OverallHealth.UNKNOWN, "unknown")
    assert snapshot.duration_s == pytest.approx(4.0)


@in_virtual_time
async def test_a_node_that_does_not_respond_is_unreachable_with_one_error() -> None:
    snapshot = await snapshot_of(FakeClient(duration_s=dict.fromkeys(RESPONSES, FOREVER_S)))
    assert errors(snapshot) == [(UnreachableError, "http://n:1")]
    assert health_text(snapshot) == "unreachable"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_a_response_may_take_the_whole_timeout() -> None:
    snapshot = await snapshot_of(FakeClient(duration_s={"identity": 3.9}))
    assert (snapshot.overall_health, snapshot.duration_s) == (OverallHealth.HEALTHY, 3.9)


@pytest.mark.parametrize(("error", "text"), [(NodeFailedError("disk"), "failing"), (NOT_FOUND, "no identity")])
@in_virtual_time
async def test_a_200_without_an_identity_is_unknown(error: ClientError, text: str) -> None:
    snapshot = await snapshot_of(FakeClient(responses={"identity": error}))
    assert (snapshot.health, snapshot.overall_health, health_text(snapshot)) == (
        Health.HEALTHY,
        OverallHealth.UNKNOWN,
        text,
    )
    assert [type(error) for error in snapshot.errors] == [type(error)]


@pytest.mark.parametrize("error", [UnreachableError("refused"), VersionNotFoundError("v9"), VersionIgnoredError("v9")])
@in_virtual_time
async def test_an_error_of_the_whole_node_ends_the_requests(error: ClientError) -> None:
    client = FakeClient(responses={"identity": error})
    assert (await snapshot_of(client)).errors == (error,)
    assert len(client.requests) == 1


@in_virtual_time
async def test_an_unforeseen_error_affects_only_its_node() -> None:
    clients = [FakeClient(), FakeClient(responses={"health": UnicodeError("Empty Label")}), FakeClient()]
    snapshots = await take_snapshots([*map(source_of, clients)], 4.0)
    assert [snapshot.overall_health for snapshot in snapshots] == [
        OverallHealth.HEALTHY,
        OverallHealth.UNKNOWN,
        OverallHealth.HEALTHY,
    ]
    (error,) = snapshots[1].errors
    assert type(error) is ClientError
    assert str(error).endswith(": UnicodeError: Empty Label")
    assert all(client.is_closed for client in clients)


@in_virtual_time
async def test_a_cancelled_snapshot_leaves_no_tasks() -> None:
    task = asyncio.create_task(snapshot_of(FakeClient(duration_s=dict.fromkeys(RESPONSES, FOREVER_S))))
    await asyncio.sleep(3.0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


EVERYTHING_NOT_FOUND = dict.fromkeys(RESPONSES, NOT_FOUND)


async def snapshot_with_other_prefix(client: FakeClient, other: FakeClient) -> tuple[NodeSnapshot, NodeSource]:
    source = source_of(client, other)
    with LoopLagMonitor() as lag_monitor:
        return await take_snapshot(source, 4.0, lag_monitor), source


@in_virtual_time
async def test_the_other_prefix_is_used_if_no_endpoint_exists() -> None:
    first, other = FakeClient(responses=EVERYTHING_NOT_FOUND), FakeClient()
    snapshot, source = await snapshot_with_other_prefix(first, other)
    assert (snapshot.overall_health, snapshot.errors, len(snapshot.remarks)) == (OverallHealth.HEALTHY, (), 1)
    with LoopLagMonitor() as lag_monitor:
        again = await take_snapshot(source, 4.0, lag_monitor)
    assert again.remarks == snapshot.remarks
    assert (len(first.requests), len(other.requests)) == (3, 6)


@in_virtual_time
@pytest.mark.parametrize("responses", [{"health": Health.PARTIAL}, {"services": NodeFailedError("disk")}])
async def test_the_other_prefix_is_not_tried_if_one_endpoint_exists(responses: dict[str, Any]) -> None:
    other = FakeClient()
    snapshot, _ = await snapshot_with_other_prefix(FakeClient(responses=EVERYTHING_NOT_FOUND | responses), other)
    assert (snapshot.overall_health, snapshot.remarks, other.requests) == (OverallHealth.UNKNOWN, (), [])


@in_virtual_time
@pytest.mark.parametrize(
    "other",
    [FakeClient(responses=EVERYTHING_NOT_FOUND), FakeClient(duration_s=dict.fromkeys(RESPONSES, FOREVER_S))],
    ids=["not found", "hangs"],
)
async def test_without_data_under_the_other_prefix_the_first_errors_are_shown(other: FakeClient) -> None:
    snapshot, source = await snapshot_with_other_prefix(FakeClient(responses=EVERYTHING_NOT_FOUND), other)
    assert (snapshot.errors, snapshot.remarks) == ((NOT_FOUND,) * 3, ())
    assert source.other is not None
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def interrupted_after(after_s: float, *clients: FakeClient) -> list[NodeSnapshot]:
    loop = asyncio.get_running_loop()
    stopped = loop.create_future()
    loop.call_later(after_s, stopped.set_result, None)
    return await take_snapshots([*map(source_of, clients)], 8.0, stopped=stopped)


@in_virtual_time
async def test_an_interrupt_keeps_the_responses_received_so_far() -> None:
    clients = [
        FakeClient(),
        FakeClient(duration_s=dict.fromkeys(RESPONSES, FOREVER_S)),
        FakeClient(duration_s={"health": FOREVER_S}),
        FakeClient(responses={"identity": NodeFailedError("disk")}, duration_s={"services": FOREVER_S}),
    ]
    complete, silent, partial, failing = await interrupted_after(1.5, *clients)
    assert (complete.overall_health, complete.interrupted, complete.duration_s) == (OverallHealth.HEALTHY, "", 0.0)
    assert (silent.overall_health, silent.errors, silent.has_data) == (OverallHealth.UNKNOWN, (), False)
    assert " 1.5 s" in silent.interrupted
    assert (partial.overall_health, partial.errors, partial.identity, partial.health) == (
        OverallHealth.UNKNOWN,
        (),
        IDENTITY,
        None,
    )
    assert " 1.5 s" in partial.interrupted
    assert partial.interrupted != silent.interrupted
    assert (failing.health, failing.overall_health) == (Health.HEALTHY, OverallHealth.UNKNOWN)
    assert (errors(failing), health_text(failing)) == ([(NodeFailedError, "disk")], "interrupted")
    assert all(client.is_closed for client in clients)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_an_interrupt_before_the_first_request_sends_none_and_a_complete_node_is_not_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (closing,) = await interrupted_after(1.5, FakeClient(close_duration_s=FOREVER_S))
    assert (closing.overall_health, closing.interrupted) == (OverallHealth.HEALTHY, "")
    monkeypatch.setattr("svcnode.cli.terminal.snapshot.max_concurrent_nodes", lambda: 1)
    first, second = FakeClient(duration_s={"identity": FOREVER_S}), FakeClient()
    *_, snapshot = await interrupted_after(1.5, first, second)
    assert (bool(snapshot.interrupted), snapshot.duration_s, second.requests) == (True, 0.0, [])


@in_virtual_time
async def test_lag_of_our_own_loop_does_not_time_out_a_node() -> None:
    loop = asyncio.get_running_loop()
    for number in range(4):
        loop.call_later(0.2 + 2.1 * number, block_loop, 2.0)
    client = FakeClient(duration_s=dict.fromkeys(RESPONSES, 0.1))
    snapshot = await snapshot_of(client, timeout_s=1.0)
    assert (snapshot.overall_health, snapshot.errors) == (OverallHealth.HEALTHY, ())
    assert snapshot.duration_s > 2.0


@in_virtual_time
async def test_a_node_that_hangs_times_out_in_spite_of_lag() -> None:
    loop = asyncio.get_running_loop()
    for number in range(400):
        loop.call_later(0.3 * number, block_loop, 0.2)
    snapshot = await snapshot_of(FakeClient(duration_s=dict.fromkeys(RESPONSES, FOREVER_S)), timeout_s=1.0)
    assert snapshot.overall_health is OverallHealth.UNKNOWN
    assert snapshot.duration_s == pytest.approx(1.0 + MAX_EXTENSION_S, abs=0.3)
