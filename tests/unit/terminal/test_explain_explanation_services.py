"""Why a service is what it is, told from situations that a real node comes to, in virtual time."""

from __future__ import annotations

import string
from datetime import UTC, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Impact, Outcome, Status, Verdict
from svcnode.terminal.explain.explanation import explain_service
from tests.support.operator_context import OperatorHarness

if TYPE_CHECKING:
    from svcnode.terminal.explain.explanation import Explanation

READY = Verdict.ready()
REFUSED = Verdict.failed("connection refused: 127.0.0.1:5432")
NO_FILES = Verdict.unknown("this machine cannot look: too many open files")
PROBE = "tcp://127.0.0.1:5432"

WHY, CHANGE, MEND = "Why", "What would change it", "How to fix it"
TO_START = '30 s to start (start_period = "30s")'
LISTENS = (
    "Nothing listens at 127.0.0.1:5432. Is the server running? If it is, it listens at another address or port: "
    "compare its settings with the URL of the probe."
)
BY_HAND = (
    "To look by hand, on the node's machine: svcnode probe tcp://127.0.0.1:5432 (add the probe's options, if any, as "
    "--option KEY=VALUE)"
)


class Story:
    """A service that is looked at every 10 s, registered at 08:00:00."""

    def __init__(self, probe: str | None = PROBE, **words: Any) -> None:
        self.scene = OperatorHarness()
        self.scene.node.register("db", **words | ({"probe": probe} if probe else {}))

    def see(self, *verdicts: Verdict, every_s: float = 2.0, took_s: float = 0.0004) -> Story:
        self.scene.record("db", *verdicts, interval_s=every_s, duration_s=took_s)
        return self

    def wait(self, seconds: float) -> Story:
        self.scene.clock.advance(seconds)
        return self

    def explained(self, *, next_check_in_s: float | None = 2.2) -> Explanation:
        told = self.scene.details("db")
        return explain_service(told | {"next_check_in_s": next_check_in_s if told["schedule"] else None}, UTC)

    def says(self, title: str) -> list[str]:
        return list(dict(self.explained().sections).get(title, ()))


def up(**words: Any) -> Story:
    return Story(**words).see(*[READY] * 4, interval_s=10.0)


# ---- looked at


def test_one_that_was_just_registered_waits_for_its_first_look() -> None:
    story = Story().wait(0.2)
    assert story.explained().headline == "db is Initializing, since 08:00:00 (less than a second)"
    assert story.says(WHY) == ["It is Initializing until a look has found something out."]
    assert story.says(CHANGE) == [
        "The first look that passes makes it Up.",
        f"3 looks in a row that fail make it Down (fall = 3), but not before it has had {TO_START}.",
        "The next look is in 2 s.",
    ]
    assert story.says(MEND)[0] == "Nothing yet: wait for the first look."


def test_failures_while_it_starts_do_not_take_it_down() -> None:
    story = Story().see(*[REFUSED] * 4)
    assert story.explained().headline == "db is Initializing, since 08:00:00 (8 s)"
    assert story.says(WHY) == [
        "The last 4 looks, from 08:00:00 to 08:00:06, failed after 0.4 ms: connection refused: 127.0.0.1:5432.",
        'It has 30 s to start (start_period = "30s"), and 22 s of that left: until then, failures do not take it Down.',
    ]
    assert story.says(CHANGE) == [
        "The first look that passes makes it Up.",
        "If it still fails in 22 s, when its time to start is over, it is Down.",
        "The next look is in 2 s.",
    ]
    assert story.says(MEND) == [LISTENS, BY_HAND]


def test_one_that_is_well_needs_few_words() -> None:
    story = up()
    assert story.explained().headline == "db is Up, since 08:00:00 (40 s)"
    assert story.says(WHY) == ["The last 4 looks, from 08:00:00 to 08:00:30, passed in 0.4 ms."]
    assert story.says(CHANGE) == ["3 looks in a row that fail make it Down (fall = 3).", "The next look is in 2 s."]
    assert story.says(MEND) == []


