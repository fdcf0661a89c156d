"""The texts of `svcnode status` and `svcnode watch`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.cli.terminal.render import Symbols, render_node, render_nodes
from svcnode.cli.terminal.snapshot import NodeSnapshot, NodeSource, take_snapshots
from svcnode.cli.terminal.watch.app import WatchApp
from svcnode.cli.terminal.watch.keys import Key
from svcnode.cli.terminal.watch.model import WatchModel
from svcnode.cli.terminal.watch.render import FIXED_LINES, render_page
from svcnode.cli.terminal.watch.screen import Screen
from svcnode.cli.terminal.watch.view import WatchView
from svcnode.client import BackingService, Health, Identity, Status
from svcnode.core.errors import (
    InvalidValueError,
    NodeFailedError,
    UnexpectedResponseError,
    UnreachableError,
    VersionNotFoundError,
)
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.text import Text

    from svcnode.client import AsyncClient

    Snapshot = Callable[[str, str], None]

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


def test_status_of_many_nodes(snapshot: Snapshot) -> None:
    nodes = [HEALTHY, PARTIAL, REMARK, REFUSED, *OTHERS]
    snapshot("status_many", text(render_nodes(nodes, Symbols(), with_all=False)))


class HangingClient:
    url, root, deviations = "http://n:1", "http://n:1/svc", ()

    def __init__(self, **responses: Any) -> None:
        self._responses = responses

    def __getattr__(self, name: str) -> Any:
        async def request() -> Any:
            if name not in self._responses:
                await asyncio.sleep(1e9)
            if isinstance(response := self._responses[name], Exception):
                raise response
            return response

        return request

    async def aclose(self) -> None:
        pass


async def snapshot_texts(clients: Sequence[HangingClient], stop_after_s: float) -> list[str]:
    loop = asyncio.get_running_loop()
    stopped = loop.create_future()
    loop.call_later(stop_after_s, stopped.set_result, None)
    taken = await take_snapshots([NodeSource(cast("AsyncClient", client)) for client in clients], 4.0, stopped=stopped)
    return [one.interrupted or "; ".join(map(str, one.errors)) for one in taken]


@in_virtual_time
async def test_errors_of_snapshots(snapshot: Snapshot) -> None:
    partial = HangingClient(identity=IDENTITY, health=Health.HEALTHY)
    internal = HangingClient(identity=IDENTITY, health=UnicodeError("label empty"), services=())
    clients = [HangingClient(), partial, internal]
    lines = [*await snapshot_texts(clients, stop_after_s=1000), *await snapshot_texts(clients, stop_after_s=1.5)]
    snapshot("snapshot_errors", "\n".join(lines))


# ---- watch


class Watch:
    def __init__(self, *snapshots: NodeSnapshot | str) -> None:
        self.model = WatchModel([one if isinstance(one, str) else one.url for one in snapshots], 2.0)
        self.view = WatchView(self.model)
        for number, one in enumerate(snapshots):
            if not isinstance(one, str):
                self.model.nodes[number].update(one, 0.0)
        self.model.nodes[-1].requested_s = 60.0

    def screen(self, *keys: Key | str, width: int = 100, height: int = 18) -> str:
        for key in keys:
            self.view.press(key, width)
        page = self.view.page(width, height - FIXED_LINES)
        return text(render_page(page, 64.0, width, height, Symbols()))


def test_watch(snapshot: Snapshot) -> None:
    watch = Watch(PARTIAL, REMARK, REFUSED, *OTHERS, "http://pending:1")
    screens = {
        "nodes": watch.screen(),
        "expanded": watch.screen(Key.DOWN, Key.DOWN, Key.ENTER),
        "service selected": watch.screen(Key.DOWN, Key.DOWN, Key.DOWN),
        "typing a filter": watch.screen("/", *"down", height=10),
        "no match": watch.screen(*"xyz", height=8),
        "filter": watch.screen(*[Key.BACKSPACE] * 3, Key.ENTER, height=10),
        "help": watch.screen("?", height=24),
    }
    snapshot("watch", "\n\n".join(f"=== {name}\n{screen}" for name, screen in screens.items()))


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
