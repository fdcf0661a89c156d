"""Problems: what is not Up, with effects beneath their causes, equal ones folded, the worst first."""

from __future__ import annotations

from typing import Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Impact, Status
from svcnode.core.problems import (
    MAX_EFFECTS,
    MAX_GROUPS,
    MAX_MEMBERS,
    MAX_PROBLEMS,
    Trouble,
    count_groups,
    document_from_details,
    effect_texts,
    find_problems,
    groups_document,
    impact_text,
    left_out_text,
    offset_text,
    problems_document,
    title_text,
)

T0 = 1_800_000_000.0  # 2027-01-15T08:00:00Z, the beginning of a minute


def trouble(service_id: str, began_s: float = 0.0, **fields: Any) -> Trouble:
    """Down; `began_s` counts from T0."""
    defaults: dict[str, Any] = {
        "name": service_id.title(),
        "group": "",
        "status": Status.DOWN,
        "impact": Impact.PARTIAL,
        "code": ReasonCode.CONNECTION_REFUSED,
        "reason": f"connection refused: tcp://{service_id}",
    }
    return Trouble(id=service_id, began_s=T0 + began_s, age_s=60 - began_s, **defaults | fields)


def details(service_id: str = "a", **fields: Any) -> dict[str, Any]:
    """Of a service that is Down, as in /details."""
    return {
        "id": service_id,
        "name": service_id.title(),
        "status": "Down",
        "impact": "partial",
        "code": "connection_refused",
        "reason": f"connection refused: tcp://{service_id}:80",
        "since": "2027-01-15T08:00:06.000Z",
        "since_s": 54.0,
        "evidence": None,
        "kind": "tcp",
        "probe": f"tcp://{service_id}:80",
        "schedule": {"timeout_s": 3.0},
        "policy": {"stale_after_s": 33.0},
    } | fields


def ids(*troubles: Trouble) -> list[list[str]]:
    return [[member.id for member in problem.members] for problem in find_problems(troubles)]


def documents(*troubles: Trouble, **fields: Any) -> list[dict[str, Any]]:
    found = problems_document(
        find_problems(troubles), lambda service_id: details(service_id, **fields), lambda _: {"count": 4}
    )
    listed: list[dict[str, Any]] = found["problems"]
    return listed


# ---- the order


def test_critical_services_come_first_and_then_what_failed_first() -> None:
    late, early = trouble("late", 9, impact=Impact.CRITICAL), trouble("early", 5, impact=Impact.CRITICAL)
    assert ids(trouble("other", 1), trouble("ignored", 0, impact=Impact.NONE), late, early) == [
        ["early"],
        ["late"],
        ["other"],
        ["ignored"],
    ]


def test_down_comes_before_initializing_and_a_node_with_more_services_down_first() -> None:
    one, three = trouble("one", 1, down_inside=1), trouble("three", 2, down_inside=3)
    assert ids(trouble("starting", 0, status=Status.INITIALIZING), one, three) == [["three"], ["one"], ["starting"]]


def test_a_cause_is_as_critical_as_its_effects() -> None:
    api = trouble("api", 7, impact=Impact.CRITICAL, causes=frozenset({"db"}))
    first, second = find_problems([trouble("cache", 1), trouble("db", 5), api])
    assert (first.first.id, first.impact, [effect.id for effect in first.effects]) == ("db", Impact.CRITICAL, ["api"])
    assert (second.first.id, second.effects) == ("cache", ())


def test_effects_of_effects_are_beneath_the_cause_that_failed_first() -> None:
    api = trouble("api", 3, causes=frozenset({"db", "disk"}))
    web = trouble("web", 2, causes=frozenset({"api", "db", "disk"}))
    db = trouble("db", 1, causes=frozenset({"disk"}))
    both = trouble("both", 9, causes=frozenset({"disk", "queue"}), impact=Impact.CRITICAL)
    first, second = find_problems([api, web, db, both, trouble("queue", 5), trouble("disk", 4), trouble("x", 99)])[:2]
    assert [effect.id for effect in first.effects] == ["both", "db", "web", "api"]
    assert (first.first.id, second.first.id, second.effects) == ("disk", "queue", ())


def test_a_cause_that_is_up_again_does_not_hide_its_effect() -> None:
    assert ids(trouble("api", causes=frozenset({"db"}))) == [["api"]]


# ---- folding


