"""A node with its page, in this process: its services change by calls of the test, thousands of times if need be."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

from svcnode.api.app import Mount
from svcnode.core.address import Address
from svcnode.history import History
from svcnode.node.checks import Checks
from svcnode.operator import OperatorApp
from svcnode.operator.auth import OperatorAuth
from svcnode.operator.surface import OperatorSurface
from tests.support.http_server import WAIT_TIMEOUT_S, running_server
from tests.support.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path
    from typing import Any

    from svcnode.node.node_state import Handle, NodeState

T = TypeVar("T")
NAME = "validator-7"


class PageNode:
    def __init__(self, node: NodeState, port: int, handles: list[Handle]) -> None:
        self.node = node
        self.port = port
        self.handles = handles

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def statuses(self) -> dict[str, str]:
        return {service.id: state.status.value for service, state in self.node}


@contextmanager
def page_node(
    service_count: int, *, port: int = 0, prefix: str = "svc", history_path: Path | None = None
) -> Iterator[PageNode]:
    """Its services are `{prefix}-0` and so on, all Up. Without a path, the history is in memory."""
    node = make_node(NAME)
    handles = [node.register(f"{prefix}-{number}") for number in range(service_count)]
    for handle in handles:
        handle.up()
    mount = Mount()
    with running_server(node, listener=socket.create_server(("127.0.0.1", port)), mount=mount) as server:

        def run(coroutine: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(coroutine, server.loop).result(WAIT_TIMEOUT_S)

        stack = AsyncExitStack()
        surface = OperatorSurface(node, Checks(node))
        node.why_unchecked = str
        context = run(stack.enter_async_context(surface.recording(History(node, history_path))))
        here = Address(scheme="http", host="127.0.0.1", port=server.address[1])
        server.call(lambda: mount.set_app(OperatorApp(context, OperatorAuth(here, None, trusts_loopback=True))))
        try:
            yield PageNode(node, server.address[1], handles)
        finally:
            server.call(lambda: mount.set_app(None))
            run(stack.aclose())


class Changes:
    """Changes random services of the node many times a second, until the end of its block."""

    def __init__(self, handles: list[Handle], per_s: float) -> None:
        self._handles = handles
        self._interval_s = 1.0 / per_s
        self._left_at_s: dict[tuple[str, str], float] = {}  # when a service last left a status
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def longest_lag_s(self, shown: dict[str, str], at_s: float) -> float:
        """How long ago the statuses that were shown at this time were true, for the service that is most behind."""
        return max(self._lag_s(handle, shown, at_s) for handle in self._handles)

    def _lag_s(self, handle: Handle, shown: dict[str, str], at_s: float) -> float:
        status = shown.get(handle.id, "no row")
        if status == handle.state.status.value:
            return 0.0
        return at_s - self._left_at_s.get((handle.id, status), float("-inf"))

    def _run(self) -> None:
        chance = random.Random(1)
        while not self._is_over.wait(self._interval_s):
            handle = chance.choice(self._handles)
            status = handle.state.status.value
            self._left_at_s[handle.id, status] = time.monotonic()
            handle.down("refused") if status == "Up" else handle.up()
