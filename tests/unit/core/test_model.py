"""Values that can never be right are refused where they are made, in words that name the fault."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import (
    MAX_ID_CHARS,
    MAX_INTERVAL_S,
    SPEC_VERSION,
    Health,
    Identity,
    Impact,
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


def a_service(service_id: str = "db-1", name: str = "Ledger", description: str = "PostgreSQL") -> Service:
    return Service(id=service_id, name=name, description=description)


def an_identity(name: str = "validator-7", version: str = "v1.4.2", spec_version: str = SPEC_VERSION) -> Identity:
    return Identity(node_name=name, spec_version=spec_version, node_version=version)


# ---- the words that clients see


def test_the_interface_is_version_0_0_1() -> None:
    assert SPEC_VERSION == "v0.0.1"


def test_the_statuses_are_spelled_as_the_interface_spells_them() -> None:
    assert {status.value for status in Status} == {"Up", "Down", "Initializing"}


def test_health_is_one_of_three_codes() -> None:
    assert sorted(Health) == [200, 206, 503]


def test_impacts_are_spelled_as_people_write_them() -> None:
    assert {impact.value for impact in Impact} == {"critical", "partial", "none"}


@pytest.mark.parametrize(
    ("verdict", "outcome", "reason"),
    [
        (Verdict.ready(), Outcome.READY, ""),
        (Verdict.not_ready("syncing"), Outcome.NOT_READY, "syncing"),
        (Verdict.failed("refused"), Outcome.FAILED, "refused"),
        (Verdict.unknown("no driver"), Outcome.UNKNOWN, "no driver"),
    ],
)
def test_a_verdict_is_an_outcome_and_a_reason(verdict: Verdict, outcome: Outcome, reason: str) -> None:
    assert (verdict.outcome, verdict.reason) == (outcome, reason)


def test_values_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        a_service().name = "another"  # type: ignore[misc]  # that it is an error is what is tested


# ---- ids

printable = st.characters(exclude_categories=["Cc", "Cs"])


@given(st.text(printable, min_size=1, max_size=MAX_ID_CHARS).filter(lambda text: text not in (".", "..")))
def test_an_id_may_hold_any_character_that_is_no_control_character(service_id: str) -> None:
    assert a_service(service_id).id == service_id


@pytest.mark.parametrize(
    "service_id", ["a/b", "../..", "a b", "%2F", "?", "#", "Ünïcode", "数据库", "🙂", "\u2028", "...", ".a"]
)
def test_an_id_may_look_like_anything(service_id: str) -> None:
    validate_service_id(service_id)


@pytest.mark.parametrize("service_id", [".", ".."])
def test_an_id_is_no_dots_that_a_proxy_would_tidy_away(service_id: str) -> None:
    with pytest.raises(InvalidValueError, match=f'^a service id must not be "{re.escape(service_id)}": in a path'):
        validate_service_id(service_id)


def test_an_id_is_not_empty() -> None:
    with pytest.raises(InvalidValueError, match="must not be empty"):
        validate_service_id("")


def test_an_id_has_at_most_256_characters() -> None:
    validate_service_id("é" * 256)
    with pytest.raises(InvalidValueError, match="at most 256 characters, not 257"):
        validate_service_id("é" * 257)


@given(st.characters(categories=["Cc", "Cs"]))
def test_an_id_holds_no_control_characters_and_no_half_ones(char: str) -> None:
    with pytest.raises(InvalidValueError, match="control characters"):
        validate_service_id(f"a{char}b")


# ---- texts and versions


@pytest.mark.parametrize("field", ["name", "description"])
def test_name_and_description_must_be_text_that_json_can_carry(field: str) -> None:
    words = {"name": "Ledger", "description": "PostgreSQL", field: "half a \ud83d smile"}
    with pytest.raises(InvalidValueError, match=f"the {field} of service 'db-1' must not hold control characters"):
        a_service(**words)


@given(st.characters(categories=["Cc", "Cs"]))
def test_a_name_holds_no_control_characters(char: str) -> None:
    with pytest.raises(InvalidValueError, match=r"^the name of service 'db-1' must not hold control characters$"):
        a_service(name=f"a{char}b")


def test_a_description_may_have_several_lines() -> None:
    assert a_service(description="line one\n\tline two").description == "line one\n\tline two"


@given(st.characters(categories=["Cc", "Cs"], exclude_characters="\n\t"))
def test_a_description_holds_nothing_that_steers_a_terminal(char: str) -> None:
    with pytest.raises(InvalidValueError, match=r"^the description of service 'db-1' must not hold control characters"):
        a_service(description=f"a{char}b")


def test_name_and_description_may_be_empty() -> None:
    assert a_service(name="", description="").name == ""


def test_a_text_that_must_say_something_is_not_empty() -> None:
    with pytest.raises(InvalidValueError, match="motto must not be empty"):
        validate_text("motto", "")


@pytest.mark.parametrize("version", ["v0", "v1.4.2", "v0.0.1", "v2024.11.1.7", "v00.01"])
def test_a_version_is_a_v_followed_by_dotted_numbers(version: str) -> None:
    validate_version("node version", version)


@pytest.mark.parametrize(
    "version", ["", "v", "v1.", "v.1", "v1..2", "V1.0", "v1.0-rc1", " v1.0", "v1.0\n", "v\u0661", "latest"]
)
def test_anything_else_is_no_version(version: str) -> None:
    with pytest.raises(InvalidValueError, match='node version must be a "v" followed by dotted numbers'):
        validate_version("node version", version)


def test_a_version_that_lacks_only_its_v_is_offered_with_it() -> None:
    with pytest.raises(InvalidValueError, match=r'did you mean "v1\.4\.2"\?'):
        validate_version("node version", "1.4.2")


def test_a_version_that_lacks_more_is_offered_nothing() -> None:
    with pytest.raises(InvalidValueError) as caught:
        validate_version("node version", "latest")
    assert "did you mean" not in str(caught.value)


def test_an_identity_needs_a_name_in_one_line() -> None:
    with pytest.raises(InvalidValueError, match="node name must not be empty"):
        an_identity(name="")
    with pytest.raises(InvalidValueError, match="node name must not hold control characters"):
        an_identity(name="two\nlines")


def test_an_identity_checks_both_of_its_versions() -> None:
    with pytest.raises(InvalidValueError, match="node version"):
        an_identity(version="1.0")
    with pytest.raises(InvalidValueError, match="spec version"):
        an_identity(spec_version="0.0.1")


# ---- policies and schedules


@pytest.mark.parametrize("word", ["rise", "fall"])
@pytest.mark.parametrize("number", [0, -1, 1001, 10**24, 1.5, 2.0, True, "2", None])
def test_rise_and_fall_are_numbers_that_somebody_may_live_to_see(word: str, number: Any) -> None:
    said = f"{word} counts looks in a row, so it is a whole number from 1 to 1000, not {number!r}"
    with pytest.raises(InvalidValueError) as refused:
        Policy(**{word: number})
    assert str(refused.value) == said


def test_a_policy_has_a_stale_after_or_a_ttl_but_not_both() -> None:
    with pytest.raises(InvalidValueError, match="not both"):
        Policy(stale_after_s=30.0, ttl_s=30.0)


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_stale_after_and_ttl_are_more_than_nothing(limit_s: float) -> None:
    with pytest.raises(InvalidValueError, match="stale_after must be more than 0 seconds"):
        Policy(stale_after_s=limit_s)
    with pytest.raises(InvalidValueError, match="ttl must be more than 0 seconds"):
        Policy(ttl_s=limit_s)


def test_a_success_of_last_week_is_no_evidence() -> None:
    Policy(stale_after_s=7 * 86_400.0)
    for limit_s in (7 * 86_400.0 + 0.1, 36_500 * 86_400.0, float("inf")):
        with pytest.raises(InvalidValueError, match=r"^stale_after \(\S+ days\) is more than 7 days; nothing would be"):
            Policy(stale_after_s=limit_s)


def test_the_default_of_stale_after_is_allowed_for_every_interval() -> None:
    longest = Schedule(interval_s=MAX_INTERVAL_S, timeout_s=MAX_INTERVAL_S - 1)
    Policy(stale_after_s=longest.default_stale_after_s)


def test_the_defaults_are_the_decided_ones() -> None:
    policy, schedule = Policy(), Schedule()
    assert (policy.rise, policy.fall, policy.start_period_s) == (2, 3, 30.0)
    assert schedule.default_stale_after_s == 3 * schedule.interval_s + schedule.timeout_s


@pytest.mark.parametrize(("interval_s", "timeout_s"), [(5.0, 5.0), (5.0, 6.0), (5.0, 0.0), (5.0, -1.0), (0.0, 0.0)])
def test_a_timeout_is_more_than_nothing_and_below_the_interval(interval_s: float, timeout_s: float) -> None:
    with pytest.raises(InvalidValueError, match="must be more than 0 and below the interval"):
        Schedule(interval_s=interval_s, timeout_s=timeout_s)


@pytest.mark.parametrize("transition_interval_s", [0.0, -1.0, 10.1, float("nan"), float("inf")])
def test_a_transition_interval_is_more_than_nothing_and_no_longer_than_the_interval(
    transition_interval_s: float,
) -> None:
    with pytest.raises(InvalidValueError, match=r"the transition_interval \(.+ s\) must be .* the interval \(10 s\)"):
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
def test_a_pending_change_makes_the_wait_a_fifth_of_the_interval(interval_s: float) -> None:
    schedule = Schedule(interval_s=interval_s, timeout_s=interval_s / 2)
    assert schedule.wait_s(is_change_pending=True) == pytest.approx(interval_s / 5)


@given(intervals_s, shares)
def test_a_pending_change_never_makes_the_wait_longer(interval_s: float, share: float) -> None:
    schedule = Schedule(interval_s=interval_s, timeout_s=interval_s / 2, transition_interval_s=interval_s * share)
    assert schedule.wait_s(is_change_pending=True) == interval_s * share <= interval_s