def test_one_failure_is_not_enough() -> None:
    story = up().see(REFUSED)
    assert story.explained().status is Status.UP
    assert story.says(WHY) == [
        "The last look, at 08:00:40, failed after 0.4 ms: connection refused: 127.0.0.1:5432.",
        "Before that, 4 looks, from 08:00:00 to 08:00:30, passed in 0.4 ms.",
        "It is still Up, since it takes 3 failures in a row (fall = 3) to be Down, and it has 1.",
    ]
    assert story.says(CHANGE) == [
        "2 more looks in a row that fail make it Down (fall = 3).",
        'Without a look that passes, it is Initializing in 21 s: evidence counts for 33 s (stale_after = "33s").',
        "The next look is in 2 s.",
    ]
    assert story.says(MEND) == [LISTENS, BY_HAND]


def test_three_failures_are_enough() -> None:
    story = up().see(*[REFUSED] * 7)
    assert story.explained().headline == "db is Down, since 08:00:44 (10 s)"
    assert story.says(WHY) == [
        "The last 7 looks, from 08:00:40 to 08:00:52, failed after 0.4 ms: connection refused: 127.0.0.1:5432.",
        "Before that, 4 looks, from 08:00:00 to 08:00:30, passed in 0.4 ms.",
        "A service that was Up is Down after 3 failures in a row (fall = 3).",
    ]
    assert story.says(CHANGE) == ["2 looks in a row that pass make it Up (rise = 2).", "The next look is in 2 s."]
    assert story.says(MEND) == [LISTENS, BY_HAND]


def test_one_that_never_started_is_down_when_its_time_is_over() -> None:
    assert Story().see(*[REFUSED] * 20).says(WHY)[-1] == (
        "A service that was Initializing is Down after 3 failures in a row (fall = 3), once it has had 30 s to start "
        '(start_period = "30s").'
    )


def test_the_time_to_start_is_no_reason_long_after_it() -> None:
    story = up().see(Verdict.not_ready("loading"), interval_s=100).see(*[REFUSED] * 3)
    assert story.says(WHY)[-1] == "A service that was Initializing is Down after 3 failures in a row (fall = 3)."


def test_what_it_was_before_is_not_said_when_nobody_remembers() -> None:
    assert up().see(*[REFUSED] * 40).says(WHY)[-1] == "A service is Down after 3 failures in a row (fall = 3)."


def test_one_success_does_not_bring_it_back() -> None:
    story = up().see(*[REFUSED] * 3).see(READY)
    assert story.explained().status is Status.DOWN
    assert story.says(WHY)[0] == "The last look, at 08:00:46, passed in 0.4 ms."
    assert story.says(WHY)[-2:] == [
        "A service that was Up is Down after 3 failures in a row (fall = 3).",
        "It is still Down, since it takes 2 successes in a row (rise = 2) to be Up again, and it has 1.",
    ]
    assert story.says(CHANGE)[0] == "One more look that passes makes it Up (rise = 2)."
    assert story.says(MEND) == ["Nothing, as it seems: it answers again."]


def test_one_that_came_back_says_how() -> None:
    story = up().see(*[REFUSED] * 3).see(READY, READY)
    assert story.says(WHY)[-1] == "A service that was Down is Up after 2 successes in a row (rise = 2)."
    assert story.says(MEND) == []


def test_one_that_has_started_says_how() -> None:
    story = Story().see(Verdict.not_ready("loading"), READY)
    assert story.says(WHY)[-1] == "A service that was Initializing is Up after one look that passes."


def test_one_that_says_itself_that_it_is_not_ready() -> None:
    url = "ethereum+http://127.0.0.1:8545"
    syncing = [Verdict.not_ready(f"syncing, at block {block} of 100: {url}") for block in range(5)]
    story = up(probe=url).see(*syncing, interval_s=10)
    assert story.explained().headline == "db is Initializing, since 08:00:40 (50 s)"
    assert story.says(WHY)[0] == (
        "The last 5 looks, from 08:00:40 to 08:01:20, found it not ready after 0.4 ms; most recently: syncing, at "
        "block 4 of 100."
    )
    assert story.says(WHY)[-1] == "A service that is there, but not ready, is Initializing at once."
    assert story.says(CHANGE)[0] == "The first look that passes makes it Up."
    assert story.says(MEND)[0].startswith("It is starting or catching up: wait, and see whether it gets further.")


def test_one_that_fails_after_it_was_not_ready_is_counted() -> None:
    story = up().see(Verdict.not_ready("loading"), REFUSED)
    assert story.says(WHY)[-1] == ("It is not Down yet, since that takes 3 failures in a row (fall = 3), and it has 1.")
    assert story.says(CHANGE)[1] == "2 more looks in a row that fail make it Down (fall = 3)."


