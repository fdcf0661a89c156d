"""Nodes as the rest of svcnode knows them, without the checks of the public `Node`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import UnknownServiceError
from svcnode.core.model import SPEC_VERSION, Evidence, Identity, ServiceState, Verdict
from svcnode.core.text import safe_reason
from svcnode.net.clock import monotonic_s
from svcnode.node.node_state import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable


def make_node(
    name: str = "n",
    *,
    version: str = "v1",
    starting: bool = False,
    clock: Callable[[], float] = monotonic_s,
    wall_clock: Callable[[], float] = time.time,
) -> NodeState:
    identity = Identity(node_name=name, spec_version=SPEC_VERSION, node_version=version)
    return NodeState(identity, starting=starting, clock=clock, wall_clock=wall_clock)


def record(
    node: NodeState, service_id: str, verdict: Verdict, *, duration_s: float = 0.0, at_s: float | None = None
) -> ServiceState:
    """The verdict of a check that began now, or at `at_s`."""
    at_s = node.now_s() if at_s is None else at_s
    verdict = verdict._replace(reason=safe_reason(verdict.reason))  # as after every check
    states = node.record({service_id: Evidence(verdict, at_s, duration_s)})
    if service_id not in states:
        raise UnknownServiceError(service_id)
    return states[service_id]


def beat(node: NodeState, service_id: str) -> None:
    node.report(service_id, Verdict.ready(code=ReasonCode.REPORTED))
