"""The application: polls the nodes, reads keys and draws the screen, until a key or a signal ends it.

Each node is polled by its own task, so that a node that hangs does not delay the others.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

from svcnode.cli.terminal.loop_lag import LoopLagMonitor
from svcnode.cli.terminal.snapshot import max_concurrent_nodes, take_snapshot
from svcnode.cli.terminal.watch.keys import KeyReader
from svcnode.cli.terminal.watch.model import WatchModel
from svcnode.cli.terminal.watch.render import FIXED_LINES, render_page
from svcnode.cli.terminal.watch.view import WatchView
from svcnode.core.errors import InvalidValueError, SvcnodeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from svcnode.cli.terminal.snapshot import NodeSnapshot, NodeSource, RegistryEntry
    from svcnode.cli.terminal.watch.keys import Key
    from svcnode.cli.terminal.watch.model import WatchedNode
    from svcnode.cli.terminal.watch.screen import Screen

MAX_POLLS_PER_S = 100.0  # a poll takes a few milliseconds; more of them would delay the reaction to keys
MAX_INITIAL_POLLS_PER_S = 250.0  # about as fast as possible; all at once, polls with a short timeout would time out
REDRAW_S = 0.25  # after a key the screen is redrawn at once
REGISTRY_INTERVAL_S = 5.0
ASK_AGAIN_AFTER_S = 30.0
ESCAPE_DELAY_S = 0.05  # the rest of an escape sequence arrives sooner


class AddProblems(Protocol):
    """Adds what a node says of its problems, if it says it here."""

    async def __call__(self, snapshot: NodeSnapshot, /) -> NodeSnapshot: ...


class WatchedRegistry(Protocol):
    async def read(self) -> list[RegistryEntry]: ...
    def source(self, entry: RegistryEntry) -> NodeSource: ...


def effective_interval_s(interval_s: float, node_count: int) -> float:
    return max(interval_s, node_count / MAX_POLLS_PER_S)


class Poller:
    """Polls all nodes one after another at first, then each at its own time within the interval."""

    def __init__(self, model: WatchModel, take_snapshot: Callable[[int], Awaitable[NodeSnapshot]]) -> None:
        self._model = model
        self._take_snapshot = take_snapshot
        self._resumed_s = -math.inf
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as self._group:
            for node in self._model.nodes:
                self.start(node)
            await asyncio.get_running_loop().create_future()  # nodes may be added later

    def start(self, node: WatchedNode) -> None:
        self._tasks[node.number] = self._group.create_task(self._poll(node))

    def stop(self, node: WatchedNode) -> None:
        self._tasks.pop(node.number).cancel()

    def mark_resumed(self) -> None:
        """The process was suspended: discard the polls that started before that, since they may have timed out."""
        self._resumed_s = asyncio.get_running_loop().time()

    async def _poll(self, node: WatchedNode) -> None:
        clock = asyncio.get_running_loop().time
        interval_s = self._model.interval_s
        count = len(self._model.nodes)
        due_s = clock() + interval_s * (node.number % count) / count
        await asyncio.sleep(node.number / MAX_INITIAL_POLLS_PER_S)
        while True:
            started_s = node.requested_s = clock()
            snapshot = await self._take_snapshot(node.number)
            if started_s < self._resumed_s:
                continue
            node.update(snapshot, clock())
            due_s += interval_s * max(1, math.ceil((clock() - due_s) / interval_s))
            await asyncio.sleep(due_s - clock())


class WatchApp:
    """`registry` is read again and again: replicas that join are added, others are marked as gone."""

    def __init__(  # noqa: PLR0913  all that it connects
        self,
        screen: Screen,
        sources: Sequence[NodeSource],
        interval_s: float,
        timeout_s: float,
        registry: WatchedRegistry | None = None,
        *,
        add_problems: AddProblems | None = None,
    ) -> None:
        if len(sources) > (limit := max_concurrent_nodes()):
            raise InvalidValueError(
                f"{len(sources)} nodes are too many: the limit of open files (ulimit -n) allows {limit}"
            )
        self._screen = screen
        self._timeout_s = timeout_s
        self._registry = registry
        self._add_problems = add_problems
        self._ask_again_s: dict[int, float] = {}  # by node: when to ask for its problems again, if it did not answer
        self._model = WatchModel((), effective_interval_s(interval_s, len(sources)))
        self._sources = {self._model.add(one.client.url, one.in_registry).number: one for one in sources}
        self._view = WatchView(self._model)
        self._keys = KeyReader()
        self._poller = Poller(self._model, self._take_snapshot)
        self._input = b""

    async def run(self) -> int:
        """Returns the exit code."""
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._exit_code: asyncio.Future[int] = self._loop.create_future()
        async with AsyncExitStack() as stack:
            self._lag_monitor = stack.enter_context(LoopLagMonitor())
            stack.push_async_callback(self._close_sources)
            self._install_signal_handlers()
            with self._screen:
                self._loop.add_reader(self._screen.keys_fd, self._read_keys)
                try:
                    async with asyncio.TaskGroup() as group:
                        runs = [self._poller.run(), self._draw_loop()]
                        if self._registry is not None:
                            runs.append(self._follow(self._registry))
                        tasks = [group.create_task(run) for run in runs]
                        code = await self._exit_code
                        for task in tasks:
                            task.cancel()
                finally:
                    self._loop.remove_reader(self._screen.keys_fd)
        return code

    # ---- events

    def _install_signal_handlers(self) -> None:
        on = self._loop.add_signal_handler
        on(signal.SIGINT, self._exit, 0)
        on(signal.SIGTERM, self._exit, 128 + signal.SIGTERM)
        on(signal.SIGHUP, self._exit, 128 + signal.SIGHUP)
        on(signal.SIGWINCH, self._resize)
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            on(signal.SIGTSTP, self._suspend)

    def _exit(self, code: int) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(code)

    def _resize(self) -> None:
        self._screen.invalidate()
        self._wake.set()

    def _suspend(self) -> None:
        self._screen.restore()
        # With the default handler: the kernel ignores the signal if no shell could resume the process.
        self._loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)  # continues here after SIGCONT
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._screen.enter()
        self._poller.mark_resumed()
        self._wake.set()

    def _read_keys(self) -> None:
        try:
            data = os.read(self._screen.keys_fd, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is closed
            self._exit(128 + signal.SIGHUP)
            self._loop.remove_reader(self._screen.keys_fd)
        self._input += data
        self._wake.set()

    async def _take_snapshot(self, number: int) -> NodeSnapshot:
        snapshot = await take_snapshot(self._sources[number], self._timeout_s, self._lag_monitor)
        now_s = self._loop.time()
        if self._add_problems is None or not snapshot.has_problem or now_s < self._ask_again_s.get(number, 0.0):
            return snapshot
        snapshot = await self._add_problems(snapshot)
        if snapshot.problems is None:
            self._ask_again_s[number] = now_s + ASK_AGAIN_AFTER_S
        return snapshot

    # ---- the registry

    async def _follow(self, registry: WatchedRegistry) -> None:
        while True:
            await asyncio.sleep(REGISTRY_INTERVAL_S)
            try:
                entries = await registry.read()
            except SvcnodeError as exc:
                self._model.registry_problem = str(exc)
                continue
            self._model.registry_problem = ""
            await self._compare({entry.key: entry for entry in entries}, registry)

    async def _compare(self, entries: dict[tuple[str, str, str], RegistryEntry], registry: WatchedRegistry) -> None:
        for node in list(self._model.nodes):
            known = node.in_registry
            if known is None:
                continue
            entry = entries.pop(known.key, None)
            if entry is None and not known.replica:
                await self._remove(node)
            else:
                node.in_registry = self._sources[node.number].in_registry = entry or known.as_gone()
        for entry in entries.values():
            if len(self._model.nodes) < max_concurrent_nodes():
                self._add(registry.source(entry))

    def _add(self, source: NodeSource) -> None:
        node = self._model.add(source.client.url, source.in_registry)
        self._sources[node.number] = source
        self._poller.start(node)

    async def _remove(self, node: WatchedNode) -> None:
        """Removes the row of a node without replicas, now that it has some, which are shown instead."""
        self._poller.stop(node)
        self._model.nodes.remove(node)
        await self._sources.pop(node.number).aclose()

    async def _close_sources(self) -> None:
        for source in self._sources.values():
            await source.aclose()

    # ---- drawing

    async def _draw_loop(self) -> None:
        while True:
            try:
                self._draw()
            except OSError:  # the terminal is closed
                self._exit(128 + signal.SIGHUP)
                return
            for key in await self._wait_for_keys():
                self._view.press(key, self._screen.size[0])
            if self._view.is_quit:
                self._exit(0)

    async def _wait_for_keys(self) -> list[Key | str]:
        """Returns after REDRAW_S, or earlier if a key is pressed or the terminal resized."""
        try:
            async with asyncio.timeout(ESCAPE_DELAY_S if self._keys.is_pending else REDRAW_S):
                await self._wake.wait()
        except TimeoutError:
            return self._keys.flush()
        self._wake.clear()
        data, self._input = self._input, b""
        return self._keys.feed(data)

    def _draw(self) -> None:
        width, height = self._screen.size
        page = self._view.page(width, height - FIXED_LINES)
        self._screen.show(render_page(page, self._loop.time(), width, height, self._screen.symbols), width)