def test_one_that_is_too_slow() -> None:
    story = up(max_latency="300ms").see(
        Verdict.not_ready("slow: it took 0.41 s, max_latency is 0.3 s"), duration_s=0.41
    )
    assert story.says(WHY)[0] == (
        "The last look, at 08:00:40, found it not ready after 410 ms: slow: it took 0.41 s, max_latency is 0.3 s."
    )
    assert story.says(MEND)[0].startswith("It works, but takes longer than max_latency allows.")


def test_looks_that_cannot_be_made_do_not_count() -> None:
    story = up().see(NO_FILES)
    assert story.explained().status is Status.UP
    assert story.says(WHY) == [
        "The last look, at 08:00:40, could not be made: this machine cannot look: too many open files.",
        "Before that, 4 looks, from 08:00:00 to 08:00:30, passed in 0.4 ms.",
        "A look that cannot be made is no fault of the service, and does not count.",
    ]
    assert story.says(CHANGE)[1].startswith("Without a look that passes, it is Initializing in 21 s")
    assert story.says(MEND)[0].startswith("The process of the node cannot open more files: raise its limit")


def test_evidence_that_is_too_old_is_none() -> None:
    story = up().see(*[NO_FILES] * 3, interval_s=10)
    assert story.explained().headline == "db is Initializing, since 08:01:03 (7 s)"
    assert story.says(WHY)[-2:] == [
        "A look that cannot be made is no fault of the service, and does not count.",
        'Evidence counts for 33 s (stale_after = "33s"), and none is newer. What nobody knows is Initializing.',
    ]
    assert story.says(CHANGE)[0] == "The first look that passes makes it Up."


def test_a_node_that_does_not_come_to_look_is_told_from_one_that_cannot() -> None:
    story = up().wait(60)
    assert story.says(WHY)[-1].startswith('Evidence counts for 33 s (stale_after = "33s")')
    assert len(story.says(MEND)) == 1
    assert story.says(MEND)[0] == (
        "A look is due every 10 s, and none has come to an end for longer than that: is the node's machine overloaded, "
        "or was it asleep? The log of the node may say more."
    )


def test_nothing_is_known_of_one_that_could_never_be_looked_at() -> None:
    story = Story().see(*[NO_FILES] * 2)
    assert story.says(WHY)[-2:] == [
        "A look that cannot be made is no fault of the service, and does not count.",
        "It is Initializing until a look has found something out.",
    ]
    assert "but not before it has had 30 s to start" in story.says(CHANGE)[1]


def test_one_that_is_down_and_cannot_be_looked_at_any_more_has_two_things_to_mend() -> None:
    story = Story().see(*[REFUSED] * 18).see(NO_FILES)
    assert story.says(CHANGE)[1] == (
        'If no look can be made, it is Initializing in 29 s: evidence counts for 33 s (stale_after = "33s").'
    )
    assert story.says(MEND)[0].startswith("The process of the node cannot open more files")
    assert story.says(MEND)[1:] == [LISTENS, BY_HAND]


def test_thresholds_of_one_are_said_in_the_singular() -> None:
    story = up(rise=1, fall=1).see(REFUSED)
    assert story.says(WHY)[-1] == "A service that was Up is Down after one failure (fall = 1)."
    assert story.says(CHANGE)[0] == "One look that passes makes it Up (rise = 1)."
    assert up(rise=1, fall=1).says(CHANGE)[0] == "One look that fails makes it Down (fall = 1)."


@pytest.mark.parametrize(
    ("next_check_in_s", "said"),
    [
        (0.0, "The next look is under way, or about to begin."),
        (0.4, "The next look is in less than a second."),
        (7.4, "The next look is in 7 s."),
        (None, "Nobody looks at it just now: the node is starting, or stopping."),
    ],
)
def test_the_next_look_is_announced(next_check_in_s: float | None, said: str) -> None:
    explained = up().explained(next_check_in_s=next_check_in_s)
    assert dict(explained.sections)[CHANGE][-1] == said


def test_looks_of_many_kinds_are_not_all_told() -> None:
    story = up().see(*[Verdict.failed(f"{letter} is wrong") for letter in string.ascii_lowercase[:6]])
    assert story.says(WHY)[:5] == [
        "The last look, at 08:00:50, failed after 0.4 ms: f is wrong.",
        "Before that, 1 look, at 08:00:48, failed after 0.4 ms: e is wrong.",
        "Before that, 1 look, at 08:00:46, failed after 0.4 ms: d is wrong.",
        "Before that, 1 look, at 08:00:44, failed after 0.4 ms: c is wrong.",
        "Before that, 6 looks of other kinds are kept: svcnode explain --json shows them all.",
    ]


