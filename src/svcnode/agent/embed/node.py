"""Node: what a program embeds. It holds the state of the node and its checks, and offers programs what they need."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, UnknownServiceError
from svcnode.core.model import SPEC_VERSION, Evidence, Identity, Verdict
from svcnode.core.text import safe_reason
from svcnode.net.clock import monotonic_s
from svcnode.node.checks import Checks
from svcnode.node.definition import CheckOptions, validate_option_names
from svcnode.node.node_state import Handle, NodeState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from svcnode.agent.embed.embedding import Embedding
    from svcnode.core.model import Condition, Health, Service, ServiceState
    from svcnode.node.definition import ServiceOptions
    from svcnode.node.feed import OnChange, OnEvidence

F = TypeVar("F", bound="Callable[[], Any]")

Target = str | Mapping[str, Any]  # a URL, or a table with a `url` and options


class HistoryLimits(TypedDict, total=False):
    """Keys of [history]."""

    max_age: str
    max_size: str


class NotifyOptions(TypedDict, total=False):
    """Keys of [notify]."""

    webhook: Target | Sequence[Target]
    alertmanager: Target | Sequence[Target]
    apprise: str | Sequence[str]
    services: Literal["critical", "all", "none"]
    group_wait: str
    resolve_delay: str
    repeat_interval: str
    start_limit: str
    heartbeat: Target
    heartbeat_interval: str


class Internals:
    """The parts of a node that the rest of svcnode uses, but programs do not."""

    def __init__(self, state: NodeState) -> None:
        self.state = state
        self.checks = Checks(state)
        self._embedding: Embedding | None = None
        self._lock = Lock()

    @property
    def embedding(self) -> Embedding:
        """History, messages and operator endpoints: loaded with the first of them."""
        from svcnode.agent.embed.embedding import Embedding

        with self._lock:
            if self._embedding is None:
                self._embedding = Embedding(self.state, self.checks)
            return self._embedding


class Node:
    """A validator-service node: its identity, its backing services and their states."""

    def __init__(
        self,
        name: str,
        *,
        version: str,
        starting: bool = False,
        clock: Callable[[], float] = monotonic_s,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """With `starting`, the health is at best 206 until `started()` is called."""
        identity = Identity(node_name=name, spec_version=SPEC_VERSION, node_version=version)
        self._internals = Internals(NodeState(identity, starting=starting, clock=clock, wall_clock=wall_clock))
        self._state, self._checks = self._internals.state, self._internals.checks

    # ---- services

    def register(self, service_id: str, **options: Unpack[ServiceOptions]) -> Handle:
        """Register a service. With a probe, the service is checked; without one, the program reports its status.

        The options are those of a [[services]] table: name, description, impact, probe, interval, timeout, rise, fall,
        start_period, stale_after and others; those about checks need a probe. Without a probe, the last report is valid
        until the next one. With a `ttl`, a report is valid for this time; after it, the service is Down.
        """
        return self._state.register(service_id, **options)

    def check(self, service_id: str, **options: Unpack[CheckOptions]) -> Callable[[F], F]:
        """Register a service whose probe is the decorated function.

        The function returns nothing or True (ready), returns False (failed), a `Verdict`, an `Outcome` or a `Status`,
        or raises (failed); any other result is unknown. A plain function runs in a thread and cannot block the event
        loop. A generator function is rejected: calling it runs none of its code.
        """
        from svcnode.probes.function import FunctionProbe

        if callable(service_id):
            raise InvalidValueError('@node.check needs the id of the service: @node.check("cache")')
        validate_option_names(options, CheckOptions)

        def register(function: F) -> F:
            self.register(service_id, probe=FunctionProbe(function), **options)
            return function

        return register

    def handle(self, service_id: str) -> Handle:
        """Return the handle of a registered service. Raises `UnknownServiceError`."""
        self._state.state(service_id)
        return Handle(self._state, service_id)

    def deregister(self, service_id: str) -> None:
        """Remove a service. Raises `UnknownServiceError`."""
        self._state.deregister(service_id)

    def report(self, service_id: str, verdict: Verdict) -> ServiceState:
        """Record a report of the program; returns the new state.

        The program cannot report `ready` for a service that has a probe: only a check is evidence of that.
        """
        return self._state.report(service_id, verdict)

    def record(
        self, service_id: str, verdict: Verdict, *, duration_s: float = 0.0, at_s: float | None = None
    ) -> ServiceState:
        """Record the verdict of a check that began now, or earlier, at `at_s`; returns the new state.

        For tests. A program uses `report`, which rejects `ready` for a service with a probe.
        """
        verdict = verdict._replace(reason=safe_reason(verdict.reason))
        evidence = Evidence(verdict, math.inf if at_s is None else at_s, duration_s)
        states = self._state.record({service_id: evidence})
        if service_id not in states:
            raise UnknownServiceError(service_id)
        return states[service_id]

    def beat(self, service_id: str) -> None:
        """Record a heartbeat of a service registered with a `ttl`."""
        self._state.report(service_id, Verdict.ready(code=ReasonCode.REPORTED))

    # ---- the node as a whole

    def set_issue(self, issue: object) -> None:
        """Report something wrong with the node itself: its health is 503 until this issue is cleared.

        It may be any object, as a reason may.
        """
        self._state.overrides.set_issue(issue)

    def clear_issue(self, issue: object = None) -> None:
        """Clear one issue, or all of them."""
        self._state.overrides.clear_issue(issue)

    def started(self) -> None:
        """End the start of a node that was made with `starting=True`."""
        self._state.overrides.started()

    def drain(self, reason: object = "") -> None:
        """Set the health to 503, so that load balancers stop sending requests. Operators see the reason."""
        self._state.overrides.drain(reason)

    def undrain(self) -> None:
        """End a drain: the health follows the services again."""
        self._state.overrides.undrain()

    # ---- reading

    @property
    def identity(self) -> Identity:
        """The name and the versions of the node, as its answers have them."""
        return self._state.identity

    @property
    def health(self) -> Health:
        """The health at this moment: 200, 206 or 503."""
        return self._state.health

    @property
    def condition(self) -> Condition:
        """What lowers the health whatever the services do: starting, draining and issues."""
        return self._state.condition

    def state(self, service_id: str) -> ServiceState:
        """Return the state of a service at this moment. Raises `UnknownServiceError`."""
        return self._state.state(service_id)

    def subscribe(
        self, on_change: OnChange | None = None, *, on_evidence: OnEvidence | None = None
    ) -> Callable[[], None]:
        """Follow the node from now on; returns a function that ends the subscription.

        `on_change` is called once for every change, in order. `on_evidence` is called for every recorded verdict, with
        the service id, the evidence and the new state, before `on_change` for the change that it causes. Both run on
        the thread that recorded the verdict, so they must return quickly. An exception of a listener is logged; the
        other listeners are still called.
        """
        return self._state.subscribe(on_change, on_evidence=on_evidence)

    def __iter__(self) -> Iterator[tuple[Service, ServiceState]]:
        """Services and their states in the order of registration, all as of the same time."""
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __bool__(self) -> bool:
        return True  # also without services

    def __contains__(self, service_id: object) -> bool:
        return service_id in self._state

    # ---- checks

    @asynccontextmanager
    async def probing(self, *, max_concurrent_checks: int | None = None) -> AsyncIterator[Node]:
        """Check the services that have a probe while the block runs. A nested block does nothing."""
        async with self._checks.running(max_concurrent_checks=max_concurrent_checks):
            yield self

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """`probing` as a lifespan function of a framework: `FastAPI(lifespan=node.lifespan)`."""
        async with self._checks.running():
            yield

    def start(self) -> None:
        """Check the services from a background thread, for programs without an event loop. Idempotent.

        If threads do not run in this process, a warning is logged, and it is the reason of every checked service.
        """
        self._checks.start()

    def stop(self) -> None:
        """End what `start` began, after the checks that run."""
        self._checks.stop()

    @property
    def is_probing(self) -> bool:
        """Whether the services are checked: in a `probing` block, or after `start`."""
        return self._checks.are_running

    # ---- what runs with the checks; to be called before they start

    def share_states(self, folder: str | os.PathLike[str]) -> None:
        """Share the states of the services with the other worker processes of the program, through a folder.

        One of the workers runs the checks, writes the history and sends the messages, and all of them give the same
        answers. They start to share when probing starts: call it before. Only the user of the program may write to the
        folder, which is created if it is missing.
        """
        self._checks.require_not_running("share_states")
        self._checks.workers_folder = Path(folder)

    def record_history(self, path: str | os.PathLike[str], **limits: Unpack[HistoryLimits]) -> None:
        """Record every change in a SQLite file while the checks run; the operator page shows it.

        `limits` are `max_age` and `max_size`, as in [history] of the configuration. Call it before the checks start.
        Raises `ConfigError`.
        """
        self._internals.embedding.record_history({"path": os.fspath(path), **limits})

    def notify(self, **options: Unpack[NotifyOptions]) -> None:
        """Send a message when the health of the node or of a critical service changes, while the checks run.

        The options are the keys of [notify] in the configuration, such as `webhook="https://…"`. Call it before the
        checks start. Raises `ConfigError`.
        """
        self._internals.embedding.notify(options)


def internals_of(node: Node) -> Internals:
    return node._internals
