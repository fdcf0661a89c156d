"""From the options of a service to its definition."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from svcnode.core.errors import InvalidValueError, OptionError, UnknownOptionError
from svcnode.core.model import REPORTED_POLICY, Impact, Tolerance, Verdict
from svcnode.node.definition import define
from svcnode.probes.base import Probe
from svcnode.probes.http import HttpProbe


@dataclass(frozen=True)
class UnusedProbe(Probe):
    target: str = "somewhere"

    async def check(self) -> Verdict:
        raise AssertionError("these tests run no checks")


# ---- the service


def test_an_id_is_enough() -> None:
    service = define("db-1").service
    assert (service.id, service.name, service.description, service.group) == ("db-1", "db-1", "", "")
    assert service.impact is Impact.PARTIAL


def test_an_impact_may_be_text_or_a_member() -> None:
    service = define("db-1", impact="critical", maintenance_impact=Impact.NONE, name="").service
    assert (service.impact, service.maintenance_impact, service.name) == (Impact.CRITICAL, Impact.NONE, "")
    with pytest.raises(InvalidValueError, match=r'^impact .*"critical", "partial", "none".*"high"'):
        define("db-1", impact="high")


def test_a_service_may_depend_on_others_but_not_on_itself() -> None:
    assert define("api", depends_on=["ledger", "storage", "ledger"]).service.depends_on == ("ledger", "storage")
    for wrong in ("ledger", ["api"], [""], [5]):
        with pytest.raises(InvalidValueError, match="depend"):
            define("api", depends_on=wrong)  # type: ignore[arg-type]


def test_a_service_has_a_few_short_tags() -> None:
    assert define("api", tags=["chain", "eu", "chain"]).service.tags == ("chain", "eu")
    for wrong in ("chain", [""], ["a b"], ["a,b"], ["x" * 65], ["a\x00"], [5], [str(number) for number in range(11)]):
        with pytest.raises(InvalidValueError, match="tag"):
            define("api", tags=wrong)  # type: ignore[arg-type]


# ---- policy and schedule


def test_without_a_probe_a_report_takes_effect_at_once_and_never_expires() -> None:
    definition = define("db-1")
    assert definition.probe_config is None
    assert definition.service.policy == REPORTED_POLICY
    assert (REPORTED_POLICY.rise, REPORTED_POLICY.fall, REPORTED_POLICY.start_period_s) == (1, 1, 0.0)
    assert (REPORTED_POLICY.stale_after_s, REPORTED_POLICY.ttl_s) == (None, None)


def test_a_ttl_limits_how_long_a_report_is_valid() -> None:
    definition = define("db-1", ttl="30s")
    assert definition.probe_config is None
    assert (definition.service.policy.ttl_s, definition.service.policy.stale_after_s) == (30.0, None)
    assert (definition.service.policy.rise, definition.service.policy.fall) == (1, 1)


@pytest.mark.parametrize(
    "probe", [{}, {"ttl": "30s"}, {"probe": "heartbeat:30s"}], ids=["reported", "ttl", "heartbeat"]
)
def test_an_option_about_checks_is_refused_without_a_probe(probe: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"^fall .*probe"):
        define("db-1", **(probe | {"fall": 3}))


def test_probe_and_ttl_exclude_each_other() -> None:
    with pytest.raises(InvalidValueError, match=r"probe .*ttl"):
        define("db-1", probe=UnusedProbe(), ttl="30s")


@pytest.mark.parametrize("options", [{"rise": [2]}, {"rise": True}, {"fall": True}, {"fall": 0}])
def test_rise_and_fall_must_be_whole_numbers(options: dict[str, Any]) -> None:
    define("db-1", probe=UnusedProbe(), rise=1, fall=1)  # the cached policy is not used for True
    [(name, value)] = options.items()
    with pytest.raises(InvalidValueError, match=f"^{name} .*{re.escape(repr(value))}$"):
        define("db-1", probe=UnusedProbe(), **options)


@pytest.mark.parametrize("tolerance", ["10/10", "4/1001", "-1/10", "4/", "Off", 4, None], ids=str)
def test_an_invalid_tolerance_is_refused(tolerance: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"^tolerance "):
        define("db-1", probe=UnusedProbe(), tolerance=tolerance)


@pytest.mark.parametrize(
    ("tolerance", "numbers"),
    [("4/10", (10, 4, 1, 50.0)), ("7/1000", (1000, 7, 1, 5000.0)), ("9/10", (10, 9, 2, 50.0)), ("off", (0, 0, 0, 0.0))],
)
def test_the_tolerance_is_part_of_the_policy(tolerance: str, numbers: tuple[float, ...]) -> None:
    policy = define("db-1", probe=UnusedProbe(), interval="5s", tolerance=tolerance).service.policy
    assert [policy.window, policy.max_failures, policy.recovery_failures, policy.window_s] == list(numbers)
    assert str(Tolerance.parse(tolerance)) == tolerance
    assert define("db-1", probe=UnusedProbe()) == define("db-1", probe=UnusedProbe(), tolerance="4/10")


@pytest.mark.parametrize("name", ["window", "max_failures", "recovery_failures"])
def test_a_retired_option_names_the_new_one(name: str) -> None:
    with pytest.raises(UnknownOptionError, match="tolerance"):
        define("db-1", probe=UnusedProbe(), **dict[str, Any]({name: 1}))


@pytest.mark.parametrize(("interval", "timeout_s"), [("1s", 0.5), ("5.9s", 2.95), ("6.1s", 3.0)])
def test_the_default_timeout_is_three_seconds_or_half_of_a_short_interval(interval: str, timeout_s: float) -> None:
    probe_config = define("db-1", probe=UnusedProbe(), interval=interval).probe_config
    assert probe_config is not None
    assert probe_config.schedule.timeout_s == pytest.approx(timeout_s)


def test_a_service_with_a_probe_has_the_documented_defaults() -> None:
    definition = define("db-1", probe=UnusedProbe())
    policy = definition.service.policy
    assert definition.probe_config is not None
    assert (definition.probe_config.schedule.interval_s, definition.probe_config.schedule.timeout_s) == (10.0, 3.0)
    assert (policy.rise, policy.fall, policy.start_period_s) == (2, 3, 30.0)
    assert policy.stale_after_s == 3 * 10.0 + 3.0


def test_every_option_of_the_schedule_and_the_policy_is_used() -> None:
    definition = define(
        "db-1",
        probe=UnusedProbe(),
        interval="5s",
        transition_interval="300ms",
        timeout="500ms",
        rise=4,
        fall=5,
        start_period="2m",
        stale_after="1h",
    )
    policy = definition.service.policy
    assert definition.probe_config is not None
    schedule = definition.probe_config.schedule
    assert (schedule.interval_s, schedule.transition_interval_s, schedule.timeout_s) == (5.0, 0.3, 0.5)
    assert (policy.rise, policy.fall, policy.start_period_s, policy.stale_after_s) == (4, 5, 120.0, 3600.0)


@pytest.mark.parametrize("option", ["require", "starting"])
def test_a_value_can_only_advance_in_a_time_longer_than_the_interval(option: str) -> None:
    def probe(within: str) -> dict[str, Any]:
        return {"url": "http://127.0.0.1/", option: ["/peers > 0", f"/height advances within {within}"]}

    with pytest.raises(OptionError, match=rf"^{option}: .*10s.* 10 s.*20s or more.*interval") as caught:
        define("db-1", probe=probe("10s"), interval="10s")
    assert caught.value.option == option
    assert define("db-1", probe=probe("10s"), interval="9s").probe_config is not None
    assert define("db-1", probe=probe("11s"), interval="10s").probe_config is not None


def test_stale_after_must_be_longer_than_the_interval() -> None:
    with pytest.raises(InvalidValueError, match=r'^stale_after .*"33s"'):
        define("db-1", probe=UnusedProbe(), interval="10s", stale_after="10s")
    assert define("db-1", probe=UnusedProbe(), interval="10s", stale_after="10.1s").service.policy.stale_after_s == 10.1


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("intervall", "interval"),
        ("prob", "probe"),
        ("colour", None),
    ],
)
def test_an_unknown_option_is_refused_with_the_right_one_or_all(name: str, right: str | None) -> None:
    with pytest.raises(UnknownOptionError, match=f'"{name}".*"{right}"' if right else "interval.*ttl") as caught:
        define("db-1", **{name: "5s"})  # type: ignore[arg-type]
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, InvalidValueError)


@pytest.mark.parametrize(("max_latency", "seconds"), [("2.9s", 2.9), (None, None)])
def test_max_latency_is_part_of_the_probe_configuration(max_latency: str | float | None, seconds: float | None) -> None:
    probe_config = define("db-1", probe=UnusedProbe(), max_latency=max_latency).probe_config
    assert probe_config is not None
    assert probe_config.max_latency_s == seconds


@pytest.mark.parametrize("max_latency", [0, "3s"])
def test_max_latency_must_be_positive_and_below_the_timeout(max_latency: str | float) -> None:
    with pytest.raises(InvalidValueError, match=r"max_latency"):
        define("db-1", probe=UnusedProbe(), max_latency=max_latency)


def test_equal_options_make_equal_definitions() -> None:
    assert define("db-1", probe=UnusedProbe(), interval="5s") == define("db-1", probe=UnusedProbe(), interval=5)
    assert define("db-1", probe=UnusedProbe("elsewhere")) != define("db-1", probe=UnusedProbe())


# ---- probes by URL


def test_a_probe_may_be_a_table_with_a_url_and_options() -> None:
    probe_config = define(
        "api", probe={"url": "http://127.0.0.1:8080/health", "status": [200, "204"], "method": "HEAD"}
    ).probe_config
    assert probe_config is not None
    assert isinstance(probe_config.probe, HttpProbe)
    assert (probe_config.probe.url.path, probe_config.probe.method, probe_config.probe.status) == (
        "/health",
        "HEAD",
        frozenset({200, 204}),
    )


# ---- heartbeat and exec


@pytest.mark.parametrize("probe", ["heartbeat:30s", {"url": "heartbeat:", "ttl": "30s"}])
def test_a_heartbeat_probe_is_a_ttl(probe: str | dict[str, str]) -> None:
    assert define("worker", probe=probe) == define("worker", ttl="30s")


def test_an_object_that_is_not_a_probe_is_rejected() -> None:
    with pytest.raises(InvalidValueError, match=r"svcnode\.Probe"):
        define("db-1", probe=5)  # type: ignore[arg-type]
