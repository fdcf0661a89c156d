"""When which node is asked. Each has a task of its own, so that one that hangs holds up nobody.

Where it all comes together: looks come in, keys are pressed, the screen is drawn, until somebody ends it.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from svcnode.core.errors import InvalidValueError
from svcnode.terminal.loop_lag import LoopLagMonitor
from svcnode.terminal.snapshot import max_concurrent_nodes, take_snapshot
from svcnode.terminal.watch.keys import Key, KeyReader
from svcnode.terminal.watch.model import WatchModel
from svcnode.terminal.watch.render import FIXED_LINES, render_page
from svcnode.terminal.watch.view import WatchView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from svcnode.client import AsyncClient
    from svcnode.terminal.snapshot import NodeSnapshot
    from svcnode.terminal.watch.screen import Screen

# A look costs a few milliseconds; more of them in a second would take all of a core, and keys would be heeded late.
MAX_POLLS_PER_S = 100.0
# As fast as they can be made: all of them at once would be late together, and those with a short timeout lost.
MAX_INITIAL_POLLS_PER_S = 250.0


def effective_interval_s(interval_s: float, node_count: int) -> float:
    return max(interval_s, node_count / MAX_POLLS_PER_S)


class Poller:
    """One right after the other at first; then each at its own time within the interval."""

    def __init__(
        self, watch: WatchModel, look: Callable[[int], Awaitable[NodeSnapshot]], on_look: Callable[[], object]
    ) -> None:
        self._model = watch
        self._take_snapshot = look
        self._on_snapshot = on_look
        self._resumed_s = -math.inf

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(len(self._model.nodes)):
                group.create_task(self._poll(number))

    def mark_resumed(self) -> None:
        """The process stood still: what comes of looks that began before says nothing of the nodes."""
        self._resumed_s = asyncio.get_running_loop().time()

    async def _poll(self, number: int) -> None:
        clock = asyncio.get_running_loop().time
        interval_s = self._model.interval_s
        due_s = clock() + interval_s * number / len(self._model.nodes)
        await asyncio.sleep(number / MAX_INITIAL_POLLS_PER_S)
        while True:
            began_s = clock()
            self._model.mark_requested(number, began_s)
            look = await self._take_snapshot(number)
            if began_s < self._resumed_s:
                continue
            self._model.update(number, look, clock())
            self._on_snapshot()
            due_s += interval_s * max(1, math.ceil((clock() - due_s) / interval_s))
            await asyncio.sleep(due_s - clock())


MIN_REDRAW_S = 0.25  # for what was seen; what was pressed is shown at once
MAX_REDRAW_S = 1.0  # times since a change are in seconds
ESCAPE_DELAY_S = 0.05  # what is more than Escape comes sooner


class WatchApp:
    def __init__(self, screen: Screen, clients: Sequence[AsyncClient], interval_s: float, timeout_s: float) -> None:
        if len(clients) > (most := max_concurrent_nodes()):
            why = f"with the files that may be open here, {most} can be"
            raise InvalidValueError(f"{len(clients)} nodes are too many to watch: {why}")
        self._screen = screen
        self._clients = clients
        self._timeout_s = timeout_s
        self._model = WatchModel([client.url for client in clients], effective_interval_s(interval_s, len(clients)))
        self._view = WatchView(self._model)
        self._keys = KeyReader()
        self._poller = Poller(self._model, self._take_snapshot, self._mark_changed)
        self._input = bytearray()
        self._is_resized = False
        self._has_changes = False

    async def run(self) -> int:
        """Returns the exit code."""
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._exit_code: asyncio.Future[int] = self._loop.create_future()
        async with AsyncExitStack() as stack:
            self._lag_monitor = stack.enter_context(LoopLagMonitor())
            for client in self._clients:
                await stack.enter_async_context(client)
            self._install_signal_handlers()
            with self._screen:
                self._loop.add_reader(self._screen.keys_fd, self._read_keys)
                try:
                    async with asyncio.TaskGroup() as group:
                        tasks = [group.create_task(self._poller.run()), group.create_task(self._draw_loop())]
                        code = await self._exit_code
                        for task in tasks:
                            task.cancel()
                finally:
                    self._loop.remove_reader(self._screen.keys_fd)
        return code

    # ---- what happens

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
        self._is_resized = True
        self._wake.set()

    def _suspend(self) -> None:
        self._screen.restore()
        # By the signal itself: where nobody could bring us back, the system does not heed it.
        self._loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)  # goes on here when we are brought back
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._screen.enter()
        self._poller.mark_resumed()
        self._resize()

    def _read_keys(self) -> None:
        try:
            data = os.read(self._screen.keys_fd, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self._exit(128 + signal.SIGHUP)
            self._loop.remove_reader(self._screen.keys_fd)
        self._input += data
        self._wake.set()

    def _mark_changed(self) -> None:
        self._has_changes = True

    async def _take_snapshot(self, number: int) -> NodeSnapshot:
        return await take_snapshot(self._clients[number], self._timeout_s, self._lag_monitor)

    # ---- what is shown

    async def _draw_loop(self) -> None:
        while True:
            try:
                self._draw()
            except OSError:  # the terminal is gone
                self._exit(128 + signal.SIGHUP)
                return
            drawn_s = self._loop.time()
            while not await self._wait_for_input() and not self._is_redraw_due(drawn_s):
                pass

    async def _wait_for_input(self) -> bool:
        """Somebody pressed a key or resized the terminal, after at most a moment."""
        try:
            async with asyncio.timeout(ESCAPE_DELAY_S if self._keys.is_pending else MIN_REDRAW_S):
                await self._wake.wait()
        except TimeoutError:
            return self._press_keys(*self._keys.flush()) if self._keys.is_pending else False
        self._wake.clear()
        read = bytes(self._input)
        self._input.clear()
        return self._press_keys(*self._keys.feed(read)) or self._is_resized

    def _press_keys(self, *keys: Key | str) -> bool:
        width, _ = self._screen.size
        for key in keys:
            self._view.press(key, width)
        if self._view.is_quit:
            self._exit(0)
        return bool(keys)

    def _is_redraw_due(self, drawn_s: float) -> bool:
        passed_s = self._loop.time() - drawn_s
        return passed_s >= (MIN_REDRAW_S if self._has_changes else MAX_REDRAW_S)

    def _draw(self) -> None:
        width, height = self._screen.size
        if self._is_resized:
            self._screen.invalidate()
        self._is_resized = self._has_changes = False
        page = self._view.page(width, height - FIXED_LINES)
        self._screen.show(render_page(page, self._loop.time(), width, height, self._screen.symbols), width)
