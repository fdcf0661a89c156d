"""Where it all comes together: looks come in, keys are pressed, the screen is drawn, until somebody ends it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from svcnode.core.errors import InvalidValueError
from svcnode.terminal.looking import look_at, places_at_once
from svcnode.terminal.pulse import Pulse
from svcnode.terminal.watch.drawing import FIXED_LINES, draw
from svcnode.terminal.watch.keys import Key, KeyReader
from svcnode.terminal.watch.polling import Polling, affordable_interval_s
from svcnode.terminal.watch.seen import Watch
from svcnode.terminal.watch.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.client import AsyncClient
    from svcnode.terminal.looking import Look
    from svcnode.terminal.watch.screen import Screen

MIN_REDRAW_S = 0.25  # for what was seen; what was pressed is shown at once
MAX_REDRAW_S = 1.0  # times since a change are in seconds
ESCAPE_S = 0.05  # what is more than Escape comes sooner


class Live:
    def __init__(self, screen: Screen, clients: Sequence[AsyncClient], interval_s: float, timeout_s: float) -> None:
        if len(clients) > (most := places_at_once()):
            why = f"with the files that may be open here, {most} can be"
            raise InvalidValueError(f"{len(clients)} nodes are too many to watch: {why}")
        self._screen = screen
        self._clients = clients
        self._timeout_s = timeout_s
        self._watch = Watch([client.url for client in clients], affordable_interval_s(interval_s, len(clients)))
        self._view = View(self._watch)
        self._keys = KeyReader()
        self._polling = Polling(self._watch, self._look, self._note_news)
        self._read = bytearray()
        self._is_resized = False
        self._has_news = False

    async def run(self) -> int:
        """Returns the exit code."""
        self._loop = asyncio.get_running_loop()
        self._touched = asyncio.Event()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        async with AsyncExitStack() as stack:
            self._pulse = stack.enter_context(Pulse())
            for client in self._clients:
                await stack.enter_async_context(client)
            self._heed_signals()
            with self._screen:
                self._loop.add_reader(self._screen.keys_file, self._read_keys)
                try:
                    async with asyncio.TaskGroup() as group:
                        tasks = [group.create_task(self._polling.run()), group.create_task(self._draw_on())]
                        code = await self._ended
                        for task in tasks:
                            task.cancel()
                finally:
                    self._loop.remove_reader(self._screen.keys_file)
        return code

    # ---- what happens

    def _heed_signals(self) -> None:
        on = self._loop.add_signal_handler
        on(signal.SIGINT, self._end, 0)
        on(signal.SIGTERM, self._end, 128 + signal.SIGTERM)
        on(signal.SIGHUP, self._end, 128 + signal.SIGHUP)
        on(signal.SIGWINCH, self._resize)
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            on(signal.SIGTSTP, self._stand_still)

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    def _resize(self) -> None:
        self._is_resized = True
        self._touched.set()

    def _stand_still(self) -> None:
        self._screen.give_back()
        # By the signal itself: where nobody could bring us back, the system does not heed it.
        self._loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)  # goes on here when we are brought back
        self._loop.add_signal_handler(signal.SIGTSTP, self._stand_still)
        self._screen.take()
        self._polling.was_interrupted()
        self._resize()

    def _read_keys(self) -> None:
        try:
            data = os.read(self._screen.keys_file, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self._end(128 + signal.SIGHUP)
            self._loop.remove_reader(self._screen.keys_file)
        self._read += data
        self._touched.set()

    def _note_news(self) -> None:
        self._has_news = True

    async def _look(self, number: int) -> Look:
        return await look_at(self._clients[number], self._timeout_s, self._pulse)

    # ---- what is shown

    async def _draw_on(self) -> None:
        while True:
            try:
                self._draw()
            except OSError:  # the terminal is gone
                self._end(128 + signal.SIGHUP)
                return
            drawn_s = self._loop.time()
            while not await self._is_touched() and not self._is_due(drawn_s):
                pass

    async def _is_touched(self) -> bool:
        """Somebody pressed a key or resized the terminal, after at most a moment."""
        try:
            async with asyncio.timeout(ESCAPE_S if self._keys.is_undecided else MIN_REDRAW_S):
                await self._touched.wait()
        except TimeoutError:
            return self._press(*self._keys.decide()) if self._keys.is_undecided else False
        self._touched.clear()
        read = bytes(self._read)
        self._read.clear()
        return self._press(*self._keys.feed(read)) or self._is_resized

    def _press(self, *keys: Key | str) -> bool:
        width, _ = self._screen.size
        for key in keys:
            self._view.press(key, width)
        if self._view.is_over:
            self._end(0)
        return bool(keys)

    def _is_due(self, drawn_s: float) -> bool:
        passed_s = self._loop.time() - drawn_s
        return passed_s >= (MIN_REDRAW_S if self._has_news else MAX_REDRAW_S)

    def _draw(self) -> None:
        width, height = self._screen.size
        if self._is_resized:
            self._screen.forget()
        self._is_resized = self._has_news = False
        page = self._view.page(width, height - FIXED_LINES)
        self._screen.show(draw(page, self._loop.time(), width, height, self._screen.symbols), width)
