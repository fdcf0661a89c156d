"""A notification as a message: its type, its text and its fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Acknowledgement, Health, Identity, Impact, Service
from svcnode.core.redaction import register_secret
from svcnode.notify.causes import Related
from svcnode.notify.content import Help
from svcnode.notify.message import (
    MAX_EXPLAINED,
    MAX_LISTED_SERVICES,
    MAX_REASON_CHARS,
    MessageContext,
    build_message,
    build_test_message,
)
from svcnode.notify.outages import PERIOD_S, Outages
from svcnode.notify.routes import Entry, Report, Situation
from svcnode.notify.rule import Kind
from svcnode.notify.subjects import NODE, Key, Severity, Subject

if TYPE_CHECKING:
    from svcnode.notify.targets import Message

IDENTITY = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.4.2")
WALL_S = 1_767_225_600.0  # 2026-01-01
UP, STARTING, DOWN = Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY
REFUSED: dict[str, Any] = {"reason": "connection refused: 127.0.0.1:5432", "code": ReasonCode.CONNECTION_REFUSED.value}

DB = Service(id="db", name="Ledger database", description="", impact=Impact.CRITICAL)
CACHE = Service(id="cache", name="cache", description="")
ADVICE = "Nothing listens at 127.0.0.1:5432. Start the server."
HELPS = {"db": Help(ADVICE, Outages(4, PERIOD_S), "https://wiki.example.com/db")}
PAGE = "https://node.example.com:8420"
ACKNOWLEDGED = Acknowledgement(DOWN, WALL_S + 95.0, by="ops (user root)", reason="a new disk is on its way")


def entry(service: Service | str | None, kind: Kind, health: Health, before: Health | None = UP, **more: Any) -> Entry:
    """Of a service, of the target with this name or of an issue, or of the node."""
    if isinstance(service, str) and service.startswith("issue: "):
        subject = Subject(Key("issue", service.removeprefix("issue: ")), 0.0)
    elif isinstance(service, str):
        subject = Subject(Key("target", service), 0.0)
    else:
        subject = Subject(NODE, 0.0) if service is None else Subject(Key("service", service.id), 0.0, service)
    fields: dict[str, Any] = {
        "worst": max(health, before or UP),
        "severity": subject.severity(max(health, before or UP)) or Severity.WARNING,
        "since_s": 90.0,
        "reason": subject.key.name if subject.key.type == "issue" else "",
        "code": None,
        "first_failure_at_s": None,
        "opened_at_s": 90.0,
        "duration_s": 0.0,
        "changes": 1,
    }
    return Entry(subject=subject, kind=kind, health=health, before=before, **fields | more)


def entries(kind: Kind, health: Health, before: Health | None = UP, **more: Any) -> list[Entry]:
    """The same about the node and the database."""
    node = {name: value for name, value in more.items() if name not in ("reason", "code")}
    node_before = UP if before is None else before
    return [entry(None, kind, health, node_before, **node), entry(DB, kind, health, before, **more)]


def message(
    health: Health,
    node: Entry | None,
    *others: Entry,
    told: Health | None = None,
    delayed_s: float = 0.0,
    helps: dict[str, Help] | None = None,
    page_url: str = "",
    **situation: Any,
) -> Message:
    report = Report(
        at_s=100.0,
        node=node,
        issues=tuple(one for one in others if one.subject.key.type == "issue"),
        services=tuple(one for one in others if one.subject.key.type == "service"),
        targets=tuple(one for one in others if one.subject.key.type == "target"),
        open=(),
        told_health=told or (health if node is None else node.before or UP),
        told={},
    )
    context = MessageContext(
        identity=IDENTITY,
        situation=Situation(health, **situation),
        to_wall=lambda at_s: WALL_S + at_s,
        delayed_s=delayed_s,
        find_help=lambda entry: (helps or {}).get(entry.subject.key.name, Help()),
        page_url=page_url,
    )
    return build_message(report, context, "0f0f")


def named(service_id: str) -> Service:
    return Service(id=service_id, name="", description="")


def on_one_host(kind: Kind, health: Health, before: Health = UP) -> list[Entry]:
    reason = "" if health is UP else "connection refused: redis://10.0.0.5:"
    return [
        entry(
            named(f"r{number:02}"), kind, health, before, reason=f"{reason}{number}", host="10.0.0.5", duration_s=number
        )
        for number in range(20)
    ]


API = Service(id="block-api", name="block-api", description="", impact=Impact.CRITICAL, depends_on=("db",))
EFFECTS = (Related(API, DOWN), Related(CACHE, UP))

# By name: the message, and its type for Apprise. tests/wording/test_notify.py compares the texts.
MESSAGES: dict[str, tuple[Message, str]] = {
    "node unhealthy": (message(DOWN, *entries(Kind.WORSE, DOWN, **REFUSED)), "failure"),
    "node unhealthy, with all that helps": (
        message(
            DOWN,
            entry(None, Kind.WORSE, DOWN, reason="critical service Down: db"),
            entry(DB, Kind.WORSE, DOWN, first_failure_at_s=86.0, **REFUSED),
            helps=HELPS,
            page_url=PAGE,
            not_up=(CACHE,),
        ),
        "failure",
    ),
    "one service, with all that helps": (
        message(
            DOWN,
            None,
            entry(DB, Kind.REMINDER, DOWN, DOWN, first_failure_at_s=86.0, duration_s=14_400, **REFUSED),
            helps=HELPS,
            page_url=PAGE,
            reason="critical service Down: db",
        ),
        "failure",
    ),
    "node partially healthy": (
        message(STARTING, *entries(Kind.WORSE, STARTING, reason="loading", code="starting")),
        "warning",
    ),
    "node recovered": (message(UP, *entries(Kind.RECOVERED, UP, DOWN, duration_s=250, changes=4)), "success"),
    "node better": (
        message(STARTING, entry(None, Kind.BETTER, STARTING, DOWN), entry(CACHE, Kind.BETTER, STARTING, DOWN)),
        "warning",
    ),
    "never up": (message(DOWN, *entries(Kind.WORSE, DOWN, None, **REFUSED)), "failure"),
    "transient": (message(UP, *entries(Kind.TRANSIENT, UP, worst=DOWN, duration_s=2.04, **REFUSED)), "info"),
    "not up at the start limit": (
        message(STARTING, *entries(Kind.WORSE, STARTING, None, reason="syncing", code="syncing")),
        "warning",
    ),
    "recovered during a restart": (
        message(UP, *entries(Kind.RECOVERED, UP, DOWN, duration_s=273_600, duration_is_upper_bound=True)),
        "success",
    ),
    "again within the resolve delay": (
        message(UP, *entries(Kind.RECURRED, UP, worst=DOWN, duration_s=14, changes=4, **REFUSED)),
        "warning",
    ),
    "a cause has recovered, and an effect that the target does not get has not": (
        message(DOWN, None, entry(DB, Kind.RECOVERED, UP, DOWN, effects=EFFECTS), not_up=(API,)),
        "warning",
    ),
    "an issue while the node is unhealthy": (
        message(
            DOWN,
            None,
            entry("issue: disk full", Kind.WORSE, DOWN),
            issues=("disk full", "raid degraded"),
            reason="critical service Down: db; issue: disk full, raid degraded",
            acknowledgement=ACKNOWLEDGED,
        ),
        "failure",
    ),
    "a reminder of an issue and a service": (
        message(
            DOWN,
            None,
            entry("issue: disk full", Kind.REMINDER, DOWN, DOWN, duration_s=14_400.0),
            entry(DB, Kind.REMINDER, DOWN, DOWN, duration_s=14_400.0, **REFUSED),
            issues=("disk full",),
        ),
        "failure",
    ),
    "an issue is cleared": (
        message(DOWN, None, entry("issue: disk full", Kind.RECOVERED, UP, DOWN, duration_s=600.0)),
        "warning",
    ),
    "a target fails": (
        message(UP, None, entry("https://hooks.example.com", Kind.WORSE, STARTING, reason="HTTP status 500")),
        "warning",
    ),
    "a target works again": (
        message(UP, None, entry("https://hooks.example.com", Kind.RECOVERED, UP, STARTING, duration_s=900)),
        "success",
    ),
    "late": (message(DOWN, *entries(Kind.WORSE, DOWN, **REFUSED), delayed_s=7200), "failure"),
    "reminder": (message(DOWN, *entries(Kind.REMINDER, DOWN, DOWN, duration_s=14_400, **REFUSED)), "failure"),
    "acknowledged": (message(STARTING, *entries(Kind.BETTER, STARTING, DOWN, acknowledgement=ACKNOWLEDGED)), "warning"),
    "recovered after it was acknowledged": (
        message(UP, *entries(Kind.RECOVERED, UP, DOWN, duration_s=250, acknowledgement=ACKNOWLEDGED)),
        "success",
    ),
    "service removed": (
        message(
            UP,
            entry(None, Kind.RECOVERED, UP, DOWN, duration_s=9),
            entry(DB, Kind.REMOVED, UP, DOWN, duration_s=9),
        ),
        "success",
    ),
    "issue": (message(DOWN, entry(None, Kind.WORSE, DOWN), issues=("disk full",), not_up=(CACHE,)), "failure"),
    "one service, node unchanged": (
        message(STARTING, None, entry(DB, Kind.WORSE, STARTING, reason="loading"), not_up=(CACHE,)),
        "warning",
    ),
    "one service, the change of the node is held": (
        message(UP, None, entry(CACHE, Kind.RECOVERED, UP, DOWN, duration_s=60), told=DOWN, held_by="maintenance"),
        "success",
    ),
    "two services, node unchanged": (
        message(DOWN, None, entry(CACHE, Kind.WORSE, DOWN), entry(DB, Kind.RECOVERED, UP, DOWN, duration_s=60)),
        "failure",
    ),
    "many services": (
        message(
            DOWN,
            None,
            *(
                entry(named(f"c{number:02}"), Kind.WORSE, DOWN, reason=f"{number} blocks behind")
                for number in range(30)
            ),
            not_up=tuple(named(f"s{number}") for number in range(100)),
        ),
        "failure",
    ),
    "services of one host": (message(DOWN, entry(None, Kind.WORSE, DOWN), *on_one_host(Kind.WORSE, DOWN)), "failure"),
    "services of one host have recovered": (
        message(UP, None, *on_one_host(Kind.RECOVERED, UP, DOWN), told=UP),
        "success",
    ),
    "services with one reason": (
        message(STARTING, None, *(entry(named(f"s{one}"), Kind.REMINDER, STARTING, reason="syncing") for one in "abc")),
        "warning",
    ),
    "a cause and its effects": (
        message(DOWN, *entries(Kind.WORSE, DOWN, effects=EFFECTS, **REFUSED), entry(API, Kind.WORSE, DOWN)),
        "failure",
    ),
    "a cause and its effects have recovered": (
        message(
            UP,
            *entries(Kind.RECOVERED, UP, DOWN, duration_s=250, effects=EFFECTS),
            entry(API, Kind.RECOVERED, UP, DOWN, duration_s=240),
            entry(CACHE, Kind.TRANSIENT, UP, worst=DOWN, duration_s=100),
        ),
        "info",
    ),
    "an effect of a cause that was told before": (
        message(DOWN, None, entry(API, Kind.WORSE, DOWN, causes=(Related(DB, DOWN),)), not_up=(DB,)),
        "failure",
    ),
    "what remains of a cause": (
        message(
            DOWN,
            None,
            entry(DB, Kind.RECOVERED, UP, DOWN, duration_s=250, effects=EFFECTS),
            entry(API, Kind.REMINDER, DOWN, DOWN, duration_s=240, **REFUSED),
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
        DOWN,
        *entries(Kind.WORSE, DOWN, **REFUSED),
        not_up=(CACHE,),
        issues=("disk full",),
        helps=HELPS,
        page_url=PAGE,
    ).document()
    assert document.pop("text")
    assert document == {
        "id": "0f0f",
        "kind": "change",
        "at": "2026-01-01T00:01:40.000Z",
        "severity": "critical",
        "url": "https://node.example.com:8420/",
        "node": {
            "name": "validator-7",
            "version": "v1.4.2",
            "health": 503,
            "health_before": 200,
            "change": "worse",
            "reason": "",
            "duration_s": None,
            "duration_is_upper_bound": False,
            "changes": 1,
            "acknowledged": None,
            "issues": ["disk full"],
        },
        "issues": [],
        "services": [
            {
                "id": "db",
                "name": "Ledger database",
                "impact": "critical",
                "severity": "critical",
                "change": "worse",
                "status": "Down",
                "status_before": "Up",
                "status_worst": "Down",
                "reason": REFUSED["reason"],
                "code": "connection_refused",
                "first_failure": None,
                "since": "2026-01-01T00:01:30.000Z",
                "duration_s": None,
                "duration_is_upper_bound": False,
                "changes": 1,
                "advice": ADVICE,
                "outages": {"count": 4, "period_s": 2_592_000},
                "runbook": "https://wiki.example.com/db",
                "url": "https://node.example.com:8420/#q=db",
                "acknowledged": None,
                "host": "",
                "causes": [],
                "affects": [],
                "depended_on_by": [],
            }
        ],
        "truncated_services": 0,
        "groups": [],
        "not_up": ["cache"],
        "targets": [],
        "delayed_s": 0.0,
    }


def test_a_recovery_has_its_duration_and_a_removed_service_has_no_status() -> None:
    document = message(
        UP,
        entry(None, Kind.RECOVERED, UP, DOWN, duration_s=60.12345),
        entry(CACHE, Kind.RECOVERED, UP, DOWN, duration_s=60),
        entry(DB, Kind.REMOVED, UP, DOWN, duration_s=70),
    ).document()
    assert document["node"]["duration_s"] == 60.123
    assert [(service["status"], service["duration_s"]) for service in document["services"]] == [("Up", 60), (None, 70)]


def test_a_test_message_has_the_same_fields_as_a_real_one() -> None:
    test, real = MESSAGES["test message"][0].document(), MESSAGES["node unhealthy"][0].document()
    assert test.keys() == real.keys()
    assert test["node"].keys() == real["node"].keys()
    assert (test["kind"], test["node"]["health"]) == ("test", None)


def test_a_message_about_many_services_lists_some_and_counts_the_others() -> None:
    many = [entry(named(f"s{number}"), Kind.WORSE, DOWN, reason=f"{number}" + "x" * 10_000) for number in range(2000)]
    built = message(DOWN, None, *many, not_up=(*[CACHE] * 100,))
    document = built.document()
    assert "2000" in built.title
    assert len(document["services"]) == len(document["not_up"]) == MAX_LISTED_SERVICES
    assert document["truncated_services"] == 1980
    assert len(built.lines) == MAX_LISTED_SERVICES + 3
    assert "1980" in built.lines[MAX_LISTED_SERVICES]
    assert "90" in built.lines[MAX_LISTED_SERVICES + 1]
    assert len(json.dumps(document)) < 30_000


def test_services_that_fail_alike_are_one_line_and_one_group() -> None:
    built = message(DOWN, None, *on_one_host(Kind.WORSE, DOWN), entry(DB, Kind.WORSE, DOWN, **REFUSED, host="10.0.0.5"))
    (group,) = built.document()["groups"]
    assert (group["host"], group["count"], group["reason"]) == ("10.0.0.5", 20, "connection refused")
    assert len([line for line in built.lines if "10.0.0.5" in line]) == 1
    assert "db" in built.lines[1], "it failed with another code"
    two = message(DOWN, None, *on_one_host(Kind.WORSE, DOWN)[:2]).document()
    assert two["groups"] == [], "two are told with all that is known of each"


def test_a_fault_of_this_machine_is_one_line_whatever_the_hosts_of_the_services() -> None:
    many = [
        entry(
            named(f"s{number}"),
            Kind.WORSE,
            STARTING,
            reason=f"this host stood still for 2 h: no success for {30 + number} s",
            host=f"10.0.0.{number % 4}",
            code=ReasonCode.CANNOT_CHECK,
            before=Health.HEALTHY,
        )
        for number in range(200)
    ]
    built = message(STARTING, None, *many)
    (group,) = built.document()["groups"]
    assert (group["host"], group["count"], group["reason"]) == ("", 200, "this host stood still for 2 h")
    assert "200 services" in built.title


def test_effects_are_in_the_line_of_their_cause_and_after_it_in_the_fields() -> None:
    worker = Service(id="worker", name="", description="", depends_on=("block-api",))
    api = entry(API, Kind.WORSE, DOWN, effects=(Related(worker, DOWN),), causes=(Related(DB, STARTING),))
    effects = (*EFFECTS, Related(worker, DOWN))
    cause = entry(DB, Kind.WORSE, STARTING, effects=effects)
    built = message(DOWN, None, entry(worker, Kind.WORSE, DOWN), api, cause)
    assert "block-api (critical), worker; not affected so far: cache" in built.title
    document = built.document()
    assert [service["id"] for service in document["services"]] == ["db", "worker", "block-api"]
    assert document["services"][0]["affects"] == ["block-api", "worker"]
    assert document["services"][2]["causes"] == ["db"]
    assert document["severity"] == "critical", "the worst of all"


def test_a_reason_is_one_line_of_limited_length() -> None:
    reason = "no\n- all services are Up\x1b[2J"
    built = message(DOWN, None, entry(DB, Kind.WORSE, DOWN, reason=reason), entry(CACHE, Kind.WORSE, DOWN))
    escaped = reason.replace("\n", "\\n").replace("\x1b", "\\x1b")
    assert f": {escaped} (since " in built.lines[0]
    long = message(DOWN, None, entry(DB, Kind.WORSE, DOWN, reason="x" * 1000)).document()
    assert len(long["services"][0]["reason"]) == MAX_REASON_CHARS


def test_each_message_states_the_health_of_the_node_now() -> None:
    for name, (built, _) in MESSAGES.items():
        if name != "test message":
            health = built.fields["node"]["health"]
            assert f"({health})" in (built.title + built.body()), name
    alone = message(DOWN, None, entry(CACHE, Kind.WORSE, DOWN), reason="critical service Down: db").document()
    assert "critical service Down: db" in alone["text"]
    assert alone["node"]["reason"] == "critical service Down: db"


def test_only_the_first_services_are_explained_in_the_text_and_all_in_the_fields() -> None:
    services = [Service(id=f"s{number}", name="", description="") for number in range(5)]
    helps = {service.id: Help(f"Restart {service.id}.") for service in services}
    worse = (entry(service, Kind.WORSE, DOWN, reason=f"fault of {service.id}") for service in services)
    built = message(DOWN, None, *worse, helps=helps)
    assert [f"Restart {service.id}." in built.body() for service in services] == [True] * MAX_EXPLAINED + [False] * 2
    assert [one["advice"] for one in built.fields["services"]] == [one.advice for one in helps.values()]


def test_no_secret_is_sent() -> None:
    register_secret("s3cr3t-token")
    built = message(
        DOWN, *entries(Kind.WORSE, DOWN, reason="401 for s3cr3t-token"), issues=("cannot use s3cr3t-token",)
    )
    assert "s3cr3t" not in json.dumps(built.document()) + built.title + built.body()