def test_the_url_of_the_probe_is_not_repeated_in_every_reason() -> None:
    url = "redis://127.0.0.1:6379"
    story = up(probe=url).see(Verdict.failed(f"connection refused: {url}"))
    assert story.says(WHY)[0] == "The last look, at 08:00:40, failed after 0.4 ms: connection refused."
    assert story.explained().about[0] == f"probe   {url}, every 10 s, for at most 3 s"


# ---- reported by a program, or set by the configuration


def test_what_a_program_reports_holds_until_it_says_otherwise() -> None:
    story = Story(probe=None).see(Verdict.failed("out of disk"), duration_s=0)
    assert story.explained().headline == "db is Down, since 08:00:00 (2 s)"
    assert story.says(WHY) == [
        "The last report, at 08:00:00, said Down: out of disk.",
        "Nobody looks at it: a program reports for it. What that says holds at once, until it says something else.",
    ]
    assert story.says(CHANGE) == ["A report that says that it is Up."]
    assert story.says(MEND) == ["The program that reports for it says so: its own log may say more."]


def test_one_whose_program_says_that_it_is_up() -> None:
    story = Story(probe=None).see(Verdict.not_ready(""), READY)
    assert story.says(WHY)[:2] == [
        "The last report, at 08:00:02, said Up.",
        "Before that, 1 report, at 08:00:00, said Initializing.",
    ]
    assert story.says(CHANGE) == ["A report that says otherwise."]
    assert story.says(MEND) == []


def test_one_that_nobody_has_reported_for() -> None:
    story = Story(probe=None).wait(6)
    assert story.says(WHY) == ["Nobody looks at it: a program reports for it, and has not reported anything yet."]
    (hint,) = story.says(MEND)
    assert hint.startswith('Does the program run that reports for it, under the id "db"? Only the program that')
    assert "svcnode serve cannot hear a beat" in hint


def test_a_report_that_is_due_soon() -> None:
    story = Story(probe=None, ttl="30s").see(READY, interval_s=6)
    assert story.says(WHY)[-1].endswith('What that says holds at once, for 30 s (ttl = "30s").')
    assert story.says(CHANGE)[-1] == 'Without any report, it is Down in 24 s: one counts for 30 s (ttl = "30s").'


def test_a_report_that_is_overdue() -> None:
    story = Story(probe=None, ttl="30s").see(READY, READY).wait(60)
    assert story.explained().headline == "db is Down, since 08:00:32 (32 s)"
    assert story.says(WHY) == [
        "The last 2 reports, from 08:00:00 to 08:00:02, said Up.",
        'A report counts for 30 s (ttl = "30s"), and no other has come in that time.',
    ]
    assert story.says(CHANGE) == ["A report that says that it is Up."]
    (hint,) = story.says(MEND)
    assert hint.startswith('Does the program run that reports for it, under the id "db"? Only the program that')
    assert "svcnode serve cannot hear a beat" in hint


def test_a_report_that_never_came() -> None:
    story = Story(probe="heartbeat:3s").wait(4)
    assert story.says(WHY) == ['A report counts for 3 s (ttl = "3s"), and none has come in that time.']


def test_a_status_that_the_configuration_sets() -> None:
    story = Story(probe=None).see(Verdict.failed("set in the configuration", code=ReasonCode.FIXED))
    assert story.says(WHY) == ['The configuration says so (status = "Down"); nobody looks at it.']
    assert story.says(CHANGE) == [
        "Another status in the configuration, or a probe in its place; then a reload (SIGHUP)."
    ]
    assert story.says(MEND) == []


# ---- what is said of it besides


@pytest.mark.parametrize(
    ("impact", "said"),
    [
        ("critical", "impact  critical: while it is Down, the node is unhealthy (503)"),
        ("partial", "impact  partial: while it is not Up, the node is at best partially healthy (206)"),
        ("none", "impact  none: the health of the node does not depend on it"),
    ],
)
def test_what_it_means_for_the_node_is_said(impact: str, said: str) -> None:
    assert up(impact=impact).explained().about[-1] == said


