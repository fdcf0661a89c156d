"""The services of a fleet follow what is found."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.agent.fleet.found import FoundReplica
from svcnode.agent.fleet.found_services import FleetProbe, FleetServices
from svcnode.agent.fleet.sources import ABSENT
from svcnode.config.fleet import SERVICE_ID, FleetSettings
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Impact, Outcome, Status, Verdict
from svcnode.testing import FakeClock
from tests.support.nodes import make_node, record

if TYPE_CHECKING:
    from svcnode.node.definition import ServiceOptions

PAY_A = FoundReplica("pay", "a", "http://10.0.0.1:8420")
PAY_B = FoundReplica("pay", "b", "http://10.0.0.2:8420")
LONE = FoundReplica("", "10.0.0.3", "http://10.0.0.3")


class FleetHarness:
    """A node whose search finds `found`."""

    def __init__(self) -> None:
        self.node = make_node("fleet", version="v1", clock=FakeClock())
        self.ids: dict[str, bool] = {}
        self.services = FleetServices(self.node, self.ids)
        self.found: list[FoundReplica] | Verdict = []
        self.configure()

    def configure(self, file: str = "nodes.txt", probe: dict[str, Any] | None = None, **options: Any) -> None:
        settings = FleetSettings(
            registry=None,
            tls=None,
            file=Path(file),
            refresh_interval_s=10.0,
            options=cast("ServiceOptions", options),
            probe_options={} if probe is None else probe,
        )
        self.services.configure(settings)

    async def read(self) -> list[FoundReplica] | Verdict:
        return self.found

    def search(self, *found: FoundReplica) -> Verdict:
        self.found = list(found)
        return self.check()

    def check(self) -> Verdict:
        config = self.node.probe_config(SERVICE_ID)
        assert config is not None
        assert isinstance(config.probe, FleetProbe)
        probe = FleetProbe(settings=config.probe.settings, services=self.services, source=self)
        verdict = asyncio.run(probe.check())
        record(self.node, SERVICE_ID, verdict)
        return verdict

    @property
    def listed(self) -> list[str]:
        return [service.id for service, _ in self.node if service.id != SERVICE_ID]

    def url(self, service_id: str) -> str | None:
        config = self.node.probe_config(service_id)
        return None if config is None else config.probe.display_url

    def state(self, service_id: str) -> tuple[Status, str]:
        state = self.node.state(service_id)
        return state.status, state.code


@pytest.fixture
def harness() -> FleetHarness:
    return FleetHarness()


def test_each_replica_is_a_checked_service_in_the_group_of_its_node(harness: FleetHarness) -> None:
    verdict = harness.search(PAY_A, PAY_B, LONE)
    assert verdict.outcome is Outcome.READY
    services = {service.id: (service.name, service.group) for service, _ in harness.node if service.id != SERVICE_ID}
    assert services == {"pay/a": ("a", "pay"), "pay/b": ("b", "pay"), "10.0.0.3": ("10.0.0.3", "")}
    assert harness.url("pay/a") == "svc+http://10.0.0.1:8420"
    assert harness.ids == dict.fromkeys([SERVICE_ID, *services], False)
    assert harness.state(SERVICE_ID)[0] is Status.UP
    assert harness.node.health is Health.PARTIAL, "nothing that was found has been checked"
    harness.search(PAY_A._replace(url="https://10.0.0.9"))
    assert harness.url("pay/a") == "svc+https://10.0.0.9"


def test_what_is_found_no_longer_is_removed_and_what_is_new_is_added(harness: FleetHarness) -> None:
    harness.search(PAY_A, LONE)
    record(harness.node, "10.0.0.3", Verdict.ready())
    harness.search(PAY_B, LONE)
    assert harness.listed == ["10.0.0.3", "pay/b"]
    assert harness.state("10.0.0.3")[0] is Status.UP
    assert set(harness.ids) == {SERVICE_ID, "10.0.0.3", "pay/b"}


def test_a_failed_search_changes_nothing_and_is_not_a_success(harness: FleetHarness) -> None:
    harness.search(PAY_A)
    record(harness.node, "pay/a", Verdict.ready())
    harness.found = Verdict.failed("registry: gone", code=ReasonCode.REGISTRY_LOST)
    for _ in range(3):
        assert harness.check().outcome is Outcome.FAILED
    assert harness.listed == ["pay/a"]
    assert harness.state(SERVICE_ID) == (Status.DOWN, ReasonCode.REGISTRY_LOST)
    assert harness.node.health is Health.PARTIAL


def test_an_absent_replica_is_down_until_it_returns(harness: FleetHarness) -> None:
    harness.search(FoundReplica("pay", "a", unchecked=ABSENT))
    assert harness.state("pay/a") == (Status.DOWN, ABSENT.code)
    harness.search(PAY_A)
    assert harness.state("pay/a") == (Status.INITIALIZING, ReasonCode.NO_EVIDENCE)
    assert harness.url("pay/a") == "svc+http://10.0.0.1:8420"


def test_a_replica_that_leaves_the_registry_is_checked_at_its_last_url(harness: FleetHarness) -> None:
    harness.search(PAY_A)
    record(harness.node, "pay/a", Verdict.ready())
    harness.search(FoundReplica("pay", "a", unchecked=ABSENT))
    assert harness.url("pay/a") == "svc+http://10.0.0.1:8420"
    assert harness.state("pay/a")[0] is Status.UP
    harness.search(LONE)  # it was forgotten
    assert harness.listed == ["10.0.0.3"]


def test_an_id_that_another_service_has_is_reported_and_left_alone(harness: FleetHarness) -> None:
    harness.node.register("pay/a", name="mine").up()
    verdict = harness.search(PAY_A, PAY_B)
    assert verdict.outcome is Outcome.NOT_READY
    assert "pay/a" in verdict.reason
    assert harness.listed == ["pay/a", "pay/b"]
    assert harness.url("pay/a") is None
    harness.search(PAY_B)
    assert harness.listed == ["pay/a", "pay/b"]


def test_an_id_that_is_too_long_is_reported_and_a_url_that_cannot_be_checked_is_initializing(
    harness: FleetHarness,
) -> None:
    wrong = PAY_B._replace(url="http://10.0.0.1:8420/svc/node/services/x")
    assert harness.search(PAY_A._replace(node="n" * 256), wrong).outcome is Outcome.NOT_READY
    assert harness.listed == ["pay/b"]
    assert harness.state("pay/b") == (Status.INITIALIZING, ReasonCode.NO_EVIDENCE)


def test_new_options_apply_to_what_was_found(harness: FleetHarness) -> None:
    harness.search(PAY_A, FoundReplica("pay", "b", unchecked=ABSENT))
    record(harness.node, "pay/a", Verdict.ready())
    harness.configure(interval="30s", impact="critical", probe={"bearer": "token-of-the-fleet"})
    config = harness.node.probe_config("pay/a")
    assert config is not None
    assert config.schedule.interval_s == 30.0
    assert config.probe.bearer == "token-of-the-fleet"  # type: ignore[attr-defined]
    assert {service.impact for service, _ in harness.node if service.id != SERVICE_ID} == {Impact.CRITICAL}
    assert harness.node.health is Health.UNHEALTHY


def test_all_services_of_the_fleet_are_removed_together_and_a_search_that_ends_later_adds_none(
    harness: FleetHarness,
) -> None:
    harness.node.register("mine").up()
    harness.search(PAY_A)
    harness.services.remove_all()
    assert harness.services.apply([PAY_A]) == []
    assert harness.listed == ["mine"]
    assert harness.ids == {}
    harness.configure()
    assert harness.ids == {SERVICE_ID: False}
