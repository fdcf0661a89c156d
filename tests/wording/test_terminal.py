"""The texts of `svcnode status` and `svcnode watch`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.cli.terminal.render import Symbols, render_node, render_nodes
from svcnode.cli.terminal.snapshot import NodeSnapshot, NodeSource, take_snapshots
from svcnode.cli.terminal.watch.app import WatchApp
from svcnode.cli.terminal.watch.keys import Key
from svcnode.cli.terminal.watch.screen import Screen
from svcnode.client import BackingService, Health, Identity, Status
from svcnode.core.errors import (
    InvalidValueError,
    NodeFailedError,
    UnexpectedResponseError,
    UnreachableError,
    VersionNotFoundError,
)
from tests.support.virtual_time import in_virtual_time
from tests.unit.cli.terminal.test_snapshot import FOREVER_S, RESPONSES, FakeClient, source_of
from tests.unit.cli.terminal.test_watch_render import RenderHarness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from tests.wording.conftest import Snapshot


IDENTITY = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.4.2")
DB = BackingService(id="db", name="Ledger database", description="Holds the ledger", status=Status.UP)
INDEXER = BackingService(id="indexer", name="Indexer", description="Follows the chain", status=Status.DOWN)
STORAGE = BackingService(id="storage", name="Storage", description="", status=Status.INITIALIZING)
SILENT = BackingService(id="old", name="", description="", status=None)
PARTIAL = NodeSnapshot(
    url="http://a:1",
    identity=IDENTITY,
    health=Health.PARTIAL,
    services=(DB, INDEXER, STORAGE, SILENT),
    duration_s=0.004,
)
HEALTHY = NodeSnapshot(url="http://b:1", identity=IDENTITY, health=Health.HEALTHY, services=(DB,), duration_s=0.004)
REMARK = NodeSnapshot(
    url="http://c:1",
    identity=IDENTITY,
    health=Health.HEALTHY,
    services=(INDEXER, STORAGE),
    deviations=("a service has no status",),
)
REFUSED = NodeSnapshot(url="http://d:1", errors=(UnreachableError("connection refused", url="http://d:1"),))
OTHERS = (
    NodeSnapshot(url="http://e:1", errors=(VersionNotFoundError("no such version", url="http://e:1"),)),
    NodeSnapshot(url="http://f:1", health=Health.HEALTHY, errors=(NodeFailedError("answered 500", url="http://f:1"),)),
    NodeSnapshot(url="http://g:1", errors=(UnexpectedResponseError("expected HTTP", url="http://g:1"),)),
    NodeSnapshot(url="http://h:1", interrupted="interrupted after 2.4 s: no response"),
)


def text(lines: Sequence[Text]) -> str:
    return "\n".join(line.plain.rstrip() for line in lines)


def test_status_of_one_node(snapshot: Snapshot) -> None:
    snapshot("status_one", "\n\n".join(text(render_node(one, Symbols())) for one in (PARTIAL, REMARK, REFUSED)))


def problem(service_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": service_id,
        "name": service_id.title(),
        "count": 1,
        "members": [{"id": service_id, "name": service_id.title(), "since": "2027-01-15T08:00:05.000Z"}],
        "group": "",
        "group_count": 0,
        "status": "Down",
        "impact": "partial",
        "code": "connection_refused",
        "reason": "connection refused",
        "since": "2027-01-15T08:00:05.000Z",
        "since_s": 1560.0,
        "effects": [],
        "effect_count": 0,
        "outages": None,
        "advice": "Start the server.",
        "runbook": None,
        "acknowledged": None,
        "maintenance": None,
        "page": None,
    } | fields


def effect(name: str, offset_s: float, impact: str = "partial") -> dict[str, Any]:
    return {"id": name.lower(), "name": name, "status": "Down", "impact": impact, "offset_s": offset_s}


PROBLEMS = [
    problem(
        "indexer",
        impact="critical",
        effects=[effect("Block API", 2.0, "critical"), effect("Validator", 3.0)],
        effect_count=7,
        outages={"count": 4, "period_s": 2_592_000, "text": "4th time in 30 days"},
        runbook="https://wiki.example.com/indexer",
        page="http://10.0.0.5:8420/",
        acknowledged={"text": "by ops at 2027-01-15 08:07:00 UTC"},
        maintenance={"text": "until 2027-01-15 09:00:00 UTC, by eve"},
    ),
    problem(
        "s0",
        count=20,
        members=[{"id": f"s{number}", "name": "", "since": "2027-01-15T08:18:00.000Z"} for number in range(8)],
        group="search",
        reason="HTTP status 500",
        impact="none",
    ),
    problem(
        "s0",
        count=900,
        members=[{"id": "s0", "name": "S 0"}],
        group=None,
        group_count=12,
        status="Initializing",
        advice="",
    ),
]
GROUPS = [
    {"name": "Chain", "total": 4, "up": 3, "down": 1},
    {"name": "Storage", "total": 4, "up": 2, "down": 0},
    {"name": "Edge", "total": 12, "up": 12, "down": 0},
    {"name": "Core", "total": 1, "up": 1, "down": 0},
]
DOCUMENT = {"problems": PROBLEMS, "more": 1, "groups": GROUPS, "more_groups": 3}


def test_problems_of_a_node(snapshot: Snapshot) -> None:
    lines = render_node(replace(PARTIAL, problems=DOCUMENT), Symbols())
    snapshot("status_problems", text(lines))


def test_status_of_many_nodes(snapshot: Snapshot) -> None:
    nodes = [HEALTHY, PARTIAL, REMARK, REFUSED, *OTHERS]
    snapshot("status_many", text(render_nodes(nodes, Symbols(), with_all=False)))


def client(**responses: Any) -> FakeClient:
    """Hangs in every request that has no response."""
    return FakeClient(responses=responses, duration_s=dict.fromkeys({*RESPONSES} - {*responses}, FOREVER_S))


async def snapshot_texts(clients: Sequence[FakeClient], stop_after_s: float) -> list[str]:
    loop = asyncio.get_running_loop()
    stopped = loop.create_future()
    loop.call_later(stop_after_s, stopped.set_result, None)
    taken = await take_snapshots([*map(source_of, clients)], 4.0, stopped=stopped)
    return [one.interrupted or "; ".join(map(str, one.errors)) for one in taken]


@in_virtual_time
async def test_errors_of_snapshots(snapshot: Snapshot) -> None:
    partial = client(identity=IDENTITY, health=Health.HEALTHY)
    internal = client(identity=IDENTITY, health=UnicodeError("label empty"), services=())
    clients = [client(), partial, internal]
    lines = [*await snapshot_texts(clients, stop_after_s=1000), *await snapshot_texts(clients, stop_after_s=1.5)]
    snapshot("snapshot_errors", "\n".join(lines))


def test_watch(snapshot: Snapshot) -> None:
    watch = RenderHarness(PARTIAL, REMARK, REFUSED, *OTHERS, "http://pending:1").at(64)
    watch.model.nodes[-1].requested_s = 60.0

    def screen(*keys: Key | str, height: int = 18) -> str:
        return "\n".join(watch.press(*keys).lines(100, height))

    screens = {
        "nodes": screen(),
        "expanded, as given": screen("s", *[Key.DOWN] * 3, Key.ENTER),
        "service selected": screen(Key.DOWN, Key.DOWN, Key.DOWN),
        "typing a filter": screen("/", *"down", height=10),
        "no match": screen(*"xyz", height=8),
        "filter": screen(*[Key.BACKSPACE] * 3, Key.ENTER, height=10),
        "help": screen("?", height=24),
    }
    snapshot("watch", "\n\n".join(f"=== {name}\n{shown}" for name, shown in screens.items()))


def test_watch_errors(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdout:
        is_terminal = False

        def isatty(self) -> bool:
            return self.is_terminal

    errors = []
    monkeypatch.setattr("sys.stdout", Stdout())
    with pytest.raises(InvalidValueError) as caught:
        Screen()
    errors.append(caught.value)
    monkeypatch.setattr(Stdout, "is_terminal", True)
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(InvalidValueError) as caught:
        Screen()
    errors.append(caught.value)
    monkeypatch.setattr("svcnode.cli.terminal.watch.app.max_concurrent_nodes", lambda: 70)
    with pytest.raises(InvalidValueError) as caught:
        WatchApp(cast("Screen", None), cast("list[NodeSource]", [None] * 500), 2.0, 10.0)
    errors.append(caught.value)
    snapshot("watch_errors", "\n".join(map(str, errors)))
