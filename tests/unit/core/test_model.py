"""Invalid values are rejected when they are created."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from typing import Any

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
    validate_service_id,
    validate_text,
    validate_version,
)


def make_service(service_id: str = "db-1", name: str = "Ledger", description: str = "PostgreSQL") -> Service:
    return Service(id=service_id, name=name, description=description)


def make_identity(name: str = "validator-7", version: str = "v1.4.2", spec_version: str = SPEC_VERSION) -> Identity:
    return Identity(node_name=name, spec_version=spec_version, node_version=version)


# ---- the values that clients see


def test_the_interface_is_version_0_0_1() -> None:
    assert SPEC_VERSION == "v0.0.1"


def test_the_statuses_are_those_of_the_interface() -> None:
    assert {status.value for status in Status} == {"Up", "Down", "Initializing"}


def test_health_is_one_of_three_codes() -> None:
    assert sorted(Health) == [200, 206, 503]


def test_a_health_has_one_word_and_a_text_for_sentences() -> None:
    assert [health.label for health in Health] == ["healthy", "partial", "unhealthy"]
    assert [health.text for health in Health] == ["healthy", "partially healthy", "unhealthy"]


def test_the_impacts_are_those_of_the_configuration() -> None:
    assert {impact.value for impact in Impact} == {"critical", "partial", "none"}


@pytest.mark.parametrize(
    ("verdict", "outcome", "reason", "code"),
    [
        (Verdict.ready(), Outcome.READY, "", ReasonCode.OK),
        (Verdict.ready("up", code="x_mine"), Outcome.READY, "up", "x_mine"),
        (Verdict.not_ready("syncing"), Outcome.NOT_READY, "syncing", ReasonCode.OTHER),
        (Verdict.not_ready("syncing", code=ReasonCode.SYNCING), Outcome.NOT_READY, "syncing", ReasonCode.SYNCING),
        (Verdict.failed("refused"), Outcome.FAILED, "refused", ReasonCode.OTHER),
        (Verdict.failed("late", code=ReasonCode.TIMEOUT), Outcome.FAILED, "late", ReasonCode.TIMEOUT),
        (Verdict.unknown("driver"), Outcome.UNKNOWN, "driver", ReasonCode.OTHER),
        (Verdict.unknown("dns", code=ReasonCode.RESOLVER_FAILED), Outcome.UNKNOWN, "dns", ReasonCode.RESOLVER_FAILED),
    ],
)
def test_a_verdict_has_an_outcome_a_reason_and_a_code(
    verdict: Verdict, outcome: Outcome, reason: str, code: str
) -> None:
    assert (verdict.outcome, verdict.reason, verdict.code) == (outcome, reason, code)


def test_values_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        make_service().name = "another"  # type: ignore[misc]  # a frozen dataclass


# ---- ids

printable = st.characters(exclude_categories=["Cc", "Cs"])


@given(st.text(printable, min_size=1, max_size=MAX_ID_CHARS).filter(lambda text: text not in (".", "..")))
def test_an_id_may_contain_any_character_that_is_not_a_control_character(service_id: str) -> None:
    assert make_service(service_id).id == service_id


@pytest.mark.parametrize(
    "service_id", ["a/b", "../..", "a b", "%2F", "?", "#", "Ünïcode", "数据库", "🙂", "\u2028", "...", ".a"]
)
def test_an_id_may_look_like_a_path_or_a_query(service_id: str) -> None:
    validate_service_id(service_id)


@pytest.mark.parametrize("service_id", [".", ".."])
def test_an_id_must_not_be_a_dot_segment(service_id: str) -> None:
    with pytest.raises(InvalidValueError, match=f'"{re.escape(service_id)}"'):
        validate_service_id(service_id)


def test_an_id_must_not_be_empty() -> None:
    with pytest.raises(InvalidValueError, match="empty"):
        validate_service_id("")


def test_an_id_has_at_most_256_characters() -> None:
    validate_service_id("é" * 256)
    with pytest.raises(InvalidValueError, match=r"256 .*257"):
        validate_service_id("é" * 257)


@given(st.characters(categories=["Cc", "Cs"]))
def test_an_id_must_not_contain_control_characters_or_surrogates(char: str) -> None:
    with pytest.raises(InvalidValueError, match="control characters"):
        validate_service_id(f"a{char}b")


# ---- texts and versions


@pytest.mark.parametrize("field", ["name", "description"])
def test_name_and_description_must_not_contain_surrogates(field: str) -> None:
    fields = {"name": "Ledger", "description": "PostgreSQL", field: "half a \ud83d smile"}
    with pytest.raises(InvalidValueError, match=f"{field}.*'db-1'"):
        make_service(**fields)


@given(st.characters(categories=["Cc", "Cs"]))
def test_a_name_must_not_contain_control_characters(char: str) -> None:
    with pytest.raises(InvalidValueError, match=r"name.*'db-1'"):
        make_service(name=f"a{char}b")


def test_a_description_may_have_several_lines() -> None:
    assert make_service(description="line one\n\tline two").description == "line one\n\tline two"


@given(st.characters(categories=["Cc", "Cs"], exclude_characters="\n\t"))
def test_a_description_must_not_contain_other_control_characters(char: str) -> None:
    with pytest.raises(InvalidValueError, match=r"description.*'db-1'"):
        make_service(description=f"a{char}b")


def test_name_and_description_may_be_empty() -> None:
    assert make_service(name="", description="").name == ""


def test_a_required_text_must_not_be_empty() -> None:
    with pytest.raises(InvalidValueError, match="motto"):
        validate_text("motto", "")


@pytest.mark.parametrize("version", ["v0", "v1.4.2", "v0.0.1", "v2024.11.1.7", "v00.01"])
def test_a_version_is_a_v_followed_by_dotted_numbers(version: str) -> None:
    validate_version("node version", version)


@pytest.mark.parametrize(
    "version", ["", "v", "v1.", "v.1", "v1..2", "V1.0", "v1.0-rc1", " v1.0", "v1.0\n", "v\u0661", "latest"]
)
def test_any_other_text_is_not_a_version(version: str) -> None:
    with pytest.raises(InvalidValueError, match="node version"):
        validate_version("node version", version)


def test_a_version_without_its_v_is_suggested_with_it() -> None:
    with pytest.raises(InvalidValueError, match=r'"v1\.4\.2"\?'):
        validate_version("node version", "1.4.2")


def test_for_another_text_no_version_is_suggested() -> None:
    with pytest.raises(InvalidValueError) as caught:
        validate_version("node version", "latest")
    assert "?" not in str(caught.value)


def test_the_name_of_an_identity_is_one_line() -> None:
    with pytest.raises(InvalidValueError, match="node name"):
        make_identity(name="")
    with pytest.raises(InvalidValueError, match="node name"):
        make_identity(name="two\nlines")


def test_an_identity_validates_both_versions() -> None:
    with pytest.raises(InvalidValueError, match="node version"):
        make_identity(version="1.0")
    with pytest.raises(InvalidValueError, match="spec version"):
        make_identity(spec_version="0.0.1")


# ---- policies and schedules


def test_an_interval_is_at_most_one_day() -> None:
    Schedule(interval_s=MAX_INTERVAL_S)
    with pytest.raises(InvalidValueError, match="interval"):
        Schedule(interval_s=MAX_INTERVAL_S + 0.1)


@pytest.mark.parametrize("name", ["rise", "fall"])
@pytest.mark.parametrize("value", [0, -1, 1001, 10**24, 1.5, 2.0, True, "2", None])
def test_rise_and_fall_are_whole_numbers_from_1_to_1000(name: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=f"^{name} .*{re.escape(repr(value))}$"):
        Policy(**{name: value})


def test_stale_after_and_ttl_exclude_each_other() -> None:
    with pytest.raises(InvalidValueError, match=r"stale_after .*ttl"):
        Policy(stale_after_s=30.0, ttl_s=30.0)


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_stale_after_and_ttl_must_be_positive(limit_s: float) -> None:
    with pytest.raises(InvalidValueError, match=r"^stale_after "):
        Policy(stale_after_s=limit_s)
    with pytest.raises(InvalidValueError, match=r"^ttl "):
        Policy(ttl_s=limit_s)


def test_stale_after_is_at_most_7_days() -> None:
    Policy(stale_after_s=7 * 86_400.0)
    for limit_s in (7 * 86_400.0 + 0.1, 36_500 * 86_400.0, float("inf")):
        with pytest.raises(InvalidValueError, match=r"^stale_after "):
            Policy(stale_after_s=limit_s)


def test_the_default_of_stale_after_is_valid_for_the_longest_interval() -> None:
    longest = Schedule(interval_s=MAX_INTERVAL_S, timeout_s=MAX_INTERVAL_S - 1)
    Policy(stale_after_s=longest.default_stale_after_s)


def test_the_defaults_are_those_of_the_documentation() -> None:
    policy, schedule = Policy(), Schedule()
    assert (policy.rise, policy.fall, policy.start_period_s) == (2, 3, 30.0)
    assert schedule.default_stale_after_s == 3 * schedule.interval_s + schedule.timeout_s


@pytest.mark.parametrize(("interval_s", "timeout_s"), [(5.0, 5.0), (5.0, 6.0), (5.0, 0.0), (5.0, -1.0), (0.0, 0.0)])
def test_a_timeout_must_be_positive_and_below_the_interval(interval_s: float, timeout_s: float) -> None:
    with pytest.raises(InvalidValueError, match="timeout"):
        Schedule(interval_s=interval_s, timeout_s=timeout_s)


@pytest.mark.parametrize("transition_interval_s", [0.0, -1.0, 10.1, float("nan"), float("inf")])
def test_a_transition_interval_must_be_positive_and_at_most_the_interval(
    transition_interval_s: float,
) -> None:
    with pytest.raises(InvalidValueError, match="transition_interval"):
        Schedule(interval_s=10.0, transition_interval_s=transition_interval_s)


@pytest.mark.parametrize("transition_interval_s", [0.001, 2.0, 10.0])
def test_a_transition_interval_may_be_shorter_than_the_timeout_and_as_long_as_the_interval(
    transition_interval_s: float,
) -> None:
    schedule = Schedule(interval_s=10.0, timeout_s=3.0, transition_interval_s=transition_interval_s)
    assert schedule.wait_s(is_change_pending=True) == transition_interval_s


intervals_s = st.floats(min_value=0.01, max_value=86400.0)
shares = st.floats(min_value=0.001, max_value=1.0)


@given(intervals_s, st.none() | shares)
def test_without_a_pending_change_the_wait_is_the_interval(interval_s: float, share: float | None) -> None:
    schedule = Schedule(
        interval_s=interval_s,
        timeout_s=interval_s / 2,
        transition_interval_s=None if share is None else interval_s * share,
    )
    assert schedule.wait_s(is_change_pending=False) == interval_s


@given(intervals_s)
def test_with_a_pending_change_the_wait_is_a_fifth_of_the_interval(interval_s: float) -> None:
    schedule = Schedule(interval_s=interval_s, timeout_s=interval_s / 2)
    assert schedule.wait_s(is_change_pending=True) == pytest.approx(interval_s / 5)


@given(intervals_s, shares)
def test_with_a_pending_change_the_wait_is_the_transition_interval(interval_s: float, share: float) -> None:
    schedule = Schedule(interval_s=interval_s, timeout_s=interval_s / 2, transition_interval_s=interval_s * share)
    assert schedule.wait_s(is_change_pending=True) == interval_s * share <= interval_s


# ---- maintenance


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
