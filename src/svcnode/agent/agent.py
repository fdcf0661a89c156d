"""The agent behind `svcnode serve`.

`Agent.serve` starts everything and waits for a stop signal, `_apply` applies a new configuration, `_shutdown` stops.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from svcnode.agent.configured_services import ConfiguredServices, changed_parts
from svcnode.agent.control import ControlSocket
from svcnode.agent.files import (
    check_history_move,
    history_moved_from,
    history_options,
    log_history_location,
    open_store,
    rename_text,
)
from svcnode.agent.fleet import Fleet
from svcnode.agent.listeners import Listeners
from svcnode.agent.logs import FLUSH_TIMEOUT_S, flush_logs, set_format, set_level
from svcnode.agent.sharing import apply_sharing, check_sharing_change, make_replica
from svcnode.agent.signals import Signals
from svcnode.agent.systemd import PassedSockets, ServiceManager, status_text
from svcnode.agent.watchdog import STOP_TIMEOUT_S, Watchdog
from svcnode.core.errors import MAX_SHOWN_ERRORS, ConfigError, ListenError, StoreError, SvcnodeError
from svcnode.core.model import SPEC_VERSION, ChangeKind, Identity
from svcnode.core.text import safe_reason
from svcnode.history import History
from svcnode.net.fd_limit import raise_fd_limit
from svcnode.net.tasks import log_failure
from svcnode.net.threads import DaemonCall
from svcnode.node.checks import Checks
from svcnode.node.node_state import NodeState
from svcnode.node.scheduled_maintenance import ScheduledMaintenance
from svcnode.node.scheduler import MAX_CONCURRENT_CHECKS
from svcnode.operator.surface import OperatorSurface
from svcnode.server.server import HttpServer
from svcnode.server.state import ServerLimits
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from svcnode.agent.configured_services import ConfigDiff
    from svcnode.config import Settings
    from svcnode.control.push import PushApp
    from svcnode.core.redaction import SecretScope

RESERVED_FDS = 128  # for everything but connections and checks
PUBLIC_SHARE = 1 / 8  # of the connections, for a public page with its own addresses
DRAIN_S = 5.0  # the default if the log does not go to a terminal
# How long a thread that renders a page or a scrape may hold the interpreter lock while the event loop waits.
SWITCH_INTERVAL_S = 0.0005
FORCED_LOG_FLUSH_S = 0.1
STORE_TIMEOUT_S = 5.0

log = logging.getLogger("svcnode")


def run(settings: Settings, read_settings: Callable[[], Settings], *, ignore_hangup: bool = False) -> int:
    """Serve until a stop signal; returns the exit code. `read_settings` reads the configuration again, for a reload."""
    return run_until_complete(Agent(settings, read_settings, ignore_hangup=ignore_hangup).serve())


def run_until_complete(serve: Coroutine[None, None, int]) -> int:
    """Run on uvloop if it is installed; returns the exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    code: int | None = None
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code = runner.run(serve)
    except ListenError as exc:
        code = 1
        log.error("%s", exc, extra={"event": "listen_failed"})  # noqa: TRY400  the text is enough
    except RuntimeError:
        if code is None:
            raise
        # Otherwise the runner could not start the thread that waits for the idle threads of its executor.
    finally:  # before anything else is written to stderr
        flush_logs(FORCED_LOG_FLUSH_S if code is not None and code > 128 else FLUSH_TIMEOUT_S)
    return code


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class Agent:
    def __init__(
        self, settings: Settings, read_settings: Callable[[], Settings], *, ignore_hangup: bool = False
    ) -> None:
        self._settings = settings
        self._read_settings = read_settings
        self._signals = Signals(ignore_hangup=ignore_hangup, log_state=self._log_state)
        self._manager = ServiceManager(os.environ)
        identity = Identity(node_name=settings.node_name, spec_version=SPEC_VERSION, node_version=settings.node_version)
        self._node = NodeState(identity, starting=True)
        self._checks = Checks(self._node)
        self._surface = OperatorSurface(self._node, self._checks, self._config_file_of)
        self._watchdog = Watchdog(
            self._checks.ping, on_alive=self._manager.alive, alive_within_s=self._manager.watchdog_s
        )
        self._has_store = False
        self._reader = DaemonCall("configuration")
        self._reloading = asyncio.Lock()
        self._old_secrets: list[SecretScope] = []
        self._logs_to_terminal = sys.stderr.isatty()

    async def serve(self) -> int:
        self._watchdog.start()  # until the process ends
        settings = self._settings
        connections, self._max_concurrent_checks = allocate_fds()
        public_limits = ServerLimits(connections=max(1, int(connections * PUBLIC_SHARE)))
        if settings.public is not None and settings.public.listen:  # one that a reload adds comes on top
            connections -= public_limits.connections
        limits = ServerLimits(connections=max(1, connections))
        self._server = HttpServer(self._node, settings.prefixes, limits, cors=settings.cors)
        self._public_server = HttpServer(self._node, (), public_limits)
        self._listeners = Listeners(self._server, self._public_server, PassedSockets(os.environ))
        self._replica = make_replica(self._node, settings)
        service_list = None if self._replica is None else self._replica.services
        self._services = ConfiguredServices(self._node, service_list)
        self._fleet = Fleet(self._node)
        self._maintenance = ScheduledMaintenance(self._node)
        self._control = ControlSocket(self._node, self._server, settings, self._reload, self._replica)
        self._control.on_registration(self._update_push)
        self._control.set_found(self._fleet.ids)
        with self._signals.installed():
            try:
                await self._control.claim()
                bound = self._listeners.open(settings)
                await self._services.apply(settings.services)
                self._fleet.apply(settings.fleet)
                # After the services: their registration is not a transition to record.
                log_history_location(settings.history)
                history = History(self._node, **history_options(settings))
                async with self._surface.recording(history, self._replica) as context:
                    context.history.set_has_folder(settings.history.has_folder)
                    # What is stored, such as a drain or a report of Down, is in effect before the first answer.
                    await self._control.start()
                    if self._replica is not None:
                        await self._replica.show_cached()
                    await self._listeners.listen(bound, context, self._push_app(settings))
                    await self._prepare_store(settings)
                    self._maintenance.apply(settings.maintenance)
                    del settings, bound  # the next reload replaces them
                    return await self._probe_and_serve()
            except asyncio.CancelledError:
                if self._signals.forced_by is None:
                    raise
                log.warning("stopped immediately: received a second signal", extra={"event": "forced_stop"})
                self._server.abort()
                self._public_server.abort()
                return 128 + self._signals.forced_by
            finally:
                self._maintenance.stop()
                self._control.stop_listening()
                self._listeners.close()
                self._manager.close()

    def _push_app(self, settings: Settings) -> PushApp | None:
        return self._control.push_app(settings, self._surface.process_stats.refused_pushes)

    def _update_push(self) -> None:
        self._listeners.set_push(self._push_app(self._settings), self._settings)

    def _config_file_of(self, service_id: str) -> Path | None:
        return self._services.file_of(service_id)

    async def _prepare_store(self, settings: Settings) -> None:
        """A store that cannot be opened does not stop the node: the check of its service fails."""
        if not settings.uses_store:
            return
        path = settings.store_path
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):  # the mount of its folder may hang
                await DaemonCall("store").call(partial(open_store, path))
        except TimeoutError:
            problem = f"cannot open the store {path}: no response within {STORE_TIMEOUT_S:g} s"
        except (StoreError, OSError) as exc:
            problem = str(exc)
        else:
            self._has_store = True
            return
        log.error("%s", problem, extra={"event": "store_failed"})

    async def _probe_and_serve(self) -> int:
        recorder = None if self._replica is None else self._replica.services
        async with (
            self._checks.running(max_concurrent_checks=self._max_concurrent_checks, recorder=recorder),
            AsyncExitStack() as self._probing_stack,
        ):
            if self._replica is None:
                self._node.overrides.started()
            else:  # the node has started when it knows the services of the others
                await self._probing_stack.enter_async_context(self._replica.running())
            # It stops before the replica, so that another one knows what was sent.
            await self._probing_stack.enter_async_context(self._surface.notifying(self._settings.notify))
            self._log_started()
            await self._control.listen()
            reload_task = asyncio.create_task(self._reload_on_request(), name="reload")
            reload_task.add_done_callback(log_failure)
            self._manager.ready()
            exempt_from_collection()
            with self._manager.showing_status(self._node, self._surface.process_stats, asyncio.get_running_loop()):
                await self._signals.stop_requested.wait()
                reload_task.cancel()
                return await self._shutdown()

    def _log_started(self) -> None:
        name, count = self._settings.node_name, len(self._node)
        extra = {"event": "started", "node": name, "version": __version__, "services": count}
        log.info("svcnode %s started: node %s, services: %d", __version__, name, count, extra=extra)

    def _log_state(self) -> None:
        text = status_text(self._node, self._surface.process_stats)
        log.info("%s", text, extra={"event": "state", "node_health": self._node.health.value})
        self._services.log_not_up()

    # ---- reloading

    async def _reload_on_request(self) -> None:
        while True:
            await self._signals.reload_requested.wait()
            self._signals.reload_requested.clear()
            with suppress(SvcnodeError):  # it is logged
                await self._reload()

    async def _reload(self) -> str:
        """Read and apply the configuration; returns what has changed. Raises `SvcnodeError`."""
        async with self._reloading:
            self._manager.reloading()
            try:
                # In a thread: loading the driver of a new probe may take a second.
                new = await self._reader.call_in_turn(self._read_settings)
                exempt_from_collection()
                diff = await self._apply(new)
                exempt_from_collection()
            except SvcnodeError as exc:
                self._surface.process_stats.record_reload(str(exc))
                self._node.announce(ChangeKind.RELOAD_FAILED, safe_reason(str(exc)))
                _log_failed_reload(exc)
                raise
            except Exception as exc:
                self._surface.process_stats.record_reload("internal error")
                self._node.announce(ChangeKind.RELOAD_FAILED, "internal error")
                log.exception(
                    "reload failed with an internal error; parts of the new configuration may be active",
                    extra={"event": "reload_failed", "error": type(exc).__name__},
                )
                raise SvcnodeError("reload failed with an internal error; the log has the details") from exc
            finally:
                self._manager.ready()
            self._surface.process_stats.record_reload()
            self._node.announce(ChangeKind.RELOADED, safe_reason(str(diff)))
            log.info("reloaded: %s", diff, extra={"event": "reloaded", **diff.counts})
            return str(diff)

    async def _apply(self, new: Settings) -> ConfigDiff:
        """Apply the differences. The steps that can fail come first, so that a failure changes nothing."""
        old = self._settings
        if new.uses_store and not old.uses_store:
            # An unfinished deployment may leave an empty file, and any node would become healthy with it.
            raise ConfigError("the new configuration has no services; if this is intended, restart the node")
        check_sharing_change(old, new)
        self._fleet.check_change(new)
        check_history_move(old, new)
        await self._control.before_reload(new)
        bound = self._listeners.open(new)
        await self._listeners.listen(bound, self._surface.context, self._push_app(new))
        if (new.prefixes, new.cors) != (old.prefixes, old.cors):
            self._server.set_routing(new.prefixes, new.cors)
        if (new.node_name, new.node_version) != (old.node_name, old.node_version):
            self._node.set_identity(name=new.node_name, version=new.node_version)
        set_level(new.log_level)
        set_format(new.log_format)
        history = self._surface.context.history
        history.reconfigure(**history_options(new), moved_from=history_moved_from(old, new))
        history.set_has_folder(new.history.has_folder)
        await self._surface.apply_notify(new.notify)
        self._control.set_configured(new)
        diff = await self._services.apply(new.services)
        self._fleet.apply(new.fleet)
        apply_sharing(self._replica, new.sharing)
        await self._control.apply(new)
        self._maintenance.apply(new.maintenance)
        # A store that was deleted while it was probed is not created again: its service stays Down.
        if new.store_path != old.store_path or not self._has_store:
            await self._prepare_store(new)
        self._settings = new
        self._forget_secrets_of(old)
        return diff._replace(renamed=rename_text(old, new), others=changed_parts(old, new))

    def _forget_secrets_of(self, old: Settings) -> None:
        """At the reload after the next one: until then, a check or a message that began before may show them."""
        self._old_secrets.append(old.secrets)
        if len(self._old_secrets) > 1:
            self._old_secrets.pop(0).release()

    # ---- stopping

    async def _shutdown(self) -> int:
        """Drain, finish the requests in flight, stop. A second signal stops the node immediately."""
        drain_s = self._drain_s()
        self._watchdog.expect_stop(drain_s)
        self._manager.stopping(drain_s + STOP_TIMEOUT_S)
        self._surface.flush_notifications()
        self._control.stop()
        self._node.overrides.drain("shutdown")
        if drain_s:
            log.info(
                "draining for %g s: health is 503; a second signal stops the node immediately",
                drain_s,
                extra={"event": "draining", "drain_s": drain_s},
            )
            await asyncio.sleep(drain_s)
        self._listeners.close()
        self._control.stop_listening()
        await asyncio.gather(self._server.close(), self._public_server.close())
        await self._control.close()
        await self._probing_stack.aclose()  # logs notifications that were not delivered
        log.info("stopped", extra={"event": "stopped"})
        return 0

    def _drain_s(self) -> float:
        if self._settings.drain_s is not None:
            return self._settings.drain_s
        return 0.0 if self._logs_to_terminal else DRAIN_S


