"""The node as a whole: its health and why, and one line for whatever is not Up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svcnode.core.model import Health, Verdict
from svcnode.operator.details import all_details
from svcnode.terminal.explain.explanation import explain_node
from svcnode.terminal.explain.render import render_explanation
from svcnode.terminal.render import Symbols
from svcnode.version import __version__
from tests.support.operator_context import OperatorHarness


def told(scene: OperatorHarness) -> Any:
    scene.process_stats.started_monotonic_s = scene.clock.now_s - 7380.0
    return json.loads(scene.request(all_details).body)


@pytest.fixture
def scene() -> OperatorHarness:
    made = OperatorHarness()
    made.node.register("db", impact="critical").up()
    made.node.register("cache").up()
    return made


def test_a_node_that_is_well_needs_two_lines(scene: OperatorHarness) -> None:
    explained = explain_node(told(scene))
    assert explained.status is Health.HEALTHY
    assert explained.lines == [
        "validator-7 v1.4.2 is healthy (200): all 2 services are Up",
        f"  2 of 2 services are Up; svcnode {__version__}, running for 2 h 3 min",
    ]


def test_whatever_is_not_up_has_a_line_the_worst_first(scene: OperatorHarness) -> None:
    scene.node.register("chain").initializing("syncing")
    scene.node.register("old disk", impact="none").down("full")
    scene.node.handle("db").down("connection refused: db:5432")
    scene.node.register("quiet")
    scene.clock.advance(252)
    explained = explain_node(told(scene))
    assert explained.status is Health.UNHEALTHY
    assert explained.lines == [
        "validator-7 v1.4.2 is unhealthy (503): db is Down, and critical",
        f"  1 of 5 services is Up; svcnode {__version__}, running for 2 h 3 min",
        "",
        "Not Up",
        "  db is Down (critical), for 4 min 12 s: connection refused: db:5432",
        "  old disk is Down (does not count), for 4 min 12 s: full",
        "  chain is Initializing, for 4 min 12 s: syncing",
        "  quiet is Initializing, for 4 min 12 s: no evidence yet",
        "  More about one of them: svcnode explain db",
    ]


@pytest.mark.parametrize(
    ("up", "down", "counted"),
    [
        (1, 0, "1 of 1 service is Up"),
        (0, 1, "0 of 1 service is Up"),
        (1, 1, "1 of 2 services is Up"),
        (2, 1, "2 of 3 services are Up"),
        (0, 2, "0 of 2 services are Up"),
        (0, 0, "0 of 0 services are Up"),
    ],
)
def test_services_are_counted_as_people_say_it(up: int, down: int, counted: str) -> None:
    scene = OperatorHarness()
    for number in range(up):
        scene.node.register(f"up-{number}").up()
    for number in range(down):
        scene.node.register(f"down-{number}").down("gone")
    assert explain_node(told(scene)).about[0].startswith(f"{counted}; svcnode ")


def test_what_keeps_us_from_looking_is_told(scene: OperatorHarness) -> None:
    scene.node.register("chain", probe="tcp://db:1", start_period=0)
    scene.record("chain", Verdict.unknown("cannot run /x: permission denied"))
    assert explain_node(told(scene)).lines[4] == (
        "  chain is Initializing, for less than a second: cannot run /x: permission denied (no evidence yet)"
    )


def test_what_keeps_us_from_looking_stands_before_what_was_seen_earlier(scene: OperatorHarness) -> None:
    scene.node.register("chain", probe="tcp://db:1", start_period=0)
    scene.record("chain", *[Verdict.failed("connection refused")] * 3, Verdict.unknown("the resolver failed"))
    assert explain_node(told(scene)).lines[4] == (
        "  chain is Down, for less than a second: the resolver failed (connection refused)"
    )


def test_a_node_that_is_half_well(scene: OperatorHarness) -> None:
    scene.node.handle("cache").down("gone")
    explained = explain_node(told(scene))
    assert explained.status is Health.PARTIAL
    assert explained.headline == "validator-7 v1.4.2 is partially healthy (206): cache is Down"


def test_an_id_with_spaces_can_be_pasted() -> None:
    scene = OperatorHarness()
    scene.node.register("old disk").down("full")
    assert explain_node(told(scene)).lines[-1] == "  More about one of them: svcnode explain 'old disk'"


def test_what_is_wrong_with_the_node_itself_is_told(scene: OperatorHarness) -> None:
    scene.process_stats.record_reload("services.db: what? (svcnode.toml:3)")
    scene.history.problem = "the disk is full"
    assert explain_node(told(scene)).sections[-1] == (
        "Besides",
        (
            "Its configuration was not reloaded, the old one is in force: services.db: what? (svcnode.toml:3)",
            "Its history: the disk is full",
        ),
    )


def test_nothing_that_a_service_says_steers_the_terminal(scene: OperatorHarness) -> None:
    scene.record("db", Verdict.failed("\x1b[2Jgone\n"))
    assert all(line.isprintable() for line in explain_node(told(scene)).lines)


@pytest.mark.parametrize("document", [{}, {"node": {}, "services": []}, {"node": {"health": 418}, "services": []}])
def test_what_another_version_tells_is_not_guessed_at(document: Any) -> None:
    with pytest.raises((KeyError, ValueError)):
        explain_node(document)


def test_on_a_terminal_the_words_are_the_same(scene: OperatorHarness) -> None:
    scene.node.handle("cache").down("gone")
    explained = explain_node(told(scene))
    lines = [line.plain for line in render_explanation(explained, Symbols())]
    assert lines == [f"◐ {explained.headline}", *explained.lines[1:]]
