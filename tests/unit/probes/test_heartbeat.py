"""Services that report by heartbeat, in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.config import load
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError, UnknownServiceError
from svcnode.core.model import Health, Status
from svcnode.definition import define
from svcnode.node import Node
from svcnode.probes import make_probe
from svcnode.probes.heartbeat import HeartbeatProbe
from svcnode.scheduler import ProbeScheduler
from tests.support.verdicts import unknown
from tests.support.virtual_time import VirtualClock, in_virtual_time

if TYPE_CHECKING:
    from pathlib import Path

Config = str | dict[str, object]
CONFIGS: list[Config] = ["heartbeat:30s", {"url": "heartbeat:", "ttl": "30s"}]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def node(clock: VirtualClock) -> Node:
    return Node("validator-7", version="v1", clock=clock)


# ---- ttl


@pytest.mark.parametrize("config", CONFIGS)
def test_the_ttl_is_in_the_url_or_an_option(config: Config) -> None:
    probe = make_probe(config)
    assert isinstance(probe, HeartbeatProbe)
    assert probe.ttl_s == 30.0


@pytest.mark.parametrize(("text", "ttl_s"), [("500ms", 0.5), ("1.5s", 1.5), ("2m", 120.0), ("7d", 604800.0)])
def test_the_ttl_is_a_duration(text: str, ttl_s: float) -> None:
    assert define("worker", probe=f"heartbeat:{text}").service.policy.ttl_s == ttl_s


def test_a_job_has_a_period_and_a_grace() -> None:
    policy = define("job", probe={"url": "heartbeat:", "period": "1h", "grace": "1m"}).service.policy
    assert (policy.ttl_s, policy.grace_s) == (3660.0, 60.0)
    assert define("worker", probe="heartbeat:30s").service.policy.grace_s is None


@pytest.mark.parametrize(
    "config",
    [
        {"url": "heartbeat:30s", "period": "1h", "grace": "1m"},
        {"url": "heartbeat:", "ttl": "30s", "period": "1h", "grace": "1m"},
        {"url": "heartbeat:", "period": "1h"},
        {"url": "heartbeat:", "grace": "1m"},
        {"url": "heartbeat:30s", "grace": "1m"},
        {"url": "heartbeat:", "period": "0s", "grace": "1m"},
        {"url": "heartbeat:", "period": "1h", "grace": "0s"},
    ],
)
def test_period_and_grace_are_set_together_and_instead_of_the_ttl(config: Config) -> None:
    with pytest.raises(ProbeError):
        make_probe(config)


@pytest.mark.parametrize(
    "config", ["heartbeat:", "heartbeat://30s", {"url": "heartbeat:30s", "ttl": "30s"}, {"url": "heartbeat:"}]
)
def test_the_ttl_must_be_set_exactly_once(config: Config) -> None:
    with pytest.raises(ProbeError):
        make_probe(config)


@pytest.mark.parametrize("url", ["heartbeat:30", "heartbeat:soon", "heartbeat:-1s", "heartbeat:/30s", "heartbeat:1e9s"])
def test_an_invalid_ttl_in_the_url_is_rejected(url: str) -> None:
    with pytest.raises(ProbeError):
        make_probe(url)


@pytest.mark.parametrize("config", ["heartbeat:0s", "heartbeat:0.0ms", {"url": "heartbeat:", "ttl": "0s"}])
def test_a_ttl_of_zero_is_rejected(config: Config) -> None:
    with pytest.raises(ProbeError):
        make_probe(config)


@pytest.mark.parametrize("ttl", [30, True, "30", []])
def test_an_invalid_ttl_is_an_option_error(ttl: object) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "heartbeat:", "ttl": ttl})
    assert caught.value.option == "ttl"


def test_checking_a_heartbeat_is_unknown() -> None:
    assert asyncio.run(make_probe("heartbeat:30s").check()) == unknown(ReasonCode.NO_EVIDENCE)


# ---- as a service of a node


@pytest.mark.parametrize("config", CONFIGS)
def test_a_service_is_initializing_before_its_first_beat_then_up_and_down_after_its_ttl(
    node: Node, clock: VirtualClock, config: Config
) -> None:
    node.register("worker", probe=config)
    clock.advance(29.9)
    assert (node.status("worker"), node.health) == (Status.INITIALIZING, Health.PARTIAL)
    node.beat("worker")
    clock.advance(29.9)
    assert (node.status("worker"), node.health) == (Status.UP, Health.HEALTHY)
    clock.advance(0.2)
    assert (node.status("worker"), node.health) == (Status.DOWN, Health.UNHEALTHY)
    assert node.state("worker").code == ReasonCode.TTL_EXPIRED


def test_a_service_without_any_beat_is_down_after_its_ttl(node: Node, clock: VirtualClock) -> None:
    node.register("worker", probe="heartbeat:30s")
    clock.advance(30.1)
    assert node.status("worker") is Status.DOWN


def test_beats_in_time_keep_a_service_up_and_one_beat_brings_it_back(node: Node, clock: VirtualClock) -> None:
    node.register("worker", probe="heartbeat:30s")
    for _ in range(100):
        node.beat("worker")
        clock.advance(29.0)
        assert node.status("worker") is Status.UP
    clock.advance(3600.0)
    assert node.status("worker") is Status.DOWN
    node.beat("worker")
    assert node.status("worker") is Status.UP


def test_a_service_can_report_that_it_is_initializing(node: Node, clock: VirtualClock) -> None:
    worker = node.register("worker", probe="heartbeat:30s")
    worker.initializing("replaying block 12")
    assert (worker.state.status, worker.state.reason) == (Status.INITIALIZING, "replaying block 12")
    clock.advance(30.1)
    assert worker.state.status is Status.DOWN


def test_a_beat_for_an_unknown_service_is_rejected(node: Node) -> None:
    with pytest.raises(UnknownServiceError):
        node.beat("worker")


@in_virtual_time
async def test_a_heartbeat_service_is_not_probed() -> None:
    node = Node("validator-7", version="v1", clock=asyncio.get_running_loop().time)
    node.register("worker", probe="heartbeat:30s")
    assert node.probe_config("worker") is None
    statuses: list[Status | None] = []
    node.subscribe(lambda change: statuses.append(None if change.after is None else change.after.status))
    async with ProbeScheduler(node):
        await asyncio.sleep(20.0)
        node.beat("worker")
        await asyncio.sleep(60.0)
    assert statuses == [Status.UP, Status.DOWN]


@pytest.mark.parametrize("probe", ['"heartbeat:30s"', '{ url = "heartbeat:", ttl = "30s" }'])
def test_a_configuration_file_can_define_a_heartbeat(
    tmp_path: Path, node: Node, clock: VirtualClock, probe: str
) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text(f'[defaults]\ninterval = "5s"\n[[services]]\nid = "worker"\nimpact = "critical"\nprobe = {probe}\n')
    (service,) = load(file, {}).services
    assert service.status is None
    node.add(service.definition)
    assert (node.status("worker"), node.health) == (Status.INITIALIZING, Health.PARTIAL)
    node.beat("worker")
    assert (node.status("worker"), node.health) == (Status.UP, Health.HEALTHY)
    clock.advance(30.1)
    assert (node.status("worker"), node.health) == (Status.DOWN, Health.UNHEALTHY)


def test_an_equal_definition_keeps_the_state(node: Node) -> None:
    node.register("worker", probe="heartbeat:30s")
    node.beat("worker")
    node.replace(define("worker", probe={"url": "heartbeat:", "ttl": "30s"}))
    assert node.status("worker") is Status.UP