def test_its_name_and_description_are_said_where_it_has_any() -> None:
    assert up(name="Ledger", description="PostgreSQL").explained().about[0] == "Ledger: PostgreSQL"
    assert up(name="Ledger").explained().about[0] == "Ledger"
    assert up().explained().about[0].startswith("probe ")


def test_a_function_that_looks_has_no_url() -> None:
    scene = OperatorHarness()
    scene.node.check("db", interval="5s")(lambda: None)
    scene.record("db", REFUSED)
    explained = explain_service(scene.details("db"), UTC)
    assert explained.about[0] == "probe   a function of the program, every 5 s, for at most 2.5 s"
    assert not any("svcnode probe" in sentence for sentence in dict(explained.sections)[MEND])


def test_all_of_it_reads_from_top_to_bottom() -> None:
    assert up(impact="none").explained().lines == [
        "db is Up, since 08:00:00 (40 s)",
        "  probe   tcp://127.0.0.1:5432, every 10 s, for at most 3 s",
        "  impact  none: the health of the node does not depend on it",
        "",
        "Why",
        "  The last 4 looks, from 08:00:00 to 08:00:30, passed in 0.4 ms.",
        "",
        "What would change it",
        "  3 looks in a row that fail make it Down (fall = 3).",
        "  The next look is in 2 s.",
    ]


def test_times_are_those_of_the_reader() -> None:
    told = up().scene.details("db")
    zone = timezone(timedelta(hours=2))
    assert explain_service(told, zone).headline == "db is Up, since 10:00:00 (40 s)"


def test_what_was_not_today_has_its_date() -> None:
    story = Story(probe=None).see(READY).wait(100_000)
    assert story.explained().headline == "db is Up, since 2027-01-15 08:00:00 (1 day 3 h)"


# ---- whatever a node can tell


def _odd_text() -> st.SearchStrategy[str]:
    known = [
        *("connection refused: db:5432", "no such host: db:5432", "no fresh success for 33 s", "no evidence yet"),
        *("no report within its ttl of 1 s", "set in the configuration", "{place}", "{", "%s", "slow: it took 3 s"),
        *("no answer within 3 s, in its step connect", "connection refused: tcp://[", "", "\x1b[31mred", "a\nb"),
    ]
    return st.sampled_from(known) | st.text(max_size=30)


_VERDICTS = st.builds(Verdict, st.sampled_from(Outcome), _odd_text())
_EVENTS = st.lists(st.tuples(_VERDICTS | st.none(), st.floats(0, 200), st.floats(0, 20)), max_size=30)
_WORDS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries(
        {
            "probe": st.sampled_from(
                [PROBE, "tcp://db:1", "http://me:word@[::1]:80/x?y=z", "redis://h", "file:/run/x", "disk:/"]
            ),
            "rise": st.integers(1, 5),
            "fall": st.integers(1, 5),
            "start_period": st.sampled_from([0, 0.5, 30, 1e6]),
            "interval": st.sampled_from([1, 10, 86_400]),
        }
    ),
    st.fixed_dictionaries({"ttl": st.sampled_from([0.001, 5, 1e7])}),
    st.just({}),
)


@settings(max_examples=300, deadline=None)
@given(
    words=_WORDS,
    impact=st.sampled_from(Impact),
    name=_odd_text().filter(lambda text: text.isascii() and text.isprintable()),
    events=_EVENTS,
    next_check_in_s=st.none() | st.floats(0, 1e6),
)
def test_whatever_a_node_tells_is_explained(
    words: dict[str, Any],
    impact: Impact,
    name: str,
    events: list[tuple[Verdict | None, float, float]],
    next_check_in_s: float | None,
) -> None:
    scene = OperatorHarness()
    scene.node.register("db", impact=impact, name=name, **words)
    for verdict, wait_s, took_s in events:
        if verdict is not None:
            scene.record("db", verdict, duration_s=took_s)
        scene.clock.advance(wait_s)
    told = scene.details("db") | {"next_check_in_s": next_check_in_s}
    explained = explain_service(told, UTC)
    assert explained.status is Status(told["status"])
    assert explained.headline.startswith(f"db is {told['status']}, since ")
    assert set(dict(explained.sections)) >= {WHY, CHANGE} or told["status"] == "Up"
    assert all(line.isprintable() for line in explained.lines)
    assert all(line.endswith((".", "?", ")")) for _, sentences in explained.sections for line in sentences)
