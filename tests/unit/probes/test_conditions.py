"""The language of conditions: what holds, what does not and why, values that must advance, and errors."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome
from svcnode.core.option_types import schema_of
from svcnode.probes import conditions
from svcnode.probes.conditions import (
    Problem,
    find_problem,
    find_starting,
    json_conditions,
    json_value,
    parse_condition,
)
from tests.support.virtual_time import VirtualClock

NOW = datetime(2026, 11, 17, 12, 0, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions.time, "time", NOW.timestamp)  # type: ignore[attr-defined]


def problem(text: str, document: Any) -> Problem | None:
    return asyncio.run(find_problem(json_conditions([text]), document))


# Numbers that take long to calculate, or that cannot be calculated.
TOO_LARGE = [
    "1e1000",
    "1e-1000",
    "1e99999999",
    "1e9999999999999999999",
    "1" * 101,
    "0x" + "f" * 101,
    10**100,
    -(10**100),
]
HOLDS = [
    ("/peers >= 3", {"peers": 3}),
    ("/peers>=3", {"peers": 3.5}),
    ("/peers > 2", {"peers": "3"}),
    ("/height >= 0x10", {"height": "0x10"}),
    ("/height == 16", {"height": "0x10"}),
    ("/wei > 340282366920938463463374607431768211455", {"wei": "0x100000000000000000000000000000000"}),
    ("/ratio < 0.1", {"ratio": 0.05}),
    ("/ratio == 0.1", {"ratio": "0.1"}),
    ("/ratio == 0.1", {"ratio": 0.1}),
    ("/ratio > 1e-7", {"ratio": 2e-7}),
    ("/ratio < 3", {"ratio": float("-inf")}),
    ("/delta != -1", {"delta": 1}),
    ("/synced == true", {"synced": True}),
    ("/synced != false", {"synced": True}),
    ("/error == null", {"error": None}),
    ('/status == "ok"', {"status": "ok"}),
    ("/status == 'ok'", {"status": "ok"}),
    ('/version >= "v1.2"', {"version": "v1.3"}),
    ("value == 7", 7),
    ("value contains 7", [1, 7]),
    ("value contains 0.1", [0.1]),
    ("/wei < 1e300", {"wei": "9" * 100}),
    ("/wei < 1e999", {"wei": "1e998"}),
    ('"/a b/c=d" == 1', {"a b": {"c=d": 1}}),
    ("/a~1b/0 == 1", {"a/b": [1]}),
    ('/modes contains "full"', {"modes": ["full"]}),
    ('/text contains "ful"', {"text": "full"}),
    ('/text matches "^f.*l$"', {"text": "full"}),
    ("age of /at <= 30s", {"at": "2026-11-17T11:59:45Z"}),
    ("age of /at <= 30s", {"at": "2026-11-17T12:59:45.123456789+01:00"}),
    ("age of /at < 1h", {"at": NOW.timestamp() - 3000}),
    ("age of /at < 1m", {"at": int((NOW.timestamp() - 30) * 1e3)}),
    ("age of /at < 1m", {"at": int((NOW.timestamp() - 30) * 1e6)}),
    ("age of /at < 1m", {"at": str(int((NOW.timestamp() - 30) * 1e9))}),
    ("age of /at < 1m", {"at": hex(int(NOW.timestamp() - 30))}),
    ("age of /at <= 1s", {"at": (NOW + timedelta(seconds=50)).isoformat()}),  # the clocks differ a little
    ("age of /at > 1d", {"at": "2026-11-01"}),
    ("age of /at <= 30s", {"at": "2026-11-17t11:59:45z"}),
]
FAILS = [
    ("/peers >= 3", {"peers": 2}, "unexpected_response"),
    ("/peers >= 3", {"peers": "many"}, "unexpected_response"),
    ("/peers >= 3", {"peers": True}, "unexpected_response"),
    ("/peers >= 3", {"peers": float("nan")}, "unexpected_response"),
    *(("/peers >= 3", {"peers": value}, "unexpected_response") for value in TOO_LARGE),
    ("/peers >= 3", {}, "unexpected_response"),
    ("/peers != 3", {}, "unexpected_response"),
    ("/synced == true", {"synced": 1}, "unexpected_response"),
    ("/synced == true", {"synced": "true"}, "unexpected_response"),
    ('/status == "3"', {"status": 3}, "unexpected_response"),
    ('/status > "a"', {"status": 3}, "unexpected_response"),
    ("/a/b == 1", [], "unexpected_response"),
    ('/modes contains "full"', {"modes": ["ful"]}, "unexpected_response"),
    ('/modes contains "full"', {"modes": 1}, "unexpected_response"),
    ('/modes contains "full"', {}, "unexpected_response"),
    ('/text matches "x"', {"text": "full"}, "unexpected_response"),
    ('/text matches "x"', {"text": 1}, "unexpected_response"),
    ('/text matches "x"', {}, "unexpected_response"),
    ("age of /at <= 30s", {"at": "2026-11-17T11:59:15Z"}, "lagging"),
    ("age of /at <= 30s", {"at": "0001-01-01T00:00:00Z"}, "lagging"),
    ("age of /at <= 30s", {"at": 0}, "lagging"),
    ("age of /at <= 30s", {"at": "2026-11-17T13:00:00Z"}, "clock_skew"),
    ("age of /at <= 30s", {"at": "soon"}, "unexpected_response"),
    ("age of /at <= 30s", {"at": 10**400}, "unexpected_response"),
    ("age of /at <= 30s", {"at": float("inf")}, "clock_skew"),
    ("age of /at <= 30s", {"at": float("-inf")}, "lagging"),
    *(("age of /at <= 30s", {"at": value}, "unexpected_response") for value in TOO_LARGE),
    ("age of /at <= 30s", {"at": "2" * 10_000}, "unexpected_response"),
    ("age of /at >= 5m", {"at": "2026-11-17T11:59:45Z"}, "unexpected_response"),
    ("age of /at <= 30s", {"at": True}, "unexpected_response"),
    ("age of /at <= 30s", {"at": None}, "unexpected_response"),
    ("age of /at <= 30s", {}, "unexpected_response"),
]


@pytest.mark.parametrize(("text", "document"), HOLDS)
def test_a_condition_that_holds(text: str, document: Any) -> None:
    assert problem(text, document) is None
    assert re.search(schema_of(json_conditions)["items"]["pattern"], text), "the JSON Schema accepts it"


@pytest.mark.parametrize(("text", "document", "code"), FAILS)
def test_a_condition_that_does_not_hold_is_a_failure_and_names_the_value(text: str, document: Any, code: str) -> None:
    found = problem(text, document)
    assert found is not None
    assert (found.outcome, found.code) == (Outcome.FAILED, code)
    assert text.removeprefix("age of ").split()[0] in found.text


def test_a_regular_expression_that_takes_too_long_is_a_failure() -> None:
    found = problem('/text matches "(a|a)*b|(a|a)*c"', {"text": "a" * 100})
    assert found is not None
    assert "0.5 s" in found.text


def test_a_service_is_starting_while_one_of_several_conditions_holds() -> None:
    found = json_conditions(["/a == 1", "/b == 1", "/c == 1"])
    starting = asyncio.run(find_starting(found, {"b": 1, "c": 1}))
    assert starting is not None
    assert (starting.text, starting.outcome) == ("starting: /b == 1", Outcome.NOT_READY)
    assert asyncio.run(find_starting(found, {})) is None


# ---- values that must advance


class Height:
    """A condition over checks at the times of a virtual clock."""

    def __init__(self, within: str = "60s") -> None:
        self.clock = VirtualClock()
        condition = parse_condition(f"/height advances within {within}", json_value)
        object.__setattr__(condition.test, "clock", self.clock)
        self._conditions = (condition,)

    def read(self, value: Any, *, after_s: float = 10.0) -> str:
        self.clock.now_s += after_s
        found = asyncio.run(find_problem(self._conditions, {} if value is None else {"height": value}))
        return "holds" if found is None else f"{found.outcome.value} {found.code}"


STARTING, STALLED = "not_ready starting", "failed stalled"


def test_a_value_advances_from_its_first_growth_until_it_has_stood_for_the_window() -> None:
    height = Height()
    assert [height.read(value) for value in (7, 7, 8, 8, 8, 8, 8, 8)] == [STARTING, STARTING, *["holds"] * 6]
    assert [height.read(value) for value in (8, 8, 9)] == ["holds", STALLED, "holds"]


def test_without_growth_it_is_starting_for_the_window_and_then_stalled() -> None:
    height = Height()
    assert [height.read(7) for _ in range(8)] == [STARTING] * 7 + [STALLED]


def test_a_restarted_service_counts_from_its_new_value_and_the_window_goes_on() -> None:
    height = Height()
    assert [height.read(value) for value in (100, 101, 0, 0, 1)] == [STARTING, "holds", "holds", "holds", "holds"]
    assert [height.read(0) for _ in range(7)] == ["holds"] * 6 + [STALLED]


def test_servers_that_stand_still_do_not_advance_together() -> None:
    """As behind a balancer: the value falls and returns for ever."""
    for values in ([1000, 990], [1000, 990, 980], [980, 1000, 990, 990, 1000]):
        height = Height()
        assert {height.read(values[number % len(values)]) for number in range(60)} >= {STALLED}
        assert {height.read(values[number % len(values)]) for number in range(60)} == {STALLED}


def test_servers_of_which_one_lags_behind_advance_together() -> None:
    height = Height()
    found = [height.read(1000 + number // 3 - 5 * (number % 2)) for number in range(60)]
    assert set(found[4:]) == {"holds"}


def test_a_service_that_was_restarted_twice_counts_again_when_the_window_is_over() -> None:
    height = Height()
    for value in (100, 101, 0, 1, 2, 0):
        height.read(value)
    assert [height.read(value) for value in range(1, 6)] == ["holds"] * 5
    assert [height.read(value) for value in range(6, 10)] == [STALLED, "holds", "holds", "holds"]


def test_growth_that_may_be_old_starts_the_window_again() -> None:
    height = Height()
    height.read(7)
    height.read(8)
    assert height.read(900, after_s=3600.0) == STARTING
    assert height.read(901) == "holds"
    assert height.read(901, after_s=3600.0) == STALLED


def test_a_value_that_is_missing_does_not_advance() -> None:
    height = Height()
    assert [height.read(None) for _ in range(8)] == [STARTING] * 7 + [STALLED]
    assert height.read(1) == STALLED
    assert height.read(2) == "holds"


@pytest.mark.parametrize(
    "values", [("0x9", "0xa"), ("9", "10"), (1.5, 2), ("2026-11-17T12:00:00Z", "2026-11-17T13:00:00+00:00")]
)
def test_numbers_and_times_advance_in_any_form(values: tuple[Any, Any]) -> None:
    height = Height()
    assert [height.read(value) for value in values] == [STARTING, "holds"]


@pytest.mark.parametrize("value", [True, [], "high", *TOO_LARGE])
def test_what_is_neither_a_number_nor_a_time_cannot_advance(value: Any) -> None:
    assert Height().read(value) == "failed unexpected_response"


def test_a_failure_comes_before_what_only_has_to_start() -> None:
    found = json_conditions(["/height advances within 1m", "/peers > 0"])
    result = asyncio.run(find_problem(found, {"height": 1, "peers": 0}))
    assert result is not None
    assert result.outcome is Outcome.FAILED


# ---- errors


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "at its end"),
        ("peers >= 3", "character 1"),
        ("/peers", "at its end"),
        ("/peers => 3", "character 8"),
        ("/peers >= three", "character 11"),
        ("/peers >= 3 blocks", "character 13"),
        ("/peers >= 3s", "character 11"),
        ("/peers > true", "character 10"),
        *((f"/peers >= {value}", "character 11") for value in TOO_LARGE),
        ('/status matches "("', "character 17"),
        ("age of /at <= 1.2.3s", "character 15"),
        ("/height advances within 1.2.3s", "character 25"),
        ("age of /at <= 1" + "0" * 400 + "d", "character 15"),
        ('/status == "ok', "character 12"),
        ("/status = ok", "character 9"),
        ("age of /at == 3s", "character 12"),
        ("age of /at <= 30", "character 15"),
        ("age of", "at its end"),
        ("/height advances within soon", "character 25"),
        ("/height advances", "character 9"),
        ("/text matches x", "character 15"),
        ('"peers" >= 3', "character 8"),
    ],
)
def test_an_error_names_the_character(text: str, place: str) -> None:
    with pytest.raises(InvalidValueError, match=place):
        parse_condition(text, json_value)


@pytest.mark.parametrize(
    "value", ["/peers >= 3", [3], None, ["/peers >= 3", 3], ["/a == " + "1" * 1000], ['/a matches "("']]
)
def test_what_is_no_list_of_conditions_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValueError):
        json_conditions(value)
