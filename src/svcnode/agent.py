"""`svcnode serve`: the only place that wires everything together."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING

from svcnode.core.errors import ConfigError, ListenError, StoreError, SvcnodeError
from svcnode.core.model import Change, ChangeKind, Status
from svcnode.history import History
from svcnode.journal import Journal, Setting
from svcnode.logs import LAST_LINES_WITHIN_S, let_out, set_level, set_style
from svcnode.node import Node
from svcnode.notify.notices import Notices
from svcnode.probes.tools.threads import OwnThread
from svcnode.supervisor import LOOKS_AT_ONCE
from svcnode.version import __version__
from svcnode.web.listen import bind, bound_url, remove_unix_socket, tls_context
from svcnode.web.operator import Operator
from svcnode.web.operator.access import Access
from svcnode.web.operator.desk import Desk, Vitals
from svcnode.web.operator.events import EventHub
from svcnode.web.operator.lag import measure_lag
from svcnode.web.visits import Door
from svcnode.web.wire import Limits, WireServer

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from svcnode.config import ServiceSettings, Settings, TlsSettings
    from svcnode.core.address import Address
    from svcnode.notify.notifier import Notifier
    from svcnode.notify.settings import NotifySettings

FILES_FOR_THE_REST = 128
DRAIN_S = 5.0  # where nobody waits at a terminal
# For how long a thread that makes a page or a scrape may keep the loop from answering, each time that it is its turn.
THREAD_TURN_S = 0.0005
HURRIED_LINES_WITHIN_S = 0.1
# A shell that dies sends its terminal's last signal a moment before the terminal is taken from all who had it.
TERMINAL_TAKEN_WITHIN_S = 0.05

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
        self._node = Node(settings.node_name, version=settings.node_version, starting=True)
        self._vitals = Vitals()
        self._notices = Notices()
        self._notifier: Notifier | None = None
        self._sockets: dict[Address, socket.socket] = {}
        self._doors: dict[Address, Door] = {}
        self._tls: ssl.SSLContext | None = None
        self._told_to_stop = asyncio.Event()
        self._told_to_reload = asyncio.Event()
        self._hurried_by: signal.Signals | None = None
        self._has_store = False
        self._fixed: dict[str, Status] = {}
        self._is_read_on_terminal = sys.stderr.isatty()
        self._ends_with_terminal = not outlives_terminal and _has_terminal()

    async def serve(self) -> int:
        settings = self._settings
        connections, self._looks_at_once = _open_files_shared_out()
        self._server = WireServer(self._node, settings.prefixes, Limits(connections=connections))
        self._journal = Journal(self._node)
        self._node.subscribe(self._log_change)
        with self._heeding_signals():
            try:
                self._tls = _context(settings.tls)
                opened = self._open(settings)
                self._change_services((), settings.services)
                async with self._remembering() as history:  # from here on: that the services are there is no news
                    self._set_desk(history)
                    await self._listen_on(opened)
                    self._open_doors()
                    self._prepare_store()
                    return await self._look_and_answer()
            except asyncio.CancelledError:
                if self._hurried_by is None:
                    raise
                log.warning("stopped at once by a second signal")
                return 128 + self._hurried_by
            finally:
                self._stop_listening(list(self._sockets))

    def _remembering(self) -> History:
        kept = self._settings.history
        if kept is None:
            return History(self._node, None)
        return History(self._node, kept.path, max_age_s=kept.max_age_s, max_bytes=kept.max_bytes)

    def _remember_otherwise(self) -> None:
        kept, history = self._settings.history, self._desk.history
        if kept is None:
            history.adopt(None)
        else:
            history.adopt(kept.path, max_age_s=kept.max_age_s, max_bytes=kept.max_bytes)

    def _set_desk(self, history: History) -> None:
        self._desk = Desk(
            node=self._node,
            journal=self._journal,
            history=history,
            events=EventHub(history),
            vitals=self._vitals,
        )

    async def _look_and_answer(self) -> int:
        async with self._node.supervised(looks_at_once=self._looks_at_once), AsyncExitStack() as self._while_looking:
            await self._tell_people(self._settings.notify)
            self._node.started()
            log.info("svcnode %s answers for %s; services: %d", __version__, self._settings.node_name, len(self._node))
            reloading = asyncio.create_task(self._reload_when_told())
            measuring = asyncio.create_task(measure_lag(self._vitals))
            await self._told_to_stop.wait()
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
        self._stop_listening(list(self._sockets))
        await self._server.close()
        await self._while_looking.aclose()  # which has something to say where people could not be told
        log.info("stopped")
        return 0

    def _drain_s(self) -> float:
        if self._settings.drain_s is not None:
            return self._settings.drain_s
        return 0.0 if self._is_read_on_terminal else DRAIN_S

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        serving = asyncio.current_task()
        assert serving is not None, "signals are heeded by the task that serves"
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number, serving)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _on_stop_signal(self, number: signal.Signals, serving: asyncio.Task[int]) -> None:
        if self._told_to_stop.is_set():
            self._hurried_by = number
            serving.cancel()
        self._told_to_stop.set()

    def _on_hangup(self) -> None:
        """Somebody wants a reload, or the terminal was closed: which of them, only the terminal can tell."""
        if self._ends_with_terminal:
            asyncio.get_running_loop().call_later(TERMINAL_TAKEN_WITHIN_S, self._reload_or_stop)
        else:
            self._told_to_reload.set()

    def _reload_or_stop(self) -> None:
        if _has_terminal():
            self._told_to_reload.set()
        elif not self._told_to_stop.is_set():  # the shell may send another: nobody is in a hurry
            log.info("the terminal was closed")
            self._told_to_stop.set()

    # ---- reloading

    async def _reload_when_told(self) -> None:
        reading = OwnThread("configuration")
        while True:
            await self._told_to_reload.wait()
            self._told_to_reload.clear()
            try:
                # In a thread: what is configured now may need what takes a second to load.
                await self._apply(await reading.call(self._read_settings))
            except SvcnodeError as exc:
                self._vitals.note_reload(str(exc))
                log.error("not reloaded, the old configuration stays in force: %s", exc)  # noqa: TRY400
            except Exception:
                self._vitals.note_reload("it failed half-way")
                log.exception("reloading failed half-way; the next attempt may mend it")
            else:
                self._vitals.note_reload()
                log.info("reloaded")

    async def _apply(self, new: Settings) -> None:
        """Change what differs and nothing else. What can fail comes first, so a failure changes nothing."""
        old = self._settings
        if new.uses_store and not old.uses_store:
            # An empty file is what a deployment that is half-way leaves, and it would turn any node green.
            raise ConfigError("no service is named any more; if that is meant, start the node anew")
        tls = _context(new.tls)
        opened = self._open(new)
        self._settings, self._tls = new, tls
        await self._listen_on(opened)
        self._open_doors()
        if new.prefixes != old.prefixes:
            self._server.set_prefixes(new.prefixes)
        if (new.node_name, new.node_version) != (old.node_name, old.node_version):
            self._node.identify(name=new.node_name, version=new.node_version)
        set_level(new.log_level)
        set_style(new.log_format)
        self._remember_otherwise()
        await self._tell_people(new.notify)
        self._change_services(old.services, new.services)
        if new.store_path != old.store_path or not self._has_store:
            self._prepare_store()  # one that was lost while it was watched stays lost: that is for a person to see

    def _change_services(self, old: Iterable[ServiceSettings], new: Iterable[ServiceSettings]) -> None:
        before = {service.id: service for service in old}
        after = {service.id: service for service in new}
        fixed = {service.id: service.status for service in after.values() if service.status is not None}
        if fixed != self._fixed:
            log.info("%s", _spoken_fixed(fixed))
        self._fixed = fixed
        # What goes, goes last: the node must not look healthy for a moment because its only sick service left.
        for service in after.values():
            known = before.get(service.id)
            if known is None:
                self._node.add(service.definition)
            elif known.definition != service.definition:
                self._node.replace(service.definition)
            if service.status is not None:
                self._node.report(service.id, _FIXED[service.status])
        for service_id in before.keys() - after.keys():
            self._node.deregister(service_id)

    def _log_change(self, change: Change) -> None:
        if change.kind is ChangeKind.STATUS and change.before and change.after:
            level = logging.WARNING if change.after.status is Status.DOWN else logging.INFO
            if change.service_id in self._fixed:
                level = logging.DEBUG  # there may be thousands, and one line tells of them all
            reason = f": {change.after.reason}" if change.after.reason else ""
            log.log(
                level,
                "service %s is %s, was %s%s",
                change.service_id,
                change.after.status.value,
                change.before.status.value,
                reason,
            )
        if change.health is not change.health_before:
            log.info("node health is %d, was %d", change.health, change.health_before)

    def _prepare_store(self) -> None:
        """A store that cannot be had is no reason not to serve: its service will say so."""
        if not self._settings.uses_store:
            return
        from svcnode.store import open_store

        path = self._settings.store_path
        log.info("no services are named: watching the node's own store, %s%s", path, "" if path.exists() else " (new)")
        try:
            open_store(path)
        except StoreError as exc:
            log.error("%s", exc)  # noqa: TRY400  its text says it all
        else:
            self._has_store = True

    # ---- listening

    async def _listen_on(self, opened: dict[Address, socket.socket]) -> None:
        wanted = self._settings.listen_everywhere
        self._stop_listening([address for address in self._sockets if address in opened or address not in wanted])
        for address, sock in opened.items():
            # Who came by the listener of before, with another certificate, is held to the rules of now as well.
            door = self._doors.setdefault(address, Door())
            await self._server.listen(sock, self._tls if address.scheme == "https" else None, door)
            self._sockets[address] = sock
            log.info("listening on %s", bound_url(sock, address, f"{self._settings.prefixes[0]}/node"))

    def _open_doors(self) -> None:
        for address, door in self._doors.items():
            self._show_operator_surface(address, door)

    def _show_operator_surface(self, address: Address, door: Door) -> None:
        operator = self._settings.operator
        if operator is None or address not in (operator.listen or self._settings.listen):
            if door.surface is not None:
                door.change(None)
            return
        access = Access(address, operator.token, operator.trusts_loopback)
        before = door.surface.access if isinstance(door.surface, Operator) else None
        if access != before:
            door.change(Operator(self._desk, access))
            url = bound_url(self._sockets[address], address, "/")
            log.info("the operator page is at %s%s", url, access.spoken)

    def _open(self, settings: Settings) -> dict[Address, socket.socket]:
        """Whatever is not listened on yet: all of it, or none.

        A place that is ours already, to speak something else there, is taken over. So is one that speaks TLS, since
        a listener keeps the certificate it began with.
        """
        wanted = settings.listen_everywhere
        free_places = {address.place: sock for address, sock in self._sockets.items() if address not in wanted}
        opened: dict[Address, socket.socket] = {}
        try:
            for address in wanted:
                if address not in self._sockets or address.scheme == "https":
                    mine = self._sockets.get(address, free_places.get(address.place))
                    opened[address] = bind(address, settings.changed_by(address)) if mine is None else mine.dup()
        except ListenError:
            for address, sock in opened.items():
                sock.close()
                remove_unix_socket(address)
            raise
        return opened

    def _stop_listening(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            self._server.stop_listening(self._sockets.pop(address))
            remove_unix_socket(address)


_FIXED = {
    Status.UP: Setting.ready("set in the configuration"),
    Status.INITIALIZING: Setting.not_ready("set in the configuration"),
    Status.DOWN: Setting.failed("set in the configuration"),
}


def _open_files_shared_out() -> tuple[int, int]:
    """How many connections to hold and looks to have in flight: as we would like, or as the limit leaves room for."""
    connections, looks = Limits().connections, LOOKS_AT_ONCE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = connections + looks + FILES_FOR_THE_REST
    if soft not in (hard, resource.RLIM_INFINITY) and soft < enough:
        soft = enough if hard == resource.RLIM_INFINITY else min(enough, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= enough:
        return connections, looks
    room = max(0, soft - FILES_FOR_THE_REST)
    looks = max(1, min(looks, room // 4))
    return max(1, min(connections, room - looks)), looks


def _has_terminal() -> bool:
    """Whether there is a terminal whose end would be told to this process, wherever its streams go."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY))
    except OSError:
        return False
    return True


def _context(tls: TlsSettings | None) -> ssl.SSLContext | None:
    return None if tls is None else tls_context(tls.certificate, tls.key)


def _spoken_fixed(fixed: Mapping[str, Status]) -> str:
    counts = Counter(status.value for status in fixed.values())
    told = ": " + ", ".join(f"{count} {status}" for status, count in counts.items()) if counts else ""
    have = "1 service has" if len(fixed) == 1 else f"{len(fixed) or 'no'} services have"
    return f"{have} a status that is set in the configuration{told}"
