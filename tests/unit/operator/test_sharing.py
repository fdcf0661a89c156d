"""What operators see of replicas, which run in virtual time on a simulated etcd."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.api.spec import Request
from svcnode.cli.terminal.explain.explanation import (
    HOW_TO_FIX_IT,
    NODE,
    REPLICAS,
    WHAT_CHANGES_IT,
    WHY,
    explain_node,
    explain_service,
)
from svcnode.core.problems import document_from_details
from svcnode.core.redaction import register_secret
from svcnode.net.etcd_json import Put
from svcnode.node.stats import FIXED_KIND, REPORTED_KIND
from svcnode.operator.details import node_details, services_details
from svcnode.operator.metrics import build_registry
from svcnode.operator.page import page
from svcnode.operator.sharing import RESTRICTED_KIND
from svcnode.operator.single_flight import SingleFlight
from svcnode.sharing.format import KeyKind, WorkDocument, encode_document, encode_key
from tests.support.operator_context import operator_context
from tests.support.replica_simulation import ROOT, Simulation, simulated_probes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.replica_simulation import Options, Process

SETTLE_S = 5.0
STALE_S = 10.0
IDS = [f"s{number}" for number in range(8)]


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with simulated_probes():
        simulation = Simulation()
        yield simulation
        simulation.close()


def checked(**options: Any) -> Options:
    return {"probe": "sim://backend", "interval": "2s", "stale_after": "7s", "start_period": "0s", **options}


class Operator:
    """What one replica shows."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.context = operator_context(process.node, replica=process.replica)

    @property
    def sharing(self) -> Any:
        return node_details(self.context)["sharing"]

    def service(self, service_id: str) -> Any:
        return json.loads(json.dumps(*services_details(self.context, [service_id], with_recent_checks=True)))

    def explained(self, service_id: str) -> dict[str, tuple[str, ...]]:
        return dict(explain_service(self.service(service_id)).sections)

    def explained_node(self) -> dict[str, tuple[str, ...]]:
        document = {"node": node_details(self.context), "services": [*services_details(self.context)]}
        return dict(explain_node(document_from_details(json.loads(json.dumps(document)))).sections)

    def metric(self, name: str, /, **labels: str) -> float | None:
        return build_registry(self.context).get_sample_value(f"svcnode_{name}", labels)

    def page(self) -> str:
        context = self.context._replace(single_flight=SingleFlight())  # which caches a page for a second
        return asyncio.run(page(context, Request("GET", b"/"), "")).body.decode()


def start(simulation: Simulation, **files: dict[str, Options]) -> list[Operator]:
    operators = [Operator(simulation.start(name, file)) for name, file in files.items()]
    simulation.run_for(SETTLE_S)
    return operators


def test_the_replicas_and_the_number_of_services_that_each_checks_are_shown(simulation: Simulation) -> None:
    a, b = start(simulation, a=dict.fromkeys(IDS, checked()), b={"fixed": {"status": "Up"}})
    counts = {"a": len(a.process.checked()), "b": len(b.process.checked())}
    assert sum(counts.values()) == len(IDS)
    for operator, name in ((a, "a"), (b, "b")):
        sharing = operator.sharing
        assert (sharing["replica"], sharing["connected"], sharing["problem"]) == (name, True, None)
        assert sharing["registry"] == "etcd://etcd:2379/svcnode"
        assert sharing["last_response_age_s"] < 1
        assert {replica["name"]: replica["checks"] for replica in sharing["replicas"]} == counts
        assert [replica["name"] for replica in sharing["replicas"] if replica["is_self"]] == [name]
        assert operator.metric("sharing_checked_services") == counts[name]
    text = a.page()
    assert all(f"checks {count} service" in text for count in counts.values())
    first, second = a.explained_node()[REPLICAS]
    assert first.startswith(f"a (this one) checks {counts['a']} service")
    assert second.startswith(f"b checks {counts['b']} service")
    assert a.metric("sharing_replicas") == 2
    a.process.client.traffic.requests, a.process.client.traffic.writes = 9, 4
    a.process.client.traffic.sent_bytes, a.process.client.traffic.received_bytes = 90, 40
    names = ("requests", "writes", "sent_bytes", "received_bytes")
    assert [a.metric(f"sharing_{name}_total") for name in names] == [9, 4, 90, 40]

    # A service that another replica checks has its probe and its evidence.
    of_b = next(iter(b.process.checked()))
    service = a.service(of_b)
    assert (service["kind"], service["probe"], service["schedule"]) == ("sim", "sim://backend", None)
    assert service["checked_by"] == ["b"]
    (observed,) = service["observed"]
    assert (observed["observer"], observed["status"], observed["code"]) == ("b", "Up", "ok")
    assert observed["age_s"] < 4
    assert service["evidence"]["age_s"] == observed["age_s"]
    about = {"name": of_b, "impact": "partial", "kind": "sim", "group": "", "tags": ""}
    assert a.metric("service_info", service_id=of_b, **about) == 1
    why = a.explained(of_b)[WHY]
    assert "b checks it" in why[0]
    assert "b observed Up" in why[1]


