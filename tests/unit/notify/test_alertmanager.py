"""Alerts for Alertmanager: names, labels, and the URL of the target."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Health, Identity, Impact, Service
from svcnode.notify.alertmanager import alertmanager_from, build_test_alert, to_alerts
from svcnode.notify.causes import Related
from svcnode.notify.content import Help
from svcnode.notify.message import MessageContext
from svcnode.notify.outages import PERIOD_S, Outages
from svcnode.notify.routes import Situation
from svcnode.notify.rule import Kind
from tests.unit.notify.test_message import entry

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "svcnode-rules.yml"
IDENTITY = Identity(node_name="validator-7", node_version="v1.4.2", spec_version="v0.0.1")


def alert(health: Health, impact: Impact | None = None, reason: str = "", now: Health | None = None) -> dict[str, Any]:
    """Of a service with this impact; None: of the node. `now`: it is better than it was told."""
    service = None if impact is None else Service(id="db-1", name="Ledger", description="", impact=impact)
    open_entry = entry(service, Kind.REMINDER, now or health, health, opened_at_s=5.0, reason=reason)
    context = MessageContext(
        identity=IDENTITY, situation=Situation(health), to_wall=lambda at_s: 1_000_000_000.0 + at_s
    )
    (only,) = to_alerts([open_entry], context)
    return only


@pytest.mark.parametrize(
    ("health", "impact", "name", "severity"),
    [
        (Health.UNHEALTHY, None, "SvcnodeNodeUnhealthy", "critical"),
        (Health.PARTIAL, None, "SvcnodeNodePartial", "warning"),
        (Health.UNHEALTHY, Impact.CRITICAL, "SvcnodeCriticalServiceDown", "critical"),
        (Health.UNHEALTHY, Impact.PARTIAL, "SvcnodeServiceDown", "warning"),
        (Health.PARTIAL, Impact.CRITICAL, "SvcnodeServiceNotReady", "warning"),
    ],
)
def test_an_alert_has_a_name_and_a_severity(health: Health, impact: Impact | None, name: str, severity: str) -> None:
    labels = alert(health, impact)["labels"]
    assert (labels["alertname"], labels["severity"]) == (name, severity)
    assert (labels["job"], labels["instance"]) == ("svcnode", "validator-7")
    assert labels.get("service_id") == (None if impact is None else "db-1")


@pytest.mark.skipif(not RULES.exists(), reason="the wheel has no rules")
@pytest.mark.parametrize("impact", [None, Impact.CRITICAL, Impact.PARTIAL])
def test_an_alert_has_the_name_and_the_severity_of_its_rule(impact: Impact | None) -> None:
    labels = alert(Health.UNHEALTHY, impact)["labels"]
    rules = re.findall(r"(?s)alert: (\w+)\n.*?severity: (\w+)", RULES.read_text())
    assert (labels["alertname"], labels["severity"]) in rules


def test_an_alert_has_its_start_and_its_reason_without_secrets() -> None:
    found = alert(Health.UNHEALTHY, Impact.CRITICAL, "refused: redis://user:swordfish@10.0.0.5")
    assert found["startsAt"] == "2001-09-09T01:46:45.000Z"
    assert "refused" in found["annotations"]["description"]
    assert "swordfish" not in str(found)


def test_an_alert_of_what_is_better_for_a_short_time_keeps_its_name_and_says_how_it_is_now() -> None:
    found = alert(Health.UNHEALTHY, Impact.CRITICAL, "loading", now=Health.PARTIAL)
    assert found["labels"]["alertname"] == "SvcnodeCriticalServiceDown"
    assert "Initializing" in found["annotations"]["summary"]
    assert "loading" in found["annotations"]["description"]


def test_an_alert_has_all_that_helps_in_its_annotations_and_a_link_to_the_service() -> None:
    service = Service(id="db-1", name="Ledger", description="", impact=Impact.CRITICAL)
    context = MessageContext(
        identity=IDENTITY,
        situation=Situation(Health.UNHEALTHY, reason="critical service Down: db-1"),
        to_wall=lambda at_s: 1_000_000_000.0 + at_s,
        find_help=lambda _: Help("Start it.", Outages(4, PERIOD_S), "https://wiki.example.com/db"),
        page_url="https://node.example.com:8420",
    )
    open_entry = entry(service, Kind.REMINDER, Health.UNHEALTHY, Health.UNHEALTHY, first_failure_at_s=3.0)
    (found,) = to_alerts([open_entry], context)
    assert found["annotations"] == {
        "summary": "Ledger of validator-7 is Down",
        "description": "",
        "node_health": "unhealthy (503), critical service Down: db-1",
        "since": "2001-09-09T01:46:43.000Z",
        "advice": "Start it.",
        "how_often": "4th time in 30 days",
        "runbook_url": "https://wiki.example.com/db",
    }
    assert found["generatorURL"] == "https://node.example.com:8420/#q=db-1"
    without = alert(Health.UNHEALTHY, Impact.CRITICAL)
    assert without["annotations"].keys() == {"summary", "description", "node_health"}
    assert "generatorURL" not in without


def test_an_alert_names_its_causes_and_what_it_affects() -> None:
    ledger, api = (Service(id=name, name="", description="") for name in ("ledger", "api"))
    found = entry(
        Service(id="db-1", name="", description=""),
        Kind.REMINDER,
        Health.UNHEALTHY,
        causes=(Related(ledger, Health.PARTIAL),),
        effects=(Related(api, Health.UNHEALTHY),),
    )
    context = MessageContext(identity=IDENTITY, situation=Situation(Health.UNHEALTHY), to_wall=lambda at_s: at_s)
    (only,) = to_alerts([found], context)
    assert (only["annotations"]["causes"], only["annotations"]["affects"]) == ("ledger", "api")
    assert "causes" not in alert(Health.UNHEALTHY, Impact.CRITICAL)["annotations"]


def test_the_test_alert_ends_by_itself() -> None:
    found = build_test_alert(IDENTITY, 1_000_000_000.0)
    assert found["labels"]["alertname"] == "SvcnodeTest"
    assert found["startsAt"] < found["endsAt"] < "2001-09-09T02"
    linked = build_test_alert(IDENTITY, 1_000_000_000.0, "https://node.example.com:8420")
    assert linked["generatorURL"] == "https://node.example.com:8420/"


@pytest.mark.parametrize(
    "url", ["ftp://localhost", "http://localhost:9093/api/v2/alerts", "http://localhost:9093/?x=y", 9093]
)
def test_only_the_url_of_the_page_of_alertmanager_is_accepted(url: object) -> None:
    with pytest.raises(InvalidValueError):
        alertmanager_from(url, {})


def test_a_target_is_shown_without_its_path_and_is_equal_to_the_same_one() -> None:
    entry = {"url": "https://alerts.example.com/alertmanager", "bearer": "a-token"}
    target = alertmanager_from(entry, {})
    assert "alertmanager" not in target.name
    assert target == alertmanager_from(entry, {})
    assert "a-token" not in repr(target)
