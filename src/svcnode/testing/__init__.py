"""Helpers for the tests of programs that embed a node, and of probes.

In pytest, the fixtures of `svcnode.testing.pytest` need no import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from svcnode.agent.embed.node import Node, internals_of
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import MAX_INTERVAL_S, Health, Impact, Status
from svcnode.core.text import sanitize, suggestion
from svcnode.core.units import format_duration, parse_duration_s
from svcnode.probes import make_probe
from svcnode.probes.base import Probe
from svcnode.probes.function import FunctionProbe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.core.model import Service, ServiceState, Verdict
    from svcnode.core.units import Duration

__all__ = ["FakeClock", "assert_health", "assert_status", "run_check", "run_check_async"]

ProbeLike = Probe | str | Mapping[str, Any] | Callable[[], Any]

MAX_SERVICES_SHOWN = 10
_SERVICE_ID = "under-test"


class FakeClock:
    """A clock that only a test advances: `Node("under-test", version="v1", clock=FakeClock())`."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, duration: Duration) -> None:
        """By "31s", or by a number of seconds. Evidence that expires is noticed at the next read of the node."""
        self.now_s += parse_duration_s(duration)


# ---- one check


def run_check(probe: ProbeLike, *, timeout: Duration | None = None, max_latency: Duration | None = None) -> Verdict:
    """Run one check as a node does, with its deadline (default: 3 s), and return the verdict.

    `probe` is what a service is registered with, or a function for `@node.check`. In a coroutine, await
    `run_check_async` instead.
    """
    node = _node_with(probe, timeout, max_latency)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # Its own factory: otherwise the runner would also replace the event loop of this thread.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(_first_verdict(node))
    raise RuntimeError("run_check() would block the running event loop; use `await run_check_async(…)`")


async def run_check_async(
    probe: ProbeLike,
    *,
    timeout: Duration | None = None,  # noqa: ASYNC109  the scheduler enforces it
    max_latency: Duration | None = None,
) -> Verdict:
    """`run_check` in the running event loop."""
    return await _first_verdict(_node_with(probe, timeout, max_latency))


def _node_with(probe: ProbeLike, timeout: Duration | None, max_latency: Duration | None) -> Node:
    """A node with this service only. The longest interval allows every timeout, and there is no second check."""
    if probe is None:
        raise InvalidValueError("there is no probe to check; pass a URL, a table with a url, a probe or a function")
    if isinstance(probe, str | Mapping):
        probe = make_probe(probe)
    elif not isinstance(probe, Probe) and callable(probe):
        probe = FunctionProbe(probe)
    if getattr(probe, "ttl_s", None) is not None:  # an object that is not a probe is rejected below
        raise InvalidValueError("a heartbeat cannot be checked; register it with a node, and call node.beat()")
    node = Node(_SERVICE_ID, version="v0")
    node.register(_SERVICE_ID, probe=probe, interval=MAX_INTERVAL_S, timeout=timeout, max_latency=max_latency)
    return node


async def _first_verdict(node: Node) -> Verdict:
    verdicts: asyncio.Queue[Verdict] = asyncio.Queue()
    node.subscribe(on_evidence=lambda service_id, evidence, state: verdicts.put_nowait(evidence.verdict))
    async with node.probing():
        return await verdicts.get()


# ---- assertions


def assert_status(node: Node, service_id: str, status: Status | str, *, code: str | None = None) -> None:
    """Fail unless the service has this status and, if given, this reason code."""
    __tracebackhide__ = True
    if service_id not in node:
        ids = [service.id for service, _ in node]
        raise AssertionError(f"service {service_id!r} is not registered{suggestion(service_id, ids) if ids else ''}")
    state = node.state(service_id)
    expected = Status(status)
    if state.status is not expected or code not in (None, state.code):
        expected_text = expected.value if code is None else f"{expected.value} ({code})"
        text = f"service {service_id!r} is {state.status.value} ({state.code}), expected {expected_text}"
        raise AssertionError("\n".join([text, *_evidence_lines(node, service_id, state)]))


def _evidence_lines(node: Node, service_id: str, state: ServiceState) -> Iterator[str]:
    yield f"  reason:       {sanitize(state.reason) or 'none'}"
    yield f"  evidence:     {_age(node, state.last_evidence_at_s)}"
    yield f"  last success: {_age(node, state.last_ready_at_s)}"
    if internals_of(node).state.probe_config(service_id) is not None and not node.is_probing:
        yield "  The node is not probing, so it runs no checks. Start it, or record the verdict of run_check()."


def _age(node: Node, at_s: float | None) -> str:
    return "none" if at_s is None else f"{format_duration(internals_of(node).state.now_s() - at_s)} ago"


def assert_health(node: Node, health: Health | int) -> None:
    """Fail unless the node has this health: 200, 206 or 503."""
    __tracebackhide__ = True
    actual, expected = node.health, Health(health)
    if actual is not expected:
        text = f"the health is {actual.value} ({actual.text}), expected {expected.value} ({expected.text})"
        raise AssertionError("\n".join([text, *_health_lines(node)]))


def _health_lines(node: Node) -> Iterator[str]:
    condition = node.condition
    if condition.draining:
        yield "  draining"
    if condition.starting:
        yield "  starting: started() was not called"
    yield from (f"  issue: {sanitize(issue)}" for issue in condition.issues)
    not_up = [(service, state) for service, state in node if state.status is not Status.UP]
    yield f"  {len(node) - len(not_up)} of {len(node)} services are Up"
    yield from (_service_line(service, state) for service, state in not_up[:MAX_SERVICES_SHOWN])
    if len(not_up) > MAX_SERVICES_SHOWN:
        yield f"  and {len(not_up) - MAX_SERVICES_SHOWN} more"


def _service_line(service: Service, state: ServiceState) -> str:
    impact = "not counted" if service.impact is Impact.NONE else service.impact.value
    reason = f": {sanitize(state.reason)}" if state.reason else ""
    return f"  {service.id} ({impact}) is {state.status.value} ({state.code}){reason}"