def test_who_drains_and_is_in_maintenance_is_shown_by_every_replica_without_secrets(simulation: Simulation) -> None:
    a, b = start(simulation, a={}, b={})
    register_secret("hunter2hunter2")
    document = WorkDocument("alice", "replica:a", "the key is hunter2hunter2", 1e9)
    simulation.write(Put(encode_key(ROOT, KeyKind.DRAINS, "all"), encode_document(document)))
    b.process.call(lambda: b.process.node.overrides.drain("<disk>"))
    simulation.run_for(2)
    for operator in (a, b):
        of_all, of_b = operator.sharing["work"]
        assert (of_all["replica"], of_all["kind"], of_all["via"], of_all["service_id"]) == (
            None,
            "drain",
            "replica:a",
            None,
        )
        assert of_all["at"] == "2001-09-09T01:46:40.000Z"
        assert (of_b["replica"], of_b["reason"], of_b["until"]) == ("b", "<disk>", None)
        text = operator.page()
        assert "&lt;disk&gt;" in text
        assert "hunter2" not in f"{text}{operator.sharing}"
        lines = operator.explained_node()[REPLICAS]
        assert [line.partition(":")[0] for line in lines[2:]] == ["All replicas", "b"]


def test_a_replica_is_seen_since_its_process_joined(simulation: Simulation) -> None:
    (a,) = start(simulation, a={})
    (b,) = start(simulation, b={})
    simulation.run_for(20)
    ages = {replica["name"]: replica["since_s"] for replica in a.sharing["replicas"]}
    assert ages["a"] > ages["b"] > 20
    b.process.kill()
    start(simulation, b={})
    (_, again) = a.sharing["replicas"]
    assert again["since_s"] <= SETTLE_S
    simulation.processes["b"].kill()
    simulation.run_for(20)
    assert [replica["name"] for replica in a.sharing["replicas"]] == ["a"]


def test_a_lost_registry_is_shown_everywhere(simulation: Simulation) -> None:
    files = {"a": {"of-b": checked(checked_by=["b"]), "of-all": checked(observers=3)}, "b": {}, "c": {}}
    a, *_ = start(simulation, **files)
    assert '<div id="notices"></div>' in a.page()
    assert a.metric("sharing_connected") == 1
    simulation.etcd.is_running = False
    simulation.run_for(STALE_S)
    sharing = a.sharing
    assert sharing["connected"] is False
    assert "refused" in sharing["problem"]
    assert sharing["last_response_age_s"] > STALE_S - 1
    assert {replica["name"] for replica in sharing["replicas"]} == {"a", "b", "c"}
    assert a.metric("sharing_connected") == 0
    assert "connection refused</p>" in a.page()
    assert any("connection refused" in line for line in a.explained_node()[NODE])
    assert a.service("of-b")["code"] == "registry_lost"
    assert a.service("of-all")["code"] == "unconfirmed", "this replica checks it, and says so"
    assert node_details(a.context)["caveats"]
    explained = a.explained("of-b")
    assert "b checks it" in explained[WHY][0]
    assert "b observed Up" in explained[WHY][1]
    assert any("registry check" in line for line in explained[HOW_TO_FIX_IT])


def test_keys_that_are_not_understood_are_counted_by_kind(simulation: Simulation) -> None:
    (a,) = start(simulation, a={})
    simulation.write(Put(f"{ROOT}nonsense", b"{}"), Put(f"{ROOT}replicas/x", b"{}"), Put(f"{ROOT}issues/x/y", b"1"))
    simulation.write(Put(f"{ROOT}replicas/new", b'{"version":2}'))
    simulation.run_for(1)
    counts = {"unknown_key": 1, "invalid_value": 2, "too_large": 0, "newer_version": 1}
    assert a.sharing["ignored_keys"] == counts
    assert {kind: a.metric("sharing_ignored_keys", kind=kind) for kind in counts} == counts
    assert any("2 invalid_value" in line for line in a.explained_node()[NODE])


def test_a_node_on_one_machine_has_nothing_of_it(simulation: Simulation) -> None:
    (a,) = start(simulation, a={"s": checked()})
    a.context = a.context._replace(replica=None)
    assert a.sharing is None
    assert (a.service("s")["checked_by"], a.service("s")["observed"]) == (None, None)
    assert a.metric("sharing_connected") is None
    assert '<section id="replicas" class="facts-list"></section>' in a.page()
    assert REPLICAS not in a.explained_node()
    assert not any("Replica" in line for line in a.explained("s")[WHY])


