"""From the options of a service to its definition."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from svcnode.core.errors import InvalidValueError, OptionError, ProbeError, UnknownOptionError
from svcnode.core.model import REPORTED_POLICY, Impact, Tolerance, Verdict
from svcnode.definition import define
from svcnode.probes import KINDS, make_probe
from svcnode.probes.base import Probe
from svcnode.probes.http import HttpProbe
from svcnode.probes.sqlite import SqliteProbe


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


def test_an_empty_name_is_a_name() -> None:
    assert define("db-1", name="").service.name == ""


@pytest.mark.parametrize("impact", list(Impact))
def test_an_impact_may_be_text_or_a_member(impact: Impact) -> None:
    assert define("db-1", impact=impact.value).service.impact is define("db-1", impact=impact).service.impact is impact


def test_an_unknown_impact_is_rejected() -> None:
    with pytest.raises(InvalidValueError, match=r'"critical", "partial", "none".*"high"'):
        define("db-1", impact="high")


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
@pytest.mark.parametrize(
    "option", ["interval", "transition_interval", "timeout", "max_latency", "start_period", "stale_after"]
)
def test_an_option_about_checks_is_refused_without_a_probe(option: str, probe: Any) -> None:
    with pytest.raises(InvalidValueError, match=f"^{option} .*probe"):
        define("db-1", **(probe | {option: "5s"}))
    with pytest.raises(InvalidValueError, match=r"^fall .*probe"):
        define("db-1", **(probe | {"fall": 3}))


def test_probe_and_ttl_exclude_each_other() -> None:
    with pytest.raises(InvalidValueError, match=r"probe .*ttl"):
        define("db-1", probe=UnusedProbe(), ttl="30s")


@pytest.mark.parametrize("ttl", [0, "0s"])
def test_a_ttl_must_be_positive(ttl: str | float) -> None:
    with pytest.raises(InvalidValueError, match=r"^ttl "):
        define("db-1", ttl=ttl)


@pytest.mark.parametrize("options", [{"rise": "2"}, {"rise": [2]}, {"fall": 1.5}, {"fall": True}, {"fall": 0}])
def test_rise_and_fall_must_be_whole_numbers(options: dict[str, Any]) -> None:
    define("db-1", probe=UnusedProbe(), rise=1, fall=1)  # the cached policy is not used for True
    [(name, value)] = options.items()
    with pytest.raises(InvalidValueError, match=f"^{name} .*{re.escape(repr(value))}$"):
        define("db-1", probe=UnusedProbe(), **options)


@pytest.mark.parametrize("tolerance", ["10/10", "4/1001", "-1/10", "4 of 10", "4/", "", "Off", 4, None, True], ids=str)
def test_an_invalid_tolerance_is_refused(tolerance: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"^tolerance "):
        define("db-1", probe=UnusedProbe(), tolerance=tolerance)


@pytest.mark.parametrize(
    ("tolerance", "numbers"),
    [("4/10", (10, 4, 1, 50.0)), ("0/20", (20, 0, 0, 100.0)), ("8/16", (16, 8, 2, 80.0)), ("off", (0, 0, 0, 0.0))],
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


def test_a_service_without_a_probe_has_no_window() -> None:
    assert define("db-1").service.policy.window == 0
    assert define("db-1", ttl="10s").service.policy.window == 0


def test_a_service_with_a_probe_has_the_documented_defaults() -> None:
    definition = define("db-1", probe=UnusedProbe())
    policy = definition.service.policy
    assert definition.probe_config is not None
    assert (definition.probe_config.schedule.interval_s, definition.probe_config.schedule.timeout_s) == (10.0, 3.0)
    assert (policy.rise, policy.fall, policy.start_period_s) == (2, 3, 30.0)
    assert policy.stale_after_s == 3 * 10.0 + 3.0


def test_every_option_of_the_schedule_and_the_policy_is_used() -> None:
    definition = define(
        "db-1", probe=UnusedProbe(), interval="5s", timeout="500ms", rise=4, fall=5, start_period="2m", stale_after="1h"
    )
    policy = definition.service.policy
    assert definition.probe_config is not None
    assert (definition.probe_config.schedule.interval_s, definition.probe_config.schedule.timeout_s) == (5.0, 0.5)
    assert (policy.rise, policy.fall, policy.start_period_s, policy.stale_after_s) == (4, 5, 120.0, 3600.0)


def test_the_default_of_stale_after_follows_the_interval_and_the_timeout() -> None:
    assert define("db-1", probe=UnusedProbe(), interval=2, timeout=1).service.policy.stale_after_s == 7.0


@pytest.mark.parametrize("stale_after", ["0s", "4s", "10s", 10])
def test_stale_after_must_be_longer_than_the_interval(stale_after: str | float) -> None:
    with pytest.raises(InvalidValueError, match=r'^stale_after .*"33s"'):
        define("db-1", probe=UnusedProbe(), interval="10s", stale_after=stale_after)


def test_stale_after_is_limited() -> None:
    with pytest.raises(InvalidValueError, match=r"^stale_after \(36500 days\)"):
        define("db-1", probe=UnusedProbe(), stale_after="36500d")


def test_stale_after_may_be_slightly_longer_than_the_interval() -> None:
    assert define("db-1", probe=UnusedProbe(), interval="10s", stale_after="10.1s").service.policy.stale_after_s == 10.1


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("intervall", "interval"),
        ("time_out", "timeout"),
        ("tolerence", "tolerance"),
        ("stale-after", "stale_after"),
        ("prob", "probe"),
        ("impacts", "impact"),
        ("descripton", "description"),
    ],
)
@pytest.mark.parametrize("probe", [None, UnusedProbe()], ids=["reported", "probed"])
def test_an_unknown_option_is_refused_with_the_right_one(probe: Probe | None, name: str, right: str) -> None:
    with pytest.raises(UnknownOptionError, match=f'"{name}".*"{right}"') as caught:
        define("db-1", probe=probe, **{name: "5s"})  # type: ignore[arg-type]
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, InvalidValueError)


def test_an_unknown_option_like_no_other_is_refused_with_all_of_them() -> None:
    with pytest.raises(UnknownOptionError, match=r'"colour".*interval.*ttl'):
        define("db-1", colour="red")  # type: ignore[call-arg]


def test_the_default_timeout_of_a_short_interval_is_half_of_it() -> None:
    probe_config = define("db-1", probe=UnusedProbe(), interval="1s").probe_config
    assert probe_config is not None
    assert probe_config.schedule.timeout_s == 0.5


def test_a_timeout_must_be_below_the_interval() -> None:
    with pytest.raises(InvalidValueError, match="timeout"):
        define("db-1", probe=UnusedProbe(), interval="1s", timeout="1s")


def test_checks_may_be_more_frequent_while_a_change_is_pending() -> None:
    probe_config = define("db-1", probe=UnusedProbe(), interval="10s", transition_interval="500ms").probe_config
    assert probe_config is not None
    assert probe_config.schedule.wait_s(is_change_pending=True) == 0.5
    assert probe_config.schedule.wait_s(is_change_pending=False) == 10.0


def test_by_default_checks_are_five_times_as_frequent_while_a_change_is_pending() -> None:
    probe_config = define("db-1", probe=UnusedProbe(), interval="20s").probe_config
    assert probe_config is not None
    assert probe_config.schedule.wait_s(is_change_pending=True) == 4.0


def test_a_transition_interval_is_at_most_the_interval() -> None:
    with pytest.raises(InvalidValueError, match=r"transition_interval \(11 s\)"):
        define("db-1", probe=UnusedProbe(), interval="10s", transition_interval="11s")


@pytest.mark.parametrize(("max_latency", "seconds"), [("250ms", 0.25), (2, 2.0), (None, None)])
def test_max_latency_is_part_of_the_probe_configuration(max_latency: str | float | None, seconds: float | None) -> None:
    probe_config = define("db-1", probe=UnusedProbe(), max_latency=max_latency).probe_config
    assert probe_config is not None
    assert probe_config.max_latency_s == seconds


@pytest.mark.parametrize("max_latency", [0, "0s", "3s", "1m"])
def test_max_latency_must_be_positive_and_below_the_timeout(max_latency: str | float) -> None:
    with pytest.raises(InvalidValueError, match=r"max_latency"):
        define("db-1", probe=UnusedProbe(), max_latency=max_latency)


def test_equal_options_make_equal_definitions() -> None:
    assert define("db-1", probe=UnusedProbe(), interval="5s") == define("db-1", probe=UnusedProbe(), interval=5)
    assert define("db-1", probe=UnusedProbe("elsewhere")) != define("db-1", probe=UnusedProbe())


# ---- probes by URL


def test_a_probe_may_be_a_url() -> None:
    probe_config = define("db-1", probe="sqlite:/var/lib/ledger.db").probe_config
    assert probe_config is not None
    assert probe_config.probe == SqliteProbe.for_path(Path("/var/lib/ledger.db"))


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


def test_a_table_without_options_equals_its_url() -> None:
    assert define("api", probe={"url": "tcp://127.0.0.1:5432"}) == define("api", probe="tcp://127.0.0.1:5432")


def test_the_table_of_the_caller_is_not_changed() -> None:
    table = {"url": "http://127.0.0.1:8080", "status": "2xx"}
    define("api", probe=table)
    assert table == {"url": "http://127.0.0.1:8080", "status": "2xx"}


def test_an_unknown_option_is_rejected_with_the_closest_one() -> None:
    with pytest.raises(OptionError, match="starting_status"):
        define("api", probe={"url": "http://127.0.0.1:8080", "starting_statu": 503})


def test_a_table_without_a_url_is_rejected() -> None:
    with pytest.raises(ProbeError, match="url"):
        define("api", probe={"status": 200})


# ---- heartbeat and exec


@pytest.mark.parametrize("probe", ["heartbeat:30s", {"url": "heartbeat:", "ttl": "30s"}])
def test_a_heartbeat_probe_is_a_ttl(probe: str | dict[str, str]) -> None:
    assert define("worker", probe=probe) == define("worker", ttl="30s")


def test_a_heartbeat_is_the_same_as_a_ttl() -> None:
    assert define("worker", probe="heartbeat:30s") == define("worker", ttl="30s")


def test_a_heartbeat_and_a_ttl_exclude_each_other() -> None:
    with pytest.raises(InvalidValueError, match=r"probe .*ttl"):
        define("worker", probe="heartbeat:30s", ttl="30s")


@pytest.mark.parametrize("probe", ["exec:/bin/true", {"url": "exec:", "argv": ["/bin/true"]}])
def test_an_exec_probe_needs_permission(probe: str | dict[str, object]) -> None:
    with pytest.raises(ProbeError, match="allow_exec"):
        define("db-1", probe=probe)


def test_an_exec_probe_with_permission_is_accepted() -> None:
    probe = make_probe("exec:/bin/true", allowed={"allow_exec"})
    probe_config = define("db-1", probe=probe).probe_config
    assert probe_config is not None
    assert probe_config.probe is probe


# ---- every kind

URLS = {
    "disk": "disk:/somewhere",
    "exec": "exec:true",
    "file": "file:/somewhere",
    "heartbeat": "heartbeat:5s",
    "mariadb": "mariadb://me:pw@127.0.0.1:1/ledger",
    "mysql": "mysql://me:pw@127.0.0.1:1/ledger",
    "redis+sentinel": "redis+sentinel://127.0.0.1:1/mymaster",
    "sqlite": "sqlite:/somewhere",
}
OPTIONS = {"jsonrpc": {"method": "ping"}}


@pytest.mark.parametrize("scheme", KINDS)
def test_every_kind_in_the_table_can_be_loaded(scheme: str) -> None:
    table = {"url": URLS.get(scheme, f"{scheme}://127.0.0.1:1"), **OPTIONS.get(scheme.partition("+")[0], {})}
    assert isinstance(make_probe(table, allowed={"allow_exec"}), Probe)


def test_a_misspelled_scheme_is_rejected_with_the_closest_one() -> None:
    with pytest.raises(ProbeError, match=r'"sqlit".*"sqlite"\?'):
        define("db-1", probe="sqlit:/var/lib/ledger.db")


def test_an_unknown_scheme_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(ProbeError, match=r'"nothing".*, sqlite, '):
        define("db-1", probe="nothing://example.org")


def test_text_that_is_not_a_url_is_rejected_with_an_example() -> None:
    with pytest.raises(ProbeError, match="http:"):
        define("db-1", probe="ledger")


def test_an_object_that_is_not_a_probe_is_rejected() -> None:
    with pytest.raises(InvalidValueError, match=r"svcnode\.Probe"):
        define("db-1", probe=5)  # type: ignore[arg-type]


def test_an_interval_is_at_most_one_day() -> None:
    assert define("db-1", probe=UnusedProbe(), interval="1d").probe_config is not None
    with pytest.raises(InvalidValueError, match="interval"):
        define("db-1", probe=UnusedProbe(), interval="25h")
