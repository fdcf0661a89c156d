"""`svcnode serve`: the only place that wires everything together.

listeners.py    where it listens, and what is offered there beyond the interface
services.py     the services that the configuration names, and what becomes of them
signals.py      what it is told from outside: to stop, to stop at once, to reload
open_files.py   how many connections and looks the system leaves room for
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from svcnode.agent.listeners import Listeners
from svcnode.agent.open_files import share_out_open_files
from svcnode.agent.services import ConfiguredServices
from svcnode.agent.signals import Signals
from svcnode.core.errors import ConfigError, ListenError, StoreError, SvcnodeError
from svcnode.history import History
from svcnode.journal import Journal
from svcnode.logs import LAST_LINES_WITHIN_S, let_out, set_level, set_style
from svcnode.node import Node
from svcnode.notify.notices import Notices
from svcnode.probes.tools.threads import OwnThread
from svcnode.version import __version__
from svcnode.web.operator.desk import Desk, Vitals
from svcnode.web.operator.events import EventHub
from svcnode.web.operator.lag import measure_lag
from svcnode.web.wire import Limits, WireServer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from svcnode.agent.services import Difference
    from svcnode.config import HistorySettings, Settings
    from svcnode.notify.notifier import Notifier
    from svcnode.notify.settings import NotifySettings

DRAIN_S = 5.0  # where nobody waits at a terminal
# For how long a thread that makes a page or a scrape may keep the loop from answering, each time that it is its turn.
THREAD_TURN_S = 0.0005
HURRIED_LINES_WITHIN_S = 0.1

log = logging.getLogger("svcnode")


def run(settings: Settings, read_settings: Callable[[], Settings], *, outlives_terminal: bool = False) -> int:
    """Serve until told to stop; returns the exit code. `read_settings` reads the configuration anew."""
    return run_to_end(Agent(settings, read_settings, outlives_terminal=outlives_terminal).serve())


def run_to_end(serving: Coroutine[None, None, int]) -> int:
    """On the best loop there is; returns the exit code."""
    sys.setswitchinterval(THREAD_TURN_S)
    code = 1
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code = runner.run(serving)
    except ListenError as exc:
        log.error("%s", exc)  # noqa: TRY400  its text says it all
    finally:  # what else is said on stderr comes after what was logged
        let_out(HURRIED_LINES_WITHIN_S if code > 128 else LAST_LINES_WITHIN_S)
    return code


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class Agent:
    def __init__(
        self, settings: Settings, read_settings: Callable[[], Settings], *, outlives_terminal: bool = False
    ) -> None:
        self._settings = settings
        self._read_settings = read_settings
        self._signals = Signals(outlives_terminal=outlives_terminal)
        self._node = Node(settings.node_name, version=settings.node_version, starting=True)
        self._vitals = Vitals(began_s=self._node.now_s())
        self._notices = Notices()
        self._notifier: Notifier | None = None
        self._has_store = False
        self._is_read_on_terminal = sys.stderr.isatty()

    async def serve(self) -> int:
        settings = self._settings
        connections, self._looks_at_once = share_out_open_files()
        self._server = WireServer(self._node, settings.prefixes, Limits(connections=connections))
        self._listeners = Listeners(self._server)
        self._journal = Journal(self._node)
        self._services = ConfiguredServices(self._node)
        with self._signals.heeded():
            try:
                opened = self._listeners.open(settings)
                self._services.change(settings.services)
                # From here on, history follows: that the services are there is no news.
                async with History(self._node, **_kept(settings.history)) as history:
                    self._set_desk(history)
                    await self._listeners.listen(opened, self._desk)
                    self._prepare_store(settings)
                    return await self._look_and_answer()
            except asyncio.CancelledError:
                if self._signals.hurried_by is None:
                    raise
                log.warning("stopped at once by a second signal")
                return 128 + self._signals.hurried_by
            finally:
                self._listeners.close()

    def _set_desk(self, history: History) -> None:
        self._desk = Desk(
            node=self._node,
            journal=self._journal,
            history=history,
            events=EventHub(history),
            vitals=self._vitals,
            notices=self._notices,
        )

    def _prepare_store(self, settings: Settings) -> None:
        """A store that cannot be had is no reason not to serve: its service will say so."""
        if not settings.uses_store:
            return
        from svcnode.store import is_missing, open_store

        path = settings.store_path
        remark = " (new)" if is_missing(path) else ""
        log.info("no services are named: watching the node's own store, %s%s", path, remark)
        try:
            open_store(path)
        except StoreError as exc:
            log.error("%s", exc)  # noqa: TRY400  its text says it all
        else:
            self._has_store = True

    async def _look_and_answer(self) -> int:
        async with self._node.supervised(looks_at_once=self._looks_at_once), AsyncExitStack() as self._while_looking:
            await self._tell_people(self._settings.notify)
            self._node.started()
            log.info("svcnode %s answers for %s; services: %d", __version__, self._settings.node_name, len(self._node))
            reloading = asyncio.create_task(self._reload_when_told())
            measuring = asyncio.create_task(measure_lag(self._vitals))
            await self._signals.told_to_stop.wait()
            reloading.cancel()
            measuring.cancel()
            return await self._wind_down()

    async def _tell_people(self, settings: NotifySettings | None) -> None:
        if self._notifier is not None:
            self._notifier.apply(settings)
        elif settings is not None:
            from svcnode.notify.notifier import Notifier

            notifier = Notifier(self._node, settings, self._notices, memory=self._desk.history)
            self._notifier = await self._while_looking.enter_async_context(notifier)

    # ---- reloading

    async def _reload_when_told(self) -> None:
        reading = OwnThread("configuration")
        while True:
            await self._signals.told_to_reload.wait()
            self._signals.told_to_reload.clear()
            try:
                # In a thread: what is configured now may need what takes a second to load.
                difference = await self._apply(await reading.call(self._read_settings))
            except SvcnodeError as exc:
                self._vitals.note_reload(str(exc))
                log.error("not reloaded, the old configuration stays in force: %s", exc)  # noqa: TRY400
            except Exception:
                self._vitals.note_reload("it failed half-way")
                log.exception("reloading failed half-way; the next attempt may mend it")
            else:
                self._vitals.note_reload()
                log.info("reloaded: %s", difference, extra=difference.counts)

    async def _apply(self, new: Settings) -> Difference:
        """Change what differs and nothing else. What can fail comes first, so a failure changes nothing."""
        old = self._settings
        if new.uses_store and not old.uses_store:
            # An empty file is what a deployment that is half-way leaves, and it would turn any node green.
            raise ConfigError("no service is named any more; if that is meant, start the node anew")
        opened = self._listeners.open(new)
        await self._listeners.listen(opened, self._desk)
        if new.prefixes != old.prefixes:
            self._server.set_prefixes(new.prefixes)
        if (new.node_name, new.node_version) != (old.node_name, old.node_version):
            self._node.identify(name=new.node_name, version=new.node_version)
        set_level(new.log_level)
        set_style(new.log_format)
        self._desk.history.adopt(**_kept(new.history))
        await self._tell_people(new.notify)
        difference = self._services.change(new.services)
        if new.store_path != old.store_path or not self._has_store:
            self._prepare_store(new)  # one that was lost while it was watched stays lost: that is for a person to see
        self._settings = new
        return difference

    # ---- stopping

    async def _wind_down(self) -> int:
        """Answer 503 for a while, let requests in flight finish; a second signal ends it at once."""
        drain_s = self._drain_s()
        if self._notifier is not None:
            self._notifier.hush()
        self._node.drain()
        if drain_s:
            log.info("draining for %g s: health answers 503; a second signal stops at once", drain_s)
            await asyncio.sleep(drain_s)
        self._listeners.close()
        await self._server.close()
        await self._while_looking.aclose()  # which has something to say where people could not be told
        log.info("stopped")
        return 0

    def _drain_s(self) -> float:
        if self._settings.drain_s is not None:
            return self._settings.drain_s
        return 0.0 if self._is_read_on_terminal else DRAIN_S


def _kept(history: HistorySettings | None) -> dict[str, Any]:
    """In the words of `History`, when it begins and when it is to go on otherwise: they are those of the settings."""
    return {"path": None} if history is None else asdict(history)
