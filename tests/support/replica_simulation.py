"""Replicas of one node in virtual time: each is a process with an event loop, a clock and a network of its own.

A process runs only when the simulation lets it run, so it can be suspended, as by SIGSTOP: when it is resumed, all its
timers are due and all messages have arrived.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from svcnode.core.address import RegistryAddress
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Status, Verdict
from svcnode.core.url import Url  # noqa: TC001  the options of a probe are parsed by the types of its fields
from svcnode.net.etcd_json import Delete, Put
from svcnode.node.definition import define
from svcnode.node.scheduler import JITTER, ProbeScheduler
from svcnode.notify import NotifyStatus
from svcnode.notify.notifier import Notifier
from svcnode.probes import KINDS, make_probe
from svcnode.probes.base import Probe
from svcnode.sharing import SharingSettings
from svcnode.sharing.cache import encode_cache, parse_cache
from svcnode.sharing.format import (
    IssueDocument,
    KeyKind,
    ReportDocument,
    encode_document,
    encode_key,
    node_root,
    parse_key,
    service_document,
)
from svcnode.sharing.replica import Replica
from tests.support.etcd_simulation import EventQueue, SimulatedClient, SimulatedEtcd
from tests.support.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from svcnode.node.definition import Definition
    from svcnode.notify.notifier import AlertStateStorage, NotifySettings
    from svcnode.sharing.cache import CachedView

Options = dict[str, Any]

NODE = "n"
ROOT = node_root("/svcnode", NODE)
SCHEME = "sim"
LATENCY_S = 0.01
LEASE_S = 10.0
MAX_BUSY_STEPS = 10_000  # of an event loop at one time


def definition(service_id: str, options: Mapping[str, Any]) -> Definition:
    """As of a [[services]] table."""
    others = {name: value for name, value in options.items() if name not in ("status", "observers", "checked_by")}
    if "probe" in others:
        others["probe"] = make_probe(others["probe"])
    return define(service_id, **others)._replace(options=dict(options))


class Simulation:
    """Several processes and one etcd. `seed` determines the run, except for the order of equal times."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.events = EventQueue()
        self.etcd = SimulatedEtcd(self.events)
        self.processes: dict[str, Process] = {}
        self.down: set[str] = set()  # backends
        self.loading: set[str] = set()  # backends that answer, and are not ready
        self.success_s: dict[str, float] = {}  # by backend: when the last check began that succeeded
        self.after_step: Callable[[], None] = lambda: None

    @property
    def now_s(self) -> float:
        return self.events.now_s

    def start(self, name: str, services: Mapping[str, Options] | None = None, **settings: Any) -> Process:
        process = self.processes[name] = Process(self, name, services or {}, **settings)
        return process

    def run_for(self, duration_s: float) -> None:
        end_s = self.now_s + duration_s
        while True:
            self._run_due()
            self.after_step()
            next_s = min([self.events.next_at_s, *(process.next_at_s for process in self.processes.values())])
            if next_s > end_s:
                self.events.now_s = end_s
                return
            self.events.now_s = max(next_s, self.now_s)

    def _run_due(self) -> None:
        self.events.run_due()
        for process in list(self.processes.values()):
            if process.next_at_s <= self.now_s:
                process.run()

    def write(self, *operations: Put | Delete) -> None:
        """As another client of etcd does."""
        self.etcd.txn(operations)

    def define(self, service_id: str, owner: str = "client", **options: Any) -> None:
        document = encode_document(service_document(service_id, options, 0))
        self.write(Put(encode_key(ROOT, KeyKind.SERVICES, service_id, owner), document))

    def undefine(self, service_id: str, owner: str = "client") -> None:
        self.write(Delete(encode_key(ROOT, KeyKind.SERVICES, service_id, owner)))

    def set_issue(self, name: str, owner: str = "client") -> None:
        self.write(Put(encode_key(ROOT, KeyKind.ISSUES, name, owner), encode_document(IssueDocument(""))))

    def report(self, service_id: str, owner: str = "client", status: Status = Status.UP) -> None:
        document = encode_document(ReportDocument(status, "", ReasonCode.REPORTED))
        self.write(Put(encode_key(ROOT, KeyKind.REPORTS, service_id, owner), document))

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()


