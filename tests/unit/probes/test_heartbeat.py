"""A service that gives a sign of life by itself: told in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.config import load
from svcnode.core.errors import OptionError, ProbeError, UnknownServiceError
from svcnode.core.model import Health, Outcome, Status
from svcnode.definition import define
from svcnode.node import Node
from svcnode.probes import make_probe
from svcnode.probes.heartbeat import HeartbeatProbe
from svcnode.scheduler import ProbeScheduler
from tests.support.virtual_time import VirtualClock, in_virtual_time

if TYPE_CHECKING:
    from pathlib import Path

Words = str | dict[str, object]
BOTH_WAYS: list[Words] = ["heartbeat:30s", {"url": "heartbeat:", "ttl": "30s"}]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def node(clock: VirtualClock) -> Node:
    return Node("validator-7", version="v1", clock=clock)


# ---- how long a beat counts


@pytest.mark.parametrize("words", BOTH_WAYS)
def test_the_time_stands_in_the_url_or_beside_it(words: Words) -> None:
    probe = make_probe(words)
    assert isinstance(probe, HeartbeatProbe)
    assert probe.ttl_s == 30.0


@pytest.mark.parametrize(("text", "ttl_s"), [("500ms", 0.5), ("1.5s", 1.5), ("2m", 120.0), ("7d", 604800.0)])
def test_the_time_is_a_duration_like_any_other(text: str, ttl_s: float) -> None:
    assert define("worker", probe=f"heartbeat:{text}").service.policy.ttl_s == ttl_s


@pytest.mark.parametrize(
    "words", ["heartbeat:", "heartbeat://30s", {"url": "heartbeat:30s", "ttl": "30s"}, {"url": "heartbeat:"}]
)
def test_the_time_is_named_once(words: Words) -> None:
    with pytest.raises(ProbeError, match='names how long a beat counts, once: "heartbeat:30s", or ttl = "30s"'):
        make_probe(words)


@pytest.mark.parametrize("url", ["heartbeat:30", "heartbeat:soon", "heartbeat:-1s", "heartbeat:/30s", "heartbeat:1e9s"])
def test_what_is_no_time_is_refused(url: str) -> None:
    with pytest.raises(ProbeError, match="is not a duration; write a number and a unit"):
        make_probe(url)


@pytest.mark.parametrize("words", ["heartbeat:0s", "heartbeat:0.0ms", {"url": "heartbeat:", "ttl": "0s"}])
def test_a_beat_that_counts_for_no_time_at_all_is_refused(words: Words) -> None:
    with pytest.raises(ProbeError, match="a beat counts for more than 0 seconds"):
        make_probe(words)


@pytest.mark.parametrize(
    ("ttl", "says"), [(30, 'write "30s"'), (True, "must be a string"), ("30", 'such as "30s"'), ([], "not a list")]
)
def test_a_wrong_ttl_is_refused_by_name(ttl: object, says: str) -> None:
    with pytest.raises(OptionError, match=f"^ttl: .*{says}"):
        make_probe({"url": "heartbeat:", "ttl": ttl})


def test_a_look_for_a_heartbeat_says_that_there_is_nothing_to_look_for() -> None:
    assert asyncio.run(make_probe("heartbeat:30s").check()).outcome is Outcome.UNKNOWN


# ---- as a service of a node


@pytest.mark.parametrize("words", BOTH_WAYS)
def test_a_service_is_initializing_before_its_first_beat_up_after_it_and_down_when_it_falls_silent(
    node: Node, clock: VirtualClock, words: Words
) -> None:
    node.register("worker", probe=words)
    clock.advance(29.9)
    assert (node.status("worker"), node.health) == (Status.INITIALIZING, Health.PARTIAL)
    node.beat("worker")
    clock.advance(29.9)
    assert (node.status("worker"), node.health) == (Status.UP, Health.HEALTHY)
    clock.advance(0.2)
    assert (node.status("worker"), node.health) == (Status.DOWN, Health.UNHEALTHY)
    assert node.state("worker").reason == "no report within its ttl of 30 s"


def test_a_service_that_never_beats_is_down_after_its_time(node: Node, clock: VirtualClock) -> None:
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


def test_a_service_may_say_more_than_that_it_lives(node: Node, clock: VirtualClock) -> None:
    worker = node.register("worker", probe="heartbeat:30s")
    worker.initializing("replaying block 12")
    assert (worker.state.status, worker.state.reason) == (Status.INITIALIZING, "replaying block 12")
    clock.advance(30.1)
    assert worker.state.status is Status.DOWN


def test_a_beat_for_nobody_is_refused(node: Node) -> None:
    with pytest.raises(UnknownServiceError, match="'worker'"):
        node.beat("worker")


@in_virtual_time
async def test_nobody_looks_for_it_so_that_nothing_but_a_beat_counts() -> None:
    node = Node("validator-7", version="v1", clock=asyncio.get_running_loop().time)
    node.register("worker", probe="heartbeat:30s", interval="1s")
    assert node.probe_config("worker") is None
    seen: list[Status | None] = []
    node.subscribe(lambda change: seen.append(None if change.after is None else change.after.status))
    async with ProbeScheduler(node):
        await asyncio.sleep(20.0)
        node.beat("worker")
        await asyncio.sleep(60.0)
    assert seen == [Status.UP, Status.DOWN]


@pytest.mark.parametrize("probe", ['"heartbeat:30s"', '{ url = "heartbeat:", ttl = "30s" }'])
def test_a_file_names_it_like_any_other_probe(tmp_path: Path, node: Node, clock: VirtualClock, probe: str) -> None:
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


def test_the_same_words_again_leave_what_is_believed_alone(node: Node) -> None:
    node.register("worker", probe="heartbeat:30s")
    node.beat("worker")
    node.replace(define("worker", probe={"url": "heartbeat:", "ttl": "30s"}))
    assert node.status("worker") is Status.UP
