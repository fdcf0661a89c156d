"""The messages that docs/alerts.md shows are those that a node sends. There, "…" stands for any text."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Verdict
from svcnode.node.definition import define
from svcnode.probes import make_probe
from tests.support.nodes import record
from tests.unit.notify.harness import GROUP_WAIT_S, RESOLVE_DELAY_S, STARTED_AT_S, Harness

if TYPE_CHECKING:
    from tests.unit.notify.harness import ImpactName

PAGE = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()
FIRST_FAILURE_S = datetime.fromisoformat("2026-11-15T12:15:19.104Z").timestamp()
FAILED_LATER_S = 4.108  # when the first failure was confirmed
LASTED_S = 250.0
LEDGER, BLOCK_API = "postgresql://10.0.0.5/ledger", "http://10.0.0.6:8080/health"
RUNBOOK = "https://wiki.example.com/runbooks/ledger-db"


class Node(Harness):
    """Its services are checked, and two failures in a row are Down. Its first one was Down three times this month."""

    page_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.clock.now_s += FIRST_FAILURE_S - STARTED_AT_S
        self.start()
        past = [("started", None, None, 35), *(("status", "db-1", status, 9) for status in ("Down", "Up") * 3)]
        transitions = [
            SimpleNamespace(at_s=-days * 86_400.0, kind=kind, service_id=service_id, after=after)
            for kind, service_id, after, days in past
        ]
        now_s = self.clock.now_s
        self.alerts.outages.start(now_s, transitions, lambda ago_s: now_s + ago_s)

    def check(self, service_id: str, probe: str, impact: ImpactName = "partial", **options: Any) -> None:
        fields: dict[str, Any] = {"rise": 1, "fall": 2, "start_period": "0s", "stale_after": "7d", **options}
        self.node.add(define(service_id, probe=make_probe(probe), impact=impact, **fields))
        self.up(service_id)

    def refuse(self, *service_ids: str, after_s: float = 0.0) -> None:
        for wait_s in (after_s, 0.0):
            for service_id in service_ids:
                config = self.node.probe_config(service_id)
                assert config is not None
                reason = f"connection refused: {config.probe.display_url}"
                record(self.node, service_id, Verdict.failed(reason, code="connection_refused"))
            self.wait(wait_s)

    def document(self) -> dict[str, Any]:
        """The last message."""
        return self.message(message_id="0025994351389726", page_url=self.page_url).document()

    def down_and_up(self, *service_ids: str, after_s: float = 0.0) -> str:
        """The text of the message about a failure, and of the one about the recovery."""
        self.refuse(*service_ids, after_s=after_s)
        down = self.wait(GROUP_WAIT_S).document()["text"]
        self.wait(LASTED_S - GROUP_WAIT_S).up(*reversed(service_ids)).wait(RESOLVE_DELAY_S)
        assert len(self.reports) == 2
        return f"{down}\n\n{self.document()['text']}"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)


def as_shown(shown: Any, sent: Any) -> Any:
    """What was sent, with the texts that the page shows instead, if they are the same but for what "…" stands for."""
    if isinstance(shown, dict) and isinstance(sent, dict):
        return {key: as_shown(shown.get(key), value) for key, value in sent.items()}
    if isinstance(shown, list) and isinstance(sent, list) and len(shown) == len(sent):
        return [as_shown(*pair) for pair in zip(shown, sent, strict=True)]
    if isinstance(shown, str) and isinstance(sent, str):
        is_same = re.fullmatch(re.escape(shown).replace("…", ".+"), sent, re.DOTALL)
        return shown if is_same else sent
    return sent


def node_with_a_database(**options: Any) -> Node:
    node = Node()
    node.page_url = "https://node.example.com:8420"
    node.check("db-1", LEDGER, "critical", name="Ledger database", runbook=RUNBOOK, **options)
    return node


def test_the_messages_about_one_service() -> None:
    sent = node_with_a_database().down_and_up("db-1", after_s=FAILED_LATER_S)
    shown, _, _ = blocks("text")
    assert as_shown(shown, sent) == shown


def test_the_json() -> None:
    node = node_with_a_database()
    for service_id in ("archive", "block-api"):
        node.check(service_id, BLOCK_API, depends_on=["db-1"])
    node.refuse("db-1", after_s=FAILED_LATER_S)
    sent = node.wait(GROUP_WAIT_S).document()
    (text,) = blocks("json")
    shown = json.loads(text)
    assert as_shown(shown, sent) == shown


def test_the_messages_about_a_cause() -> None:
    node = Node()
    node.check("ledger", LEDGER, "critical")
    for service_id in ("archive", "block-api"):
        node.check(service_id, BLOCK_API, depends_on=["ledger"])
    sent = node.down_and_up("ledger", "block-api")
    _, shown, _ = blocks("text")
    assert as_shown(shown, sent) == shown


def test_the_message_about_services_of_one_host() -> None:
    node = Node()
    service_ids = [f"db-{number:02}" for number in range(1, 31)]
    for service_id in service_ids:
        node.check(service_id, LEDGER, "critical")
    node.refuse(*service_ids)
    sent = node.wait(GROUP_WAIT_S).document()["text"]
    _, _, shown = blocks("text")
    assert as_shown(shown, sent) == shown