class MemoryCache:
    """The file of the last view, on the disk of one machine; it survives the processes."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.ids: frozenset[str] = frozenset()

    async def load(self, root: str) -> CachedView | None:
        return None if self.content is None else parse_cache(self.content, root)

    async def save(self, root: str, view: CachedView) -> None:
        self.content = encode_cache(root, view)
        keys = (parse_key(root, kv.key) for kv in view.kvs)
        self.ids = frozenset(key.names[0] for key in keys if key is not None and key.kind is KeyKind.SERVICES)


class Process:
    """A replica with the node that it serves. `clock_s` is the difference of its clock to that of the others."""

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        services: Mapping[str, Options],
        *,
        clock_s: float = 0.0,
        observers: int = 1,
        lease_s: float = LEASE_S,
        notify: NotifySettings | None = None,
        wall_clock: Callable[[], float] | None = None,
        storage: AlertStateStorage | None = None,
        cache: MemoryCache | None = None,
        url: str = "",
    ) -> None:
        """With `notify`, it sends notifications; then the wall clock matters."""
        self.simulation, self.name = simulation, name
        self.clock_s = clock_s
        self.is_alive, self.is_suspended = True, False
        self.reaches_backends = True
        self.has_work = True
        self.loop = ProcessLoop(self)
        rng = random.Random(simulation.rng.random())
        self.client = SimulatedClient(
            simulation.etcd, simulation.events, clock=self.loop.time, deliver=self._deliver, rng=rng
        )
        self._settings = SharingSettings(
            registry=RegistryAddress((("etcd", 2379),)),
            tls=None,
            replica=name,
            observers=observers,
            lease_s=lease_s,
            url=url,
        )
        self._notify, self._storage, self._cache = notify, storage, cache
        self._wall_clock = wall_clock or (lambda: -self.loop.time())
        self._jitter = partial(rng.uniform, -JITTER, JITTER)
        self._services = services
        self.call(self._start)
        self._task = self.loop.create_task(self._run())
        self.has_work = True

    def _start(self) -> None:
        self._stop_requested = asyncio.Event()
        self.node = make_node(NODE, version="v1", starting=True, clock=self.loop.time, wall_clock=self._wall_clock)
        self.notify_status = NotifyStatus()
        self.replica = Replica(
            self.node,
            self._settings,
            client=self.client,
            cache=self._cache,
            on_synced=self.node.overrides.started,
        )
        for service_id, options in self._services.items():
            self.services.add(definition(service_id, options))
        turns = self.replica.turns
        self.notifier = Notifier(self.node, self._notify, self.notify_status, storage=self._storage, turns=turns)

    async def _run(self) -> None:
        await self.replica.show_cached()
        async with (
            ProbeScheduler(self.node, self._jitter, recorder=self.services),
            self.replica.running(),
            self.notifier,
        ):
            await self._stop_requested.wait()

    @property
    def services(self) -> Any:
        return self.replica.services

    def call(self, function: Callable[[], None]) -> None:
        """In the event loop of the process, as a request to it."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                function()
            except BaseException as exc:  # noqa: BLE001  raised in the test
                errors.append(exc)

        self._deliver(run)
        if not self.is_suspended:
            self.run()
        if errors:
            raise errors[0]

    def add(self, service_id: str, **options: Any) -> None:
        self.call(lambda: self.services.add(definition(service_id, options)))

    def redefine(self, service_id: str, **options: Any) -> None:
        self.call(lambda: self.services.replace(definition(service_id, options)))

    def deregister(self, service_id: str) -> None:
        self.call(lambda: self.services.deregister(service_id))

    def beat(self, service_id: str) -> None:
        self.report(service_id, Verdict.ready(code=ReasonCode.REPORTED))

    def report(self, service_id: str, verdict: Verdict, *, sent_s: float = 0.0) -> None:
        """`sent_s`: how long ago."""

        def report() -> None:
            self.node.report(service_id, verdict, at_s=self.node.now_s() - sent_s)

        self.call(report)

    def ids(self) -> list[str]:
        return [service.id for service, _ in self.node]

    def statuses(self) -> dict[str, Status]:
        return {service.id: state.status for service, state in self.node}

    def codes(self) -> dict[str, str]:
        return {service.id: state.code for service, state in self.node}

    def health(self) -> Health:
        return self.node.health

    def issues(self) -> tuple[str, ...]:
        return self.node.condition.issues

    def checked(self) -> set[str]:
        """The services that this process checks."""
        return {service_id for service_id in self.ids() if self.node.probe_config(service_id) is not None}

    # ---- faults

    def suspend(self) -> None:
        self.is_suspended = True

    def resume(self) -> None:
        self.is_suspended = False

    def stop(self) -> None:
        """As by SIGTERM; it leaves within the next seconds."""
        self.loop.call_soon(self._task.cancel)
        self.has_work = True

    def shut_down(self) -> None:
        """As by SIGTERM, with notifications."""
        self.call(self.notifier.flush)
        self.call(lambda: self.node.overrides.drain("shutdown"))
        self.call(self._stop_requested.set)

    def kill(self) -> None:
        """As by SIGKILL: no message is sent any more."""
        if self.is_alive:
            self.is_alive = False
            self.client.kill()
            self.loop.discard()

    # ---- running

    @property
    def next_at_s(self) -> float:
        if not self.is_alive or self.is_suspended:
            return float("inf")
        return 0.0 if self.has_work else self.loop.next_timer_s - self.clock_s

    def run(self) -> None:
        self.has_work = False
        self.loop.run_forever()
        if self.loop.error is not None:
            error, self.loop.error = self.loop.error, None
            raise error

    def _deliver(self, function: Callable[[], None]) -> None:
        if self.is_alive:
            self.loop.call_soon(function)
            self.has_work = True


