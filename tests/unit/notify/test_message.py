"""A notification as a message: its type, its text and its fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Identity, Impact, Service
from svcnode.core.redaction import register_secret
from svcnode.notify.alert import AlertChange, ChangeType
from svcnode.notify.engine import MAX_LISTED_SERVICES, Notification
from svcnode.notify.message import MAX_REASON_CHARS, Message, build_message, build_test_message

IDENTITY = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.4.2")
WALL_S = 1_767_225_600.0  # 2026-01-01
UP, STARTING, DOWN = Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY
REFUSED: dict[str, Any] = {"reason": "connection refused: 127.0.0.1:5432", "code": ReasonCode.CONNECTION_REFUSED.value}

DB = Service(id="db", name="Ledger database", description="", impact=Impact.CRITICAL)
CACHE = Service(id="cache", name="cache", description="")


def change(
    service: Service | None, change_type: ChangeType, health: Health, before: Health | None = UP, **more: Any
) -> AlertChange:
    fields: dict[str, Any] = {"worst": health, "reason": "", "since_s": 90.0, "duration_s": 0.0, "changes": 1} | more
    return AlertChange(service=service, change_type=change_type, health=health, before=before, **fields)


def changes(change_type: ChangeType, health: Health, before: Health | None = UP, **more: Any) -> list[AlertChange]:
    """The same change of the node and of the database."""
    node = {name: value for name, value in more.items() if name not in ("reason", "code")}
    return [change(None, change_type, health, before, **node), change(DB, change_type, health, before, **more)]


def message(health: Health, node: AlertChange | None, *services: AlertChange, **more: Any) -> Message:
    fields: dict[str, Any] = {"issues": (), "not_up": ()} | more
    notification = Notification(at_s=100.0, health=health, node=node, services=services, **fields)
    return build_message(notification, IDENTITY, "0f0f", lambda at_s: WALL_S + at_s)


# By name: the message, and its type for Apprise. tests/wording/test_notify.py compares the texts.
MESSAGES: dict[str, tuple[Message, str]] = {
    "node unhealthy": (message(DOWN, *changes(ChangeType.WORSE, DOWN, **REFUSED)), "failure"),
    "node partially healthy": (
        message(STARTING, *changes(ChangeType.WORSE, STARTING, reason="loading", code="starting")),
        "warning",
    ),
    "node recovered": (message(UP, *changes(ChangeType.RECOVERED, UP, DOWN, duration_s=250, changes=4)), "success"),
    "node better": (
        message(
            STARTING, change(None, ChangeType.BETTER, STARTING, DOWN), change(CACHE, ChangeType.BETTER, STARTING, DOWN)
        ),
        "warning",
    ),
    "never up": (message(DOWN, *changes(ChangeType.WORSE, DOWN, None, **REFUSED)), "failure"),
    "transient": (message(UP, *changes(ChangeType.TRANSIENT, UP, worst=DOWN, duration_s=2.04, **REFUSED)), "info"),
    "not up at the start limit": (
        message(STARTING, *changes(ChangeType.WORSE, STARTING, None, reason="syncing", code="syncing")),
        "warning",
    ),
    "recovered during a restart": (
        message(UP, *changes(ChangeType.RECOVERED, UP, DOWN, duration_s=273_600, duration_is_upper_bound=True)),
        "success",
    ),
    "ongoing after a restart": (
        message(DOWN, *changes(ChangeType.ONGOING, DOWN, DOWN, duration_s=250, **REFUSED)),
        "failure",
    ),
    "recurred after a restart": (
        message(DOWN, *changes(ChangeType.RECURRED, DOWN, DOWN, duration_s=14, **REFUSED)),
        "failure",
    ),
    "reminder": (message(DOWN, *changes(ChangeType.REMINDER, DOWN, DOWN, duration_s=14_400, **REFUSED)), "failure"),
    "service removed": (
        message(
            UP,
            change(None, ChangeType.RECOVERED, UP, DOWN, duration_s=9),
            change(DB, ChangeType.REMOVED, UP, DOWN, duration_s=9),
        ),
        "success",
    ),
    "issue": (message(DOWN, change(None, ChangeType.WORSE, DOWN), issues=("disk full",), not_up=(CACHE,)), "failure"),
    "one service, node unchanged": (
        message(STARTING, None, change(DB, ChangeType.WORSE, STARTING, reason="loading"), not_up=(CACHE,)),
        "warning",
    ),
    "one service, the change of the node is held": (
        message(UP, None, change(CACHE, ChangeType.RECOVERED, UP, DOWN, duration_s=60), held_before=DOWN),
        "success",
    ),
    "two services, node unchanged": (
        message(
            DOWN, None, change(CACHE, ChangeType.WORSE, DOWN), change(DB, ChangeType.RECOVERED, UP, DOWN, duration_s=60)
        ),
        "failure",
    ),
    "many services": (
        message(
            DOWN,
            None,
            change(DB, ChangeType.WORSE, DOWN, **REFUSED),
            change(CACHE, ChangeType.WORSE, DOWN),
            truncated_services=1998,
            not_up=tuple(Service(id=f"s{number}", name="", description="") for number in range(100)),
        ),
        "failure",
    ),
    "test message": (build_test_message(IDENTITY, "0f0f", WALL_S), "info"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_has_a_type_and_the_same_text_in_each_form(name: str) -> None:
    built, notify_type = MESSAGES[name]
    assert built.notify_type == notify_type
    assert built.document()["text"].replace("\n- ", "\n") == f"{built.title}\n{built.body()}"


def test_the_fields_for_programs() -> None:
    document = message(
        DOWN, *changes(ChangeType.WORSE, DOWN, **REFUSED), not_up=(CACHE,), issues=("disk full",)
    ).document()
    assert document.pop("text")
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
            "issues": ["disk full"],
        },
        "services": [
            {
                "id": "db",
                "name": "Ledger database",
                "impact": "critical",
                "change": "worse",
                "status": "Down",
                "status_before": "Up",
                "reason": REFUSED["reason"],
                "code": "connection_refused",
                "first_failure": None,
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


def test_a_recovery_has_its_duration_and_a_removed_service_has_no_status() -> None:
    document = message(
        UP,
        change(None, ChangeType.RECOVERED, UP, DOWN, duration_s=60.12345),
        change(CACHE, ChangeType.RECOVERED, UP, DOWN, duration_s=60),
        change(DB, ChangeType.REMOVED, UP, DOWN, duration_s=70),
    ).document()
    assert document["node"]["duration_s"] == 60.123
    assert [(service["status"], service["duration_s"]) for service in document["services"]] == [("Up", 60), (None, 70)]


def test_a_test_message_has_the_same_fields_as_a_real_one() -> None:
    test, real = MESSAGES["test message"][0].document(), MESSAGES["node unhealthy"][0].document()
    assert test.keys() == real.keys()
    assert test["node"].keys() == real["node"].keys()
    assert (test["kind"], test["node"]["health"]) == ("test", None)


def test_a_message_about_many_services_lists_some_and_counts_the_others() -> None:
    many = [
        change(Service(id=f"s{number}", name="", description=""), ChangeType.WORSE, DOWN, reason="x" * 10_000)
        for number in range(MAX_LISTED_SERVICES)
    ]
    built = message(DOWN, None, *many, truncated_services=1980, not_up=(*[CACHE] * 100,))
    document = built.document()
    assert "2000" in built.title
    assert len(document["services"]) == len(document["not_up"]) == MAX_LISTED_SERVICES
    assert document["truncated_services"] == 1980
    assert len(built.lines) == MAX_LISTED_SERVICES + 3
    assert "1980" in built.lines[MAX_LISTED_SERVICES]
    assert "90" in built.lines[MAX_LISTED_SERVICES + 1]
    assert len(json.dumps(document)) < 20_000


def test_a_reason_is_one_line_of_limited_length() -> None:
    reason = "no\n- all services are Up\x1b[2J"
    built = message(
        DOWN, None, change(DB, ChangeType.WORSE, DOWN, reason=reason), change(CACHE, ChangeType.WORSE, DOWN)
    )
    escaped = reason.replace("\n", "\\n").replace("\x1b", "\\x1b")
    assert built.lines[0].endswith(escaped)
    long = message(DOWN, None, change(DB, ChangeType.WORSE, DOWN, reason="x" * 1000)).document()
    assert len(long["services"][0]["reason"]) == MAX_REASON_CHARS


def test_no_secret_is_sent() -> None:
    register_secret("s3cr3t-token")
    built = message(
        DOWN, *changes(ChangeType.WORSE, DOWN, reason="401 for s3cr3t-token"), issues=("cannot use s3cr3t-token",)
    )
    assert "s3cr3t" not in json.dumps(built.document()) + built.title + built.body()


def test_lost_messages_are_in_the_text_and_in_a_field() -> None:
    built = MESSAGES["node unhealthy"][0]
    assert (built.document(0)["lost"], built.document(3)["lost"]) == (0, 3)
    for text in (built.document(3)["text"], built.body(3)):
        *_, last = text.splitlines()
        assert "3" in last
    assert len(built.body(3).splitlines()) == len(built.body().splitlines()) + 1
