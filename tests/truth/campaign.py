"""The campaign of one kind: faults are injected into its server while a node probes it and a sampler polls the node."""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.network_namespace import OWN_IPV4, run_in_namespace
from tests.support.processes import Agent
from tests.truth.evaluate import DOWN, INITIALIZING, UP, Phase, Row, evaluate_phase, merge_rows
from tests.truth.kinds import EXHAUSTED, NOT_STARTED, READY, SHORT_FAULTS, WRONG_CREDENTIALS
from tests.truth.sampler import Sampler
from tests.truth.timing import (
    DEFAULTS,
    FAULT_HOLD_S,
    HEALTHY_HOLD_S,
    NEVER_AUTHENTICATED_S,
    NEVER_STARTED_S,
    READY_S,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.network_namespace import NetworkNamespace
    from tests.support.servers.base import RealServer
    from tests.truth.kinds import Fault, Kind


class CampaignStoppedError(Exception):
    """The campaign was interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    is_short: bool
    reuse: bool  # probes reuse their connections
    node_url: str | None  # polled instead of a node of the campaign
    stopping: threading.Event


@dataclass(frozen=True, slots=True, kw_only=True)
class KindResult:
    kind: str
    rows: list[Row]
    rounds_per_s: float
    longest_gap_s: float
    node_log: list[str]


def run(kind: Kind, folder: Path, options: Options) -> KindResult:
    if not kind.is_named:
        return _run(kind, folder, options)
    folder.mkdir(parents=True, exist_ok=True)
    return run_in_namespace(folder / "hosts", lambda namespace: _run(kind, folder, options, namespace))


def _run(kind: Kind, folder: Path, options: Options, namespace: NetworkNamespace | None = None) -> KindResult:
    with ExitStack() as stack:
        server = kind.make(folder / "server", stack)
        if namespace is not None:
            server.host = OWN_IPV4  # the resolver sorts an IPv6 address before it, but not before 127.0.0.1
            namespace.set_hosts(server_example=server.host)
            server.namespace = namespace  # type: ignore[attr-defined]  # for the faults
        if options.is_short:
            stack.enter_context(server)
        probes = _probes(kind, server, reuse=options.reuse)
        node_folder = folder / "node"
        node_folder.mkdir()
        node = stack.enter_context(_node(node_folder, probes, kind.service_options, options))
        sampler = stack.enter_context(Sampler(node.url, list(probes)))
        sequence = FaultSequence(kind, server, options)
        if options.is_short:
            sequence.run_short()
        else:
            sequence.run(stack)
    rows = [evaluate_phase(phase, sampler.samples) for phase in sequence.phases]
    return KindResult(
        kind=kind.name,
        rows=merge_rows(rows),
        rounds_per_s=sampler.rounds_per_s,
        longest_gap_s=sampler.longest_gap_s,
        node_log=node.log_lines(),
    )


# ---- the node


@dataclass(frozen=True, slots=True)
class NodeUnderTest:
    url: str
    agent: Agent | None

    def log_lines(self) -> list[str]:
        return [] if self.agent is None else [_shortened(line) for line in self.agent.lines]


def _shortened(line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    return f"{entry['time'][11:23]} {entry['message']}"


@contextmanager
def _node(
    folder: Path, probes: Mapping[str, Mapping[str, Any]], service_options: Mapping[str, Any], options: Options
) -> Iterator[NodeUnderTest]:
    if options.node_url is not None:
        yield NodeUnderTest(options.node_url, None)
        return
    more = "".join(f"{key} = {_toml(value)}\n" for key, value in service_options.items())
    services = [f"[[services]]\nid = {_toml(key)}\nprobe = {_toml(probe)}\n{more}" for key, probe in probes.items()]
    with Agent(folder, "--listen", "127.0.0.1:0", config="\n".join([DEFAULTS, *services])) as agent:
        yield NodeUnderTest(f"http://127.0.0.1:{agent.port}", agent)
        assert agent.process.poll() is None, "the node exited:\n" + "\n".join(agent.lines)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)  # strings, numbers and booleans are the same in TOML


def _probes(kind: Kind, server: RealServer, *, reuse: bool) -> dict[str, dict[str, Any]]:
    """By service id."""
    options = {name: value(server) if callable(value) else value for name, value in kind.options.items()}
    url = server.url.replace(server.host, "server.example") if kind.is_named else server.url
    probes = {service_id(kind): {"url": url, **options, **({"reuse": reuse} if kind.has_connection else {})}}
    if kind.has_credentials:
        wrong_url: str = server.bad_credentials_url  # type: ignore[attr-defined]  # servers with credentials have it
        probes[_bad_credentials_id(kind)] = {"url": wrong_url, **options}
    return probes


def service_id(kind: Kind) -> str:
    """Also the name of its folder: some servers do not accept every character in a path."""
    return re.sub(r"\W+", "-", kind.name.lower())


def _bad_credentials_id(kind: Kind) -> str:
    return f"{service_id(kind)}-with-wrong-credentials"


# ---- the faults


class FaultSequence:
    def __init__(self, kind: Kind, server: RealServer, options: Options) -> None:
        self._kind = kind
        self._server = server
        self._options = options
        self.phases: list[Phase] = []

    def run(self, stack: ExitStack) -> None:
        self._hold_phase(NOT_STARTED, INITIALIZING, DOWN, bound_s=NEVER_STARTED_S, was_up=False)
        stack.enter_context(self._server)
        self._run_initial_ready()
        for fault in self._kind.faults:
            if fault is EXHAUSTED and self._options.reuse:
                continue  # a probe with a connection needs no other
            self._run_fault(fault)

    def run_short(self) -> None:
        self._run_initial_ready()
        for fault in self._kind.faults:
            if fault in SHORT_FAULTS:
                self._run_fault(fault)

    def _run_initial_ready(self) -> None:
        """The service with wrong credentials is polled at the same time."""
        if not self._kind.has_credentials:
            self._hold_phase(READY, UP, bound_s=READY_S)
            return
        phase = self._hold_phase(
            READY, UP, bound_s=READY_S, duration_s=max(READY_S + HEALTHY_HOLD_S, NEVER_AUTHENTICATED_S + FAULT_HOLD_S)
        )
        self.phases.append(
            replace(
                phase,
                fault=WRONG_CREDENTIALS,
                service_id=_bad_credentials_id(self._kind),
                expected=(DOWN,),
                bound_s=NEVER_AUTHENTICATED_S,
                was_up=False,
            )
        )

    def _run_fault(self, fault: Fault) -> None:
        with ExitStack() as stack:
            try:
                stack.enter_context(fault.inject(self._server))
            except pytest.skip.Exception as exc:
                print(f"{self._kind.name}: {fault.name}: skipped: {exc}", file=sys.stderr)  # noqa: T201
                return
            self._hold_phase(fault.name, fault.expected, bound_s=fault.bound_s)
        self._server.wait_until_ready()
        self._hold_phase(fault.state_after, UP, bound_s=fault.recovery_bound_s)

    def _hold_phase(
        self, fault: str, *expected: str, bound_s: float, was_up: bool = True, duration_s: float | None = None
    ) -> Phase:
        """Wait while the server stays in its current condition."""
        began_s = time.monotonic()
        if duration_s is None:
            duration_s = bound_s + (HEALTHY_HOLD_S if expected == (UP,) else FAULT_HOLD_S)
        if self._options.stopping.wait(duration_s):
            raise CampaignStoppedError
        phase = Phase(
            kind=self._kind.name,
            fault=fault,
            service_id=service_id(self._kind),
            expected=expected,
            began_s=began_s,
            ended_s=time.monotonic(),
            bound_s=bound_s,
            was_up=was_up,
        )
        self.phases.append(phase)
        return phase