@pytest.mark.parametrize("began_s", [0, 55])
def test_three_of_a_group_with_the_same_code_within_a_minute_are_one_problem(began_s: float) -> None:
    search = [trouble(f"s{number}", began_s + 10 * number, group="search") for number in range(3)]
    assert ids(*search) == [["s0", "s1", "s2"]]
    assert ids(*search[:2]) == [["s0"], ["s1"]]


@pytest.mark.parametrize(
    "other",
    [
        {"group": "chain"},
        {"began_s": 60},
        {"code": ReasonCode.TIMEOUT},
        {"status": Status.INITIALIZING},
        {"impact": Impact.NONE},
        {"is_acknowledged": True},
        {"in_maintenance": True},
        {"down_inside": 1},
    ],
)
def test_what_differs_is_not_folded(other: dict[str, Any]) -> None:
    first, second = trouble("a", group="search"), trouble("b", group="search")
    different = trouble("c", **{"group": "search"} | other)
    assert sorted(ids(first, second, different)) == [["a"], ["b"], ["c"]]


def test_a_cause_with_effects_is_not_folded() -> None:
    causes = [trouble(name) for name in ("a", "b", "c")]
    assert ids(*causes, trouble("effect", causes=frozenset({"a"}))) == [["a"], ["b"], ["c"]]


def test_many_problems_are_folded_by_code_and_group_and_then_by_code() -> None:
    by_minute = [trouble(f"s{number}", 60 * number, group=f"g{number % 2}") for number in range(2 * MAX_PROBLEMS)]
    assert [len(members) for members in ids(*by_minute)] == [MAX_PROBLEMS, MAX_PROBLEMS]
    by_group = [trouble(f"s{number}", group=f"g{number}") for number in range(MAX_PROBLEMS + 1)]
    effect = trouble("effect", 3, causes=frozenset({"s0"}))
    (problem,) = find_problems([*by_group, effect, trouble("later", 9, causes=frozenset({"s1"}))])
    assert (len(problem.members), [one.id for one in problem.effects]) == (MAX_PROBLEMS + 1, ["effect", "later"])


def test_what_cannot_be_folded_is_counted() -> None:
    troubles = [trouble(f"s{number}", code=f"x_{number}") for number in range(MAX_PROBLEMS + 7)]
    document = problems_document(find_problems(troubles), details, lambda _: None)
    assert (len(document["problems"]), document["more"]) == (MAX_PROBLEMS, 7)


# ---- groups


def test_groups_with_trouble_come_first_and_have_counts() -> None:
    starting = [trouble(name, group=group, status=Status.INITIALIZING) for name, group in ("ab", "cd", "ed")]
    troubles = [*starting, trouble("x"), trouble("y", group="d")]
    assert count_groups({"green": 1, "b": 1, "": 9, "d": 5}, troubles) == [
        ("d", 5, 2, 1),
        ("b", 1, 0, 0),
        ("green", 1, 1, 0),
    ]


def test_the_list_of_groups_is_bounded() -> None:
    document = groups_document(count_groups({f"g{number}": 1 for number in range(MAX_GROUPS + 2)}, []))
    assert (len(document["groups"]), document["more_groups"]) == (MAX_GROUPS, 2)
    assert document["groups"][0] == {"name": "g0", "total": 1, "up": 1, "down": 0}


# ---- documents


def test_a_problem_says_what_since_when_why_and_what_to_do() -> None:
    acknowledged = {"by": "ops"}
    (document,) = documents(
        trouble("a", 5, impact=Impact.CRITICAL, group="storage"),
        runbook="https://wiki/a",
        acknowledged=acknowledged,
        maintenance=None,
    )
    assert "a:80" in document.pop("advice")
    assert document == {
        "id": "a",
        "name": "A",
        "count": 1,
        "members": [{"id": "a", "name": "A", "since": "2027-01-15T08:00:05.000Z"}],
        "group": "storage",
        "group_count": 1,
        "status": "Down",
        "impact": "critical",
        "code": "connection_refused",
        "reason": "connection refused",
        "since": "2027-01-15T08:00:05.000Z",
        "since_s": 55.0,
        "effects": [],
        "effect_count": 0,
        "outages": {"count": 4},
        "runbook": "https://wiki/a",
        "acknowledged": acknowledged,
        "maintenance": None,
        "page": None,
    }