class ProcessLoop(asyncio.SelectorEventLoop):
    """Its `run_forever` returns when nothing is due."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.next_timer_s = float("-inf")
        self.error: BaseException | None = None
        self._is_discarded, self._skipped_s, self._at_least_s = False, 0.0, float("-inf")
        self._busy_steps = 0
        super().__init__(_IdleSelector(self))
        self.set_exception_handler(self._keep_error)

    def time(self) -> float:
        return max(self.process.simulation.now_s + self.process.clock_s + self._skipped_s, self._at_least_s)

    def on_idle(self, timeout_s: float) -> None:
        if self._is_discarded:
            self._skipped_s += timeout_s
        else:
            self.next_timer_s, self._busy_steps = self.time() + timeout_s, 0
            self.stop()

    def on_busy(self) -> None:
        """A timer may fire a nanosecond early, and be set again and again: then some time has to pass."""
        self._busy_steps += 1
        if not self._is_discarded and self._busy_steps > MAX_BUSY_STEPS:
            self._at_least_s = self.time() + 1e-9

    def discard(self) -> None:
        """End without running anything any more."""
        self._is_discarded = True
        self.set_exception_handler(lambda *_: None)
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.wait(tasks))
        self.close()

    def _keep_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.error = context.get("exception") or RuntimeError(context["message"])


class _IdleSelector(selectors.DefaultSelector):
    def __init__(self, loop: ProcessLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._loop.on_idle(float("inf") if timeout is None else timeout)
        else:
            self._loop.on_busy()
        return super().select(0)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SimulatedProbe(Probe):
    """`sim://backend`: the check of a backend by the process in whose event loop it runs."""

    url: Url = field(kw_only=False)
    password: str = ""

    async def check(self) -> Verdict:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        process, backend = loop.process, self.url.require_host()
        simulation = process.simulation
        began_s = simulation.now_s
        await asyncio.sleep(LATENCY_S)
        if backend in simulation.down or not process.reaches_backends:
            return Verdict.failed("refused", code=ReasonCode.CONNECTION_REFUSED)
        if backend in simulation.loading:
            return Verdict.not_ready("loading")
        simulation.success_s[backend] = max(began_s, simulation.success_s.get(backend, began_s))
        return Verdict.ready()


@contextmanager
def simulated_probes() -> Iterator[None]:
    """Adds the kind `sim`."""
    KINDS[SCHEME] = f"{__name__}:{SimulatedProbe.__name__}"
    try:
        yield
    finally:
        del KINDS[SCHEME]