def exempt_from_collection() -> None:
    """Let the garbage collector not search what is in memory now, most of which belongs to the services and stays.

    With thousands of services, the search would hold the event loop for longer than any other step. What a reload
    replaces is freed without it: see `ProbeRunner`.
    """
    gc.collect(1)  # what was made since the last collections may be garbage, which would stay
    gc.freeze()


def _log_failed_reload(exc: SvcnodeError) -> None:
    """One line for each error of the configuration."""
    errors = (exc, *exc.others) if isinstance(exc, ConfigError) else (exc,)
    for error in errors[:MAX_SHOWN_ERRORS]:
        key = error.key if isinstance(error, ConfigError) else None
        extra = {"event": "reload_failed", "error": type(error).__name__, "key": key}
        log.error("reload failed, the old configuration stays active: %s", error, extra=extra)


def needed_fds() -> int:
    return ServerLimits().connections + MAX_CONCURRENT_CHECKS + RESERVED_FDS


def divide_fds(allowed: int) -> tuple[int, int]:
    """The limits of connections and of concurrent checks; smaller than the defaults if the system allows too few."""
    available = allowed - RESERVED_FDS
    connections = max(1, min(ServerLimits().connections, available - available // 4))
    return connections, max(1, min(MAX_CONCURRENT_CHECKS, available - connections))


def allocate_fds() -> tuple[int, int]:
    """Raises the limit of open files as far as needed and allowed, and divides it."""
    needed = needed_fds()
    allowed = raise_fd_limit(needed)
    connections, checks = divide_fds(allowed)
    if allowed < needed:
        log.warning(
            "the limit of open files is %d, which allows %d checks and %d connections at a time; all others have to "
            "wait; raise the limit to %d (ulimit -Hn, or LimitNOFILE= in the systemd unit)",
            allowed,
            checks,
            connections,
            needed,
            extra={"event": "few_open_files", "limit": allowed, "checks": checks, "connections": connections},
        )
    return connections, checks