def test_effects_have_their_offsets_and_are_bounded() -> None:
    effects = [trouble(f"e{number:02}", number, causes=frozenset({"a"})) for number in range(MAX_EFFECTS + 2)]
    (document,) = documents(trouble("a"), *effects, trouble("late", 99, impact=Impact.CRITICAL, causes=frozenset("a")))
    assert (len(document["effects"]), document["effect_count"]) == (MAX_EFFECTS, MAX_EFFECTS + 3)
    assert document["effects"][0] == {
        "id": "late",
        "name": "Late",
        "status": "Down",
        "impact": "critical",
        "offset_s": 99.0,
    }
    assert effect_texts(document)[:2] == ["Late (critical) +1 min 39 s", "E00 +0 s"]


def test_several_services_have_one_reason_and_no_address() -> None:
    search = [trouble(f"s{number:02}", group="search", runbook="r") for number in range(MAX_MEMBERS + 5)]
    (document,) = documents(*search, runbook="https://wiki/search")
    assert (document["count"], len(document["members"])) == (MAX_MEMBERS + 5, MAX_MEMBERS)
    assert (document["reason"], document["outages"]) == ("connection refused", None)
    assert document["runbook"] == "https://wiki/search"
    assert "s00:80" not in document["advice"]


def test_several_services_with_different_reasons_have_the_meaning_of_their_code() -> None:
    members = [trouble(f"s{number}", reason=f"refused {number}", runbook=str(number)) for number in range(3)]
    (document,) = documents(*members, runbook="https://wiki/s0", schedule=None)
    assert "refused" not in document["reason"]
    assert (document["runbook"], document["group"]) == (None, "")


def test_a_check_that_could_not_run_is_the_reason_and_its_code_before_there_is_evidence() -> None:
    unknown = {"outcome": "unknown", "reason": "no file descriptors", "code": "cannot_check"}
    (document,) = documents(trouble("a"), code="no_evidence", reason="no check yet", evidence=unknown)
    assert (document["reason"], document["code"]) == ("no file descriptors (no check yet)", "cannot_check")
    (document,) = documents(trouble("a"), code="timeout", reason="", evidence=unknown)
    assert (document["reason"], document["code"]) == ("no file descriptors", "timeout")


def test_details_of_an_older_node_give_the_same_document() -> None:
    first_failure = {"at": "2027-01-15T08:00:01.000Z", "age_s": 59.0}
    api = details("api", first_failure=first_failure, causes=[{"id": "db"}], group="edge", acknowledged={"by": "ops"})
    services = [details("db"), api, details("up", status="Up")]
    document = document_from_details({"node": {"name": "n"}, "services": services})
    assert document["node"] == {"name": "n"}
    assert document["counts"] == {"Down": 2, "Up": 1}
    assert document["acknowledged"] == {"api": {"by": "ops"}}
    assert document["groups"] == [{"name": "edge", "total": 1, "up": 0, "down": 1}]
    (problem,) = document["problems"]
    assert (problem["id"], problem["since_s"], problem["outages"]) == ("db", 54.0, None)
    assert [(effect["id"], effect["offset_s"]) for effect in problem["effects"]] == [("api", -5.0)]
    assert document_from_details({"node": {}, "services": []})["problems"] == []


# ---- texts


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"count": 1}, "Ledger"),
        ({"count": 1, "name": ""}, "db"),
        ({"count": 1, "page": "http://a/"}, "db"),
        ({"count": 20, "group": "search"}, "20 in search"),
        ({"count": 20, "group": ""}, "20 services"),
        ({"count": 20, "group": None, "group_count": 1}, "20 services in 1 group"),
        ({"count": 20, "group": None, "group_count": 7}, "20 services in 7 groups"),
    ],
)
def test_titles(fields: dict[str, Any], expected: str) -> None:
    assert title_text({"id": "db", "name": "Ledger", "group": "", "group_count": 0, "page": None} | fields) == expected


def test_impact_is_a_word_unless_it_is_the_usual_one() -> None:
    assert [impact_text({"impact": impact.value}) for impact in Impact] == ["critical", "", "not counted"]


@pytest.mark.parametrize(
    ("offset_s", "expected"), [(2.0, "+2 s"), (0.2, "+0 s"), (-0.2, "+0 s"), (-10.0, "-10 s"), (90.0, "+1 min 30 s")]
)
def test_offsets(offset_s: float, expected: str) -> None:
    assert offset_text(offset_s) == expected


def test_what_is_left_out_is_counted() -> None:
    assert [left_out_text({"more": more})[:7] for more in (0, 1, 2)] == ["", "1 more ", "2 more "]
