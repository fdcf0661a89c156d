"""How news are put into words and fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svcnode.core.model import Health, Identity, Impact, Service
from svcnode.core.redaction import register_secret
from svcnode.notify.message import MAX_REASON_CHARS, Message, build_message, build_test_message, format_duration
from svcnode.notify.model import MAX_LISTED_SERVICES, AlertChange, ChangeType, Notification

IDENTITY = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.4.2")
WALL_S = 1_767_225_600.0  # 2026-01-01
UP, STARTING, DOWN = Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY

DB = Service(id="db", name="Ledger database", description="", impact=Impact.CRITICAL)
CACHE = Service(id="cache", name="cache", description="")


def item(
    service: Service | None, turn: ChangeType, health: Health, before: Health | None = UP, **more: Any
) -> AlertChange:
    told: dict[str, Any] = {"worst": health, "reason": "", "since_s": 90.0, "duration_s": 0.0, "changes": 1} | more
    return AlertChange(service=service, change_type=turn, health=health, before=before, **told)


def message(health: Health, node: AlertChange | None, *services: AlertChange, **more: Any) -> Message:
    about: dict[str, Any] = {"issues": (), "not_up": ()} | more
    news = Notification(at_s=100.0, health=health, node=node, services=services, **about)
    return build_message(news, IDENTITY, "0f0f", lambda at_s: WALL_S + at_s)


@pytest.mark.parametrize(
    ("told", "text", "tone"),
    [
        (
            message(
                DOWN, item(None, ChangeType.WORSE, DOWN), item(DB, ChangeType.WORSE, DOWN, reason="connection refused")
            ),
            (
                "validator-7 is unhealthy (503), was healthy (200)\n"
                "- db (Ledger database) is Down, was Up: connection refused"
            ),
            "failure",
        ),
        (
            message(
                UP,
                item(None, ChangeType.RECOVERED, UP, DOWN, duration_s=250, changes=2),
                item(DB, ChangeType.RECOVERED, UP, DOWN, duration_s=250, changes=4, reason="fine"),
            ),
            (
                "validator-7 has recovered: healthy (200) after 4m 10s\n"
                "- db (Ledger database) has recovered: Up after 4m 10s, with 4 changes"
            ),
            "success",
        ),
        (
            message(STARTING, None, item(DB, ChangeType.WORSE, STARTING, reason="loading"), not_up=(CACHE,)),
            (
                "validator-7: db (Ledger database) is Initializing, was Up: loading\n"
                "- also not Up: cache\n"
                "- the node is partially healthy (206), as before"
            ),
            "warning",
        ),
        (
            message(
                STARTING, item(None, ChangeType.BETTER, STARTING, DOWN), item(CACHE, ChangeType.BETTER, STARTING, DOWN)
            ),
            "validator-7 is partially healthy (206), was unhealthy (503)\n- cache is Initializing, was Down",
            "warning",
        ),
        (
            message(
                DOWN,
                item(None, ChangeType.WORSE, DOWN, None),
                item(DB, ChangeType.WORSE, DOWN, None, reason="no route"),
            ),
            "validator-7 is unhealthy (503)\n- db (Ledger database) is Down, and has not been Up yet: no route",
            "failure",
        ),
        (
            message(
                UP,
                item(None, ChangeType.TRANSIENT, UP, worst=DOWN, duration_s=2.04),
                item(DB, ChangeType.TRANSIENT, UP, worst=DOWN, duration_s=2.04, reason="reset"),
            ),
            (
                "validator-7 was unhealthy (503) for 2.0s, and is healthy (200)\n"
                "- db (Ledger database) was Down for 2.0s, and is Up again: reset"
            ),
            "info",
        ),
        (
            message(
                DOWN,
                item(None, ChangeType.FLAPPING, DOWN, duration_s=125, changes=6),
                item(DB, ChangeType.FLAPPING, DOWN, duration_s=125, changes=6, reason="refused"),
            ),
            (
                "validator-7 is flapping: it changed 6 times in 2m 5s, now unhealthy (503)\n"
                "- db (Ledger database) is flapping: it changed 6 times in 2m 5s, now Down: refused\n"
                "- what flaps is told again once it has not changed for 5m"
            ),
            "failure",
        ),
        (
            message(
                UP,
                item(None, ChangeType.SETTLED, UP, duration_s=300),
                item(DB, ChangeType.SETTLED, UP, duration_s=300, changes=40),
            ),
            "validator-7 has settled: healthy (200) for 5m\n- db (Ledger database) has settled: Up for 5m",
            "success",
        ),
        (
            message(
                UP,
                item(None, ChangeType.RECOVERED, UP, DOWN, duration_s=273_600, duration_is_upper_bound=True),
                item(DB, ChangeType.RECOVERED, UP, DOWN, duration_s=273_600, duration_is_upper_bound=True),
            ),
            (
                "validator-7 has recovered: healthy (200) after at most 3d 4h\n"
                "- db (Ledger database) has recovered: Up after at most 3d 4h\n"
                "- svcnode was restarted meanwhile, so it may have recovered sooner"
            ),
            "success",
        ),
        (
            message(
                DOWN,
                item(None, ChangeType.ONGOING, DOWN, DOWN, duration_s=250),
                item(DB, ChangeType.ONGOING, DOWN, DOWN, duration_s=250, reason="refused"),
            ),
            (
                "validator-7 is still unhealthy (503), after 4m 10s\n"
                "- db (Ledger database) is still Down, after 4m 10s: refused\n"
                "- svcnode was restarted meanwhile, and you may have been told before"
            ),
            "failure",
        ),
        (
            message(
                DOWN,
                item(None, ChangeType.RECURRED, DOWN, DOWN, duration_s=14),
                item(DB, ChangeType.RECURRED, DOWN, DOWN, duration_s=14, reason="refused"),
            ),
            (
                "validator-7 is unhealthy (503) again, for 14s\n"
                "- db (Ledger database) is Down again, for 14s: refused\n"
                "- svcnode was restarted meanwhile, and you may have been told before"
            ),
            "failure",
        ),
        (
            message(
                UP, item(None, ChangeType.RECOVERED, UP, DOWN, duration_s=9), item(DB, ChangeType.REMOVED, UP, DOWN)
            ),
            (
                "validator-7 has recovered: healthy (200) after 9.0s\n"
                "- db (Ledger database) is no longer watched; it was told as Down"
            ),
            "success",
        ),
        (
            message(DOWN, item(None, ChangeType.WORSE, DOWN), issues=("the disk is full",), not_up=(CACHE,)),
            "validator-7 is unhealthy (503), was healthy (200)\n- issue: the disk is full\n- services not Up: cache",
            "failure",
        ),
        (
            message(
                DOWN, None, item(CACHE, ChangeType.WORSE, DOWN), item(DB, ChangeType.RECOVERED, UP, DOWN, duration_s=60)
            ),
            (
                "validator-7: 2 services have changed\n"
                "- cache is Down, was Up\n"
                "- db (Ledger database) has recovered: Up after 1m\n"
                "- the node is unhealthy (503), as before"
            ),
            "failure",
        ),
    ],
)
def test_people_read(told: Message, text: str, tone: str) -> None:
    assert told.document()["text"] == text
    assert told.notify_type == tone
    assert f"{told.title}\n{told.body()}" == text.replace("\n- ", "\n")


def test_programs_read_stable_fields() -> None:
    told = message(
        DOWN,
        item(None, ChangeType.WORSE, DOWN),
        item(DB, ChangeType.WORSE, DOWN, reason="connection refused"),
        not_up=(CACHE,),
        issues=("the disk is full",),
    )
    document = told.document()
    assert document.pop("text").startswith("validator-7 is unhealthy")
    assert document == {
        "id": "0f0f",
        "kind": "change",
        "at": "2026-01-01T00:01:40.000Z",
        "node": {
            "name": "validator-7",
            "version": "v1.4.2",
            "health": 503,
            "health_before": 200,
            "change": "worse",
            "duration_s": None,
            "duration_is_upper_bound": False,
            "issues": ["the disk is full"],
        },
        "services": [
            {
                "id": "db",
                "name": "Ledger database",
                "impact": "critical",
                "change": "worse",
                "status": "Down",
                "status_before": "Up",
                "reason": "connection refused",
                "since": "2026-01-01T00:01:30.000Z",
                "duration_s": None,
                "duration_is_upper_bound": False,
                "changes": 1,
            }
        ],
        "truncated_services": 0,
        "not_up": ["cache"],
        "lost": 0,
    }


def test_a_recovery_has_its_length_in_seconds_and_a_removed_service_has_no_status() -> None:
    told = message(
        UP,
        item(None, ChangeType.RECOVERED, UP, DOWN, duration_s=60.12345),
        item(CACHE, ChangeType.RECOVERED, UP, DOWN, duration_s=60),
        item(DB, ChangeType.REMOVED, UP, DOWN, duration_s=70),
    ).document()
    assert told["node"]["duration_s"] == 60.123
    assert [(service["status"], service["duration_s"]) for service in told["services"]] == [("Up", 60), (None, 70)]


def test_a_test_message_has_the_same_fields_and_says_what_it_is() -> None:
    told, real = (
        build_test_message(IDENTITY, "0f0f", WALL_S).document(),
        message(UP, item(None, ChangeType.WORSE, UP)).document(),
    )
    assert told.keys() == real.keys()
    assert told["node"].keys() == real["node"].keys()
    assert told["kind"] == "test"
    assert told["node"]["health"] is None
    assert told["text"] == (
        "validator-7: this is a test\n"
        "- svcnode notify-test was called to see whether messages arrive. Nothing has happened."
    )


def test_of_many_services_some_are_told_one_by_one_and_the_others_are_counted() -> None:
    many = [
        item(Service(id=f"s{number}", name="", description=""), ChangeType.WORSE, DOWN, reason="x" * 10_000)
        for number in range(MAX_LISTED_SERVICES)
    ]
    told = message(DOWN, None, *many, truncated_services=1980, not_up=(*[CACHE] * 100,))
    document = told.document()
    assert told.title == "validator-7: 2000 services have changed"
    assert len(document["services"]) == len(document["not_up"]) == MAX_LISTED_SERVICES
    assert document["truncated_services"] == 1980
    assert "and 1980 more services have changed" in told.lines
    assert told.lines[-2].endswith("cache, 90 more")
    assert len(json.dumps(document)) < 20_000


def test_what_a_service_says_stays_in_its_line_and_has_an_end() -> None:
    told = message(
        DOWN,
        None,
        item(DB, ChangeType.WORSE, DOWN, reason="no\n- everything is fine\x1b[2J"),
        item(CACHE, ChangeType.WORSE, DOWN),
    )
    assert told.lines[0] == "db (Ledger database) is Down, was Up: no\\n- everything is fine\\x1b[2J"
    endless = message(DOWN, None, item(DB, ChangeType.WORSE, DOWN, reason="x" * 1000)).document()
    assert len(endless["services"][0]["reason"]) == MAX_REASON_CHARS


def test_no_secret_is_sent() -> None:
    register_secret("s3cr3t-token")
    told = message(
        DOWN,
        item(None, ChangeType.WORSE, DOWN),
        item(DB, ChangeType.WORSE, DOWN, reason="401 for s3cr3t-token"),
        issues=("cannot use s3cr3t-token",),
    )
    assert "s3cr3t" not in json.dumps(told.document()) + told.title + told.body()


def test_what_was_lost_is_told_in_the_text_and_in_a_field() -> None:
    told = message(UP, item(None, ChangeType.WORSE, UP))
    assert told.document(3)["lost"] == 3
    assert told.document(3)["text"].endswith("\n- 3 earlier messages were lost on the way to you")
    assert told.body(1) == "1 earlier message was lost on the way to you"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0s"),
        (3.24, "3.2s"),
        (10, "10s"),
        (59.6, "1m"),
        (250, "4m 10s"),
        (3600, "1h"),
        (7530, "2h 5m"),
        (86_400 * 3 + 3600 * 4 + 59, "3d 4h"),
    ],
)
def test_durations_are_told_in_their_two_largest_units(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words
