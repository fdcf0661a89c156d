"""Invalid values are rejected when they are created."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import (
    MAX_ID_CHARS,
    MAX_INTERVAL_S,
    SPEC_VERSION,
    Health,
    Identity,
    Impact,
    Maintenance,
    Outcome,
    Policy,
    Schedule,
    Service,
    Status,
    Verdict,
    parse_slo,
    slo_text,
    validate_service_id,
    validate_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_statuses_health_and_impacts_have_the_values_of_the_interface_and_the_configuration() -> None:
    assert SPEC_VERSION == "v0.0.1"
    assert {status.value for status in Status} == {"Up", "Down", "Initializing"}
    assert {impact.value for impact in Impact} == {"critical", "partial", "none"}
    assert [(health.value, health.label, health.text) for health in Health] == [
        (200, "healthy", "healthy"),
        (206, "partial", "partially healthy"),
        (503, "unhealthy", "unhealthy"),
    ]


@pytest.mark.parametrize(
    ("make", "outcome", "code"),
    [
        (Verdict.ready, Outcome.READY, ReasonCode.OK),
        (Verdict.not_ready, Outcome.NOT_READY, ReasonCode.OTHER),
        (Verdict.failed, Outcome.FAILED, ReasonCode.OTHER),
        (Verdict.unknown, Outcome.UNKNOWN, ReasonCode.OTHER),
    ],
)
def test_a_verdict_has_an_outcome_a_reason_and_a_code(
    make: Callable[..., Verdict], outcome: Outcome, code: ReasonCode
) -> None:
    assert make("why") == (outcome, "why", code)
    assert make("why", code="x_mine") == (outcome, "why", "x_mine")


printable = st.characters(exclude_categories=["Cc", "Cs"])


@given(st.text(printable, min_size=1, max_size=MAX_ID_CHARS).filter(lambda text: text not in (".", "..")))
def test_an_id_may_contain_any_character_that_is_not_a_control_character(service_id: str) -> None:
    validate_service_id(service_id)


@pytest.mark.parametrize(
    ("service_id", "problem"),
    [
        ("", "empty"),
        (".", r'"\."'),
        ("..", r'"\.\."'),
        ("é" * 257, r"256 .*257"),
        ("a\x9fb", "control"),
        (5, "not int"),
    ],
)
def test_any_other_id_is_rejected(service_id: Any, problem: str) -> None:
    with pytest.raises(InvalidValueError, match=problem):
        validate_service_id(service_id)
    validate_service_id("é" * 256)


@pytest.mark.parametrize("field", ["name", "description", "group"])
@given(char=st.characters(categories=["Cc", "Cs"], exclude_characters="\n\t"))
def test_texts_must_not_contain_control_characters_or_surrogates(field: str, char: str) -> None:
    fields: dict[str, Any] = {"name": "Ledger", "description": "PostgreSQL", field: f"a{char}b"}
    with pytest.raises(InvalidValueError, match=f"{field}.*'db-1'"):
        Service(id="db-1", **fields)


@pytest.mark.parametrize(
    ("runbook", "problem"),
    [
        ("javascript:alert(1)", "http"),
        ("wiki/db-1", "http"),
        (7, "http"),
        ("https://", "host"),
        ("https://wiki.example.com:99999/", "port"),
        ("https://me:pw@wiki.example.com/", "password"),
        ("https://wiki.example.com/db 1", "spaces"),
        ("https://wiki.example.com/" + "a" * 500, "500"),
    ],
)
def test_a_runbook_is_a_link_to_a_web_page(runbook: Any, problem: str) -> None:
    with pytest.raises(InvalidValueError, match=f"runbook.*'db-1'.*{problem}"):
        Service(id="db-1", name="", description="", runbook=runbook)
    link = "https://wiki.example.com:8443/run?id=db-1#start"
    assert Service(id="db-1", name="", description="", runbook=link).runbook == link


def test_only_a_description_may_have_several_lines_and_all_texts_may_be_empty() -> None:
    service = Service(id="db-1", name="", description="line one\n\tline two")
    assert (service.name, service.description, service.group) == ("", "line one\n\tline two", "")
    for char in "\n\t":
        with pytest.raises(InvalidValueError, match=r"name.*'db-1'"):
            Service(id="db-1", name=f"a{char}b", description="")


@pytest.mark.parametrize("version", ["", "v", "v1.", "v.1", "v1..2", "V1.0", "v1.0-rc1", " v1.0", "v1.0\n", "v\u0661"])
def test_a_version_is_a_v_followed_by_dotted_numbers(version: str) -> None:
    for valid in ("v0", "v1.4.2", "v2024.11.1.7", "v00.01"):
        validate_version("node version", valid)
    with pytest.raises(InvalidValueError, match="node version") as caught:
        validate_version("node version", version)
    assert "?" not in str(caught.value)
    with pytest.raises(InvalidValueError, match=r'"v1\.4\.2"\?'):
        validate_version("node version", "1.4.2")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"node_name": ""}, "node name"),
        ({"node_name": "two\nlines"}, "node name"),
        ({"node_version": "1.0"}, "node version"),
        ({"spec_version": "0.0.1"}, "spec version"),
    ],
)
def test_an_identity_validates_its_name_and_both_versions(fields: dict[str, str], problem: str) -> None:
    valid = {"node_name": "validator-7", "spec_version": SPEC_VERSION, "node_version": "v1.4.2"}
    with pytest.raises(InvalidValueError, match=problem):
        Identity(**(valid | fields))


@pytest.mark.parametrize("name", ["rise", "fall"])
@pytest.mark.parametrize("value", [0, 1001, 2.0, True, "2", None])
def test_rise_and_fall_are_whole_numbers_from_1_to_1000(name: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=f"^{name} .*{re.escape(repr(value))}$"):
        Policy(**{name: value})
    Policy(**dict[str, Any]({name: 1000}))


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_stale_after_and_ttl_are_positive_and_exclude_each_other(limit_s: float) -> None:
    with pytest.raises(InvalidValueError, match=r"stale_after .*ttl"):
        Policy(stale_after_s=30.0, ttl_s=30.0)
    with pytest.raises(InvalidValueError, match=r"^stale_after "):
        Policy(stale_after_s=limit_s)
    with pytest.raises(InvalidValueError, match=r"^ttl "):
        Policy(ttl_s=limit_s)


def test_stale_after_is_at_most_7_days_which_is_enough_for_the_longest_interval() -> None:
    Policy(stale_after_s=7 * 86_400.0)
    with pytest.raises(InvalidValueError, match=r"^stale_after "):
        Policy(stale_after_s=7 * 86_400.0 + 0.1)
    longest = Schedule(interval_s=MAX_INTERVAL_S, timeout_s=MAX_INTERVAL_S - 1)
    Policy(stale_after_s=longest.default_stale_after_s)


def test_the_defaults_are_those_of_the_documentation() -> None:
    policy, schedule = Policy(), Schedule()
    assert (policy.rise, policy.fall, policy.start_period_s) == (2, 3, 30.0)
    assert schedule.default_stale_after_s == 3 * schedule.interval_s + schedule.timeout_s


@pytest.mark.parametrize(
    ("invalid", "values"),
    [
        ("interval", [{"interval_s": MAX_INTERVAL_S + 0.1}]),
        (
            "timeout",
            [{"timeout_s": value} for value in (10.0, 11.0, 0.0, -1.0)] + [{"interval_s": 0.0, "timeout_s": 0.0}],
        ),
        ("transition_interval", [{"transition_interval_s": value} for value in (0.0, -1.0, 10.1, float("nan"))]),
    ],
)
def test_a_schedule_has_positive_times_within_its_interval_of_at_most_a_day(
    invalid: str, values: list[dict[str, float]]
) -> None:
    Schedule(interval_s=MAX_INTERVAL_S)
    for value in values:
        with pytest.raises(InvalidValueError, match=invalid):
            Schedule(**{"interval_s": 10.0} | value)


@pytest.mark.parametrize(
    ("transition_interval_s", "pending_s"),
    [(None, 2.0), (0.001, 0.001), (10.0, 10.0)],
    ids=["default", "least", "most"],
)
def test_while_a_change_is_pending_the_wait_is_the_transition_interval(
    transition_interval_s: float | None, pending_s: float
) -> None:
    schedule = Schedule(interval_s=10.0, timeout_s=3.0, transition_interval_s=transition_interval_s)
    assert (schedule.wait_s(is_change_pending=False), schedule.wait_s(is_change_pending=True)) == (10.0, pending_s)


@pytest.mark.parametrize("impact", Impact)
@pytest.mark.parametrize("maintenance_impact", [None, *Impact])
def test_maintenance_lowers_the_impact_and_never_raises_it(impact: Impact, maintenance_impact: Impact | None) -> None:
    service = Service(id="db", name="db", description="", impact=impact, maintenance_impact=maintenance_impact)
    severity = [Impact.NONE, Impact.PARTIAL, Impact.CRITICAL].index
    lowest = min((one for one in (impact, maintenance_impact) if one is not None), key=severity)
    assert service.during_maintenance().impact is lowest


def test_the_text_of_a_maintenance_says_until_when_who_and_why() -> None:
    assert Maintenance("control", 0.0).text("noon") == "until noon"
    assert Maintenance("control", 0.0, "alice", "new disk").text("noon") == "until noon, by alice: new disk"


@pytest.mark.parametrize(("text", "percent"), [("99.9%", 99.9), ("99.9999%", 99.9999), ("5%", 5.0), ("off", None)])
def test_an_objective_is_a_percentage_or_off_and_is_shown_as_written(text: str, percent: float | None) -> None:
    assert parse_slo(text) == percent
    assert slo_text(percent) == (None if text == "off" else text)


@pytest.mark.parametrize(
    "value", ["100%", "0%", "0.0%", "99.9", "99.99999%", "-1%", "1e1%", " 99%", "", "nan%", 99.9, None]
)
def test_any_other_objective_is_rejected(value: object) -> None:
    with pytest.raises(InvalidValueError, match="percentage"):
        parse_slo(value)