@pytest.mark.parametrize(
    ("options", "kind", "url"),
    [
        ({"status": "Up"}, FIXED_KIND, None),
        ({"probe": "heartbeat:30s"}, REPORTED_KIND, None),
        ({"probe": "sim://user:secret-9@backend", "checked_by": ["a"]}, RESTRICTED_KIND, None),
        ({"probe": {"url": "sim://backend"}, "checked_by": ["a"]}, "sim", "sim://backend"),
    ],
)
def test_the_kind_of_a_service_is_that_of_its_definition(
    simulation: Simulation, options: Options, kind: str, url: str | None
) -> None:
    _, b = start(simulation, a={"s": options}, b={})
    service = b.service("s")
    assert (service["kind"], service["probe"]) == (kind, url)
    assert "secret-9" not in json.dumps(service)


def test_the_password_of_a_probe_that_another_replica_runs_is_masked(simulation: Simulation) -> None:
    options = checked(probe="http://user:secret-9@backend/", checked_by=["gone"])
    value = {"version": 1, "position": 0, "options": {"probe": "sim://user:secret-9@backend", "checked_by": ["b"]}}
    simulation.write(Put(f"{ROOT}services/of-another-client/client", json.dumps(value).encode()))
    a, b = start(simulation, a={}, b={"own": options})
    own = b.service("own")
    assert (own["kind"], own["probe"], own["options"]) == ("http", "http://user:***@backend/", None)
    assert a.service("of-another-client")["probe"] == "sim://user:***@backend"


def test_each_vote_is_shown_when_the_replicas_disagree(simulation: Simulation) -> None:
    a, b = start(simulation, a={"s": checked(observers=2)}, b={})
    b.process.reaches_backends = False
    simulation.run_for(20)
    for operator in (a, b):
        service = operator.service("s")
        assert service["code"] == "observers_disagree"
        assert sorted(service["checked_by"]) == ["a", "b"]
        seen = {state["observer"]: (state["status"], state["code"]) for state in service["observed"]}
        assert seen == {"a": ("Up", "ok"), "b": ("Down", "connection_refused")}
        explained = operator.explained("s")
        assert any("a observed Up" in line for line in explained[WHY])
        assert any("b observed Down" in line and "refused" in line for line in explained[WHY])
        assert any("1 of 2 observed Up, 1 of 2 observed Down" in line for line in explained[WHY]) or any(
            "1 of 2 observed Down, 1 of 2 observed Up" in line for line in explained[WHY]
        )
        assert any("2 of 2" in line for line in explained[WHAT_CHANGES_IT])
        assert any("Nothing listens" in line for line in explained[HOW_TO_FIX_IT])


def test_the_replica_that_checks_a_service_or_receives_its_reports_is_named(simulation: Simulation) -> None:
    services = {"own": checked(checked_by=["a"]), "s": {"probe": "heartbeat:30s"}, "lost": checked(checked_by=["gone"])}
    a, b = start(simulation, a=services, b={})
    a.process.beat("s")
    simulation.run_for(1)
    service = b.service("s")
    assert service["checked_by"] == ["a"]
    assert [state["observer"] for state in service["observed"]] == ["a"]
    why = b.explained("s")[WHY]
    assert "a receives its reports" in why[0]
    assert "a reported Up" in why[1]
    why = a.explained("own")[WHY]
    assert any("a checks it" in line for line in why)
    assert not any("a observed" in line for line in why), "its checks say so"
    assert a.service("lost")["checked_by"] == []
    assert "No live replica" in a.explained("lost")[WHY][0]


def test_what_the_registry_has_lost_is_named_everywhere(simulation: Simulation) -> None:
    simulation.define("web", **checked())
    simulation.set_issue("no key")
    (a,) = start(simulation, a={"own": checked()})
    assert (a.sharing["lost_services"], a.sharing["lost_issues"], a.service("web")["lost"]) == ([], [], False)
    assert 'class="lost"' not in a.page()
    simulation.etcd.wipe()
    simulation.run_for(20)
    assert (a.sharing["lost_services"], a.sharing["lost_issues"]) == (["web"], ["no key"])
    assert (a.service("web")["lost"], a.service("own")["lost"]) == (True, False)
    assert (a.metric("sharing_lost_services"), a.metric("sharing_lost_issues")) == (1, 1)
    assert a.page().count('class="lost"') == 1
    caveat = node_details(a.context)["caveats"][0]
    assert "web" in caveat
    assert "no key" in caveat
