"""The documents of the control socket and the node agree, also after a restart at any time."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import sys
import threading
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest

from svcnode.api.spec import Request
from svcnode.control import store as store_module
from svcnode.control.changes import ChangeRequest, run_path, status_path
from svcnode.control.resources import STORE_ISSUE, Resources
from svcnode.control.store import ControlStore, Document
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import RegistryUnreachableError, StoreError
from svcnode.core.model import ChangeKind
from svcnode.core.redaction import SecretScope, register_secret
from svcnode.core.text import MAX_REASON_CHARS
from svcnode.core.units import iso_time
from svcnode.node.definition import define
from svcnode.node.node_state import NodeState
from svcnode.node.overrides import OWN
from svcnode.node.standstill import TICK_S
from svcnode.probes import KINDS
from svcnode.sharing.format import KeyKind, WorkDocument
from svcnode.sharing.work import WorkName
from tests.support.control_agent import (
    ControlAgent,
    compare_random_requests,
    define_service,
    make_request,
)
from tests.support.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from svcnode.api.spec import Response
    from svcnode.core.errors import RegistryError
    from svcnode.node.definition import Definition
    from svcnode.sharing.work import WorkClient

TTL_S, TTL = 15.0, "15s"
UP, INITIALIZING, DOWN = "Up", "Initializing", "Down"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ControlAgent]:
    agent = ControlAgent(tmp_path)
    yield agent
    agent.close()


def register(agent: ControlAgent, service_id: str = "indexer", **options: object) -> Response:
    return agent.send("PUT", f"/v1/services/{service_id}", options or {"ttl": TTL})


def beat(agent: ControlAgent, service_id: str = "indexer", status: str = "up", **fields: str) -> Response:
    return agent.send("PUT", f"/v1/services/{service_id}/status", {"status": status, **fields})


def window(begin: str, end: str, **fields: str) -> dict[str, str]:
    return {"from": begin, "until": end, **fields}


def body_of(response: Response) -> Any:
    return json.loads(response.body)


# ---- services and heartbeats


@pytest.mark.parametrize(("status", "expected"), [("up", UP), ("initializing", INITIALIZING), ("down", DOWN)])
def test_a_service_reports_its_status_with_reason_and_code(agent: ControlAgent, status: str, expected: str) -> None:
    register(agent)
    beat(agent, status=status, reason="replaying", code="x_replay")
    state = agent.node.state("indexer")
    assert (state.status.value, state.reason, state.code) == (expected, "replaying", "x_replay")


def test_a_service_of_the_file_takes_precedence_until_the_file_no_longer_has_it(agent: ControlAgent) -> None:
    register(agent, ttl=TTL, name="of the socket")
    agent.configured = {"indexer": True}
    agent.restart()
    assert [service.name for service, _ in agent.node] == ["indexer"]
    agent.configured = {}
    agent.restart()
    assert [service.name for service, _ in agent.node] == ["of the socket"]


def test_a_service_of_the_file_cannot_be_changed_or_removed_but_may_report(agent: ControlAgent) -> None:
    agent.configured = {"indexer": True, "db": False}
    agent.restart()
    assert register(agent).code == 409
    assert agent.send("DELETE", "/v1/services/indexer").code == 409
    assert beat(agent).code == 204
    assert beat(agent, "db").code == 409
    agent.now_s += TTL_S - 1
    agent.restart()
    assert agent.statuses() == {"indexer": UP, "db": INITIALIZING}
    agent.now_s += 1
    agent.restart()
    assert agent.statuses() == {"indexer": DOWN, "db": INITIALIZING}


def test_a_service_may_depend_on_one_that_is_registered_later_but_not_on_itself(agent: ControlAgent) -> None:
    assert register(agent, "api", ttl=TTL, depends_on=["ledger"]).code == 201
    assert register(agent, "ledger", ttl=TTL, depends_on=["api"]).code == 409
    assert register(agent, "ledger", ttl=TTL, depends_on=["disk"]).code == 201
    agent.restart()
    found = agent.node.find("api")
    assert found is not None
    assert found[0].depends_on == ("ledger",)


# ---- reports that waited while the node stood still


@pytest.mark.parametrize("worse", ["down", "initializing"])
def test_an_older_report_does_not_replace_a_worse_one_that_may_be_newer(agent: ControlAgent, worse: str) -> None:
    register(agent)
    beat(agent)
    agent.stand_still(10.0)
    requests = [
        make_request("PUT", "/v1/services/indexer/status", {"status": status}) for status in (worse, "up", "down")
    ]
    assert [response.code for response in agent.send_all(requests)] == [204, 503, 204]
    agent.restart()
    assert agent.statuses() == {"indexer": DOWN}
    agent.now_s += 5.0
    assert beat(agent).code == 204
    assert agent.statuses() == {"indexer": UP}


def test_a_report_counts_from_the_time_at_which_it_may_have_been_sent(agent: ControlAgent) -> None:
    register(agent)
    beat(agent)
    agent.now_s += TTL_S - 1
    agent.stand_still(TTL_S)
    agent.node.expire_stale()  # as on waking: it has expired when the report is read
    assert beat(agent).code == 204
    assert agent.statuses() == {"indexer": DOWN}
    agent.now_s += 1.0
    assert beat(agent).code == 204
    assert agent.statuses() == {"indexer": DOWN}, "it may still be one that waited"
    agent.now_s += 2.0
    beat(agent)
    assert agent.statuses() == {"indexer": UP}


def test_bad_news_that_waited_counts_whenever_it_was_sent(agent: ControlAgent) -> None:
    for status, expected in (("initializing", INITIALIZING), ("down", DOWN)):
        register(agent, status)
        beat(agent, status)
        agent.now_s += 0.5  # less than a tick before the node stops
        beat(agent, status)
        agent.stand_still(5.0)
        beat(agent, status, status)
        assert agent.node.state(status).status.value == expected


def test_a_status_is_as_old_as_it_was_before_a_restart(agent: ControlAgent) -> None:
    for service_id, status in (("indexer", "down"), ("db", "up"), ("api", "initializing")):
        register(agent, service_id)
        beat(agent, service_id, "initializing" if status == "up" else "up")
        agent.now_s += 2.0
        beat(agent, service_id, status)
        agent.now_s += 3.0
        beat(agent, service_id, status)
    before = {service.id: state for service, state in agent.node}
    agent.now_s += 1.0
    agent.restart()
    for service, state in agent.node:
        assert state.since_s == before[service.id].since_s
        assert state.first_failure_at_s == before[service.id].first_failure_at_s
    statuses = [change for change in agent.changes if change.kind is ChangeKind.STATUS]
    assert {change.service_id: change.after.since_s for change in statuses if change.after} == {
        service_id: before[service_id].since_s for service_id in ("indexer", "db")
    }


def test_a_report_counts_if_its_client_disconnects_before_it_is_stored(agent: ControlAgent) -> None:
    register(agent)
    beat(agent)

    async def send_and_disconnect() -> None:
        change = ChangeRequest(status_path("indexer"), {"status": "down"})
        sent = asyncio.create_task(agent.resources.change(change))
        await asyncio.sleep(0)
        sent.cancel()
        await asyncio.wait([sent])

    agent.loop.run_until_complete(send_and_disconnect())
    register(agent, "other")  # it is stored after the report
    assert agent.statuses() == {"indexer": DOWN, "other": INITIALIZING}


KIND = """
import threading
from svcnode.probes.tcp import TcpProbe
from tests.support.nodes import beat, make_node

class SlowProbe(TcpProbe):
    thread = threading.current_thread()
"""


def test_a_new_kind_of_probe_is_imported_in_a_thread(
    agent: ControlAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_kind.py").write_text(KIND)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(KINDS, "slow", "slow_kind:SlowProbe")
    for step in (lambda: register(agent, "db", probe={"url": "slow://127.0.0.1:9"}), agent.restart):
        monkeypatch.delitem(sys.modules, "slow_kind", raising=False)
        step()
        assert "db" in agent.statuses()
        assert sys.modules["slow_kind"].SlowProbe.thread is not threading.main_thread()


# ---- restarts


def test_a_drained_node_stays_drained_after_a_restart(agent: ControlAgent) -> None:
    agent.send("PUT", "/v1/drain", {"reason": "kernel update"})
    agent.restart()
    assert (agent.node.condition.draining, agent.node.condition.drain_reason) == (True, "kernel update")
    agent.send("DELETE", "/v1/drain")
    assert not agent.node.condition.draining


def test_what_another_version_has_stored_is_ignored(agent: ControlAgent) -> None:
    agent.send("PUT", "/v1/drain", {"reason": "disk"})
    agent.stop()
    store = ControlStore(agent.path)
    stored = store.load()
    store.write({"other": Document({}, stored.revision + 1)}, stored.revision + 1)
    store.close()
    agent.start()
    assert agent.node.overrides.drains == {OWN: "disk"}


def ask(agent: ControlAgent, method: str, target: str, body: object = None, **headers: str) -> Response:
    path, _, query = target.partition("?")
    request = make_request(method, path, body, **headers)
    return agent.send_all([request._replace(query=query.encode())])[0]


ALL_PATHS = ["/v1/drain", "/v1/maintenance", "/v1/planned_maintenance", "/v1/services/db/maintenance"]


@pytest.mark.parametrize("path", ALL_PATHS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_without_other_replicas_nothing_can_be_asked_of_them(agent: ControlAgent, method: str, path: str) -> None:
    body = (
        {"duration": "1h"} if path.endswith("/maintenance") else window("2001-09-11T00:00:00Z", "2001-09-12T00:00:00Z")
    )
    body = {} if path == "/v1/drain" else body
    value = body if method == "PUT" else None
    assert ask(agent, method, f"{path}?all_replicas=true", value).code == 409
    for query in ("all_replicas=yes", "all_replicas=", "all_replicas=&all_replicas=true"):
        assert ask(agent, method, f"{path}?{query}", value).code == 400
    assert ask(agent, "GET", path).code == 404


class FakeWork:
    """A `WorkClient` that keeps the documents in memory."""

    def __init__(self) -> None:
        self.found: dict[WorkName, WorkDocument] = {}
        self.problem: RegistryError | None = None

    async def get(self, name: WorkName) -> WorkDocument | None:
        if self.problem is not None:
            raise self.problem
        return self.found.get(name)

    async def drain(self, by: str, reason: str) -> WorkDocument:
        return self._put(WorkName(KeyKind.DRAINS), WorkDocument(by, "replica:a", reason, 1e9))

    async def maintain(self, service_id: str | None, duration_s: float, *, by: str, reason: str) -> WorkDocument:
        document = WorkDocument(by, "replica:a", reason, 1e9, 1e9, 1e9 + duration_s)
        return self._put(WorkName(KeyKind.MAINTENANCE, service_id), document)

    async def plan(
        self, service_id: str | None, from_s: float, until_s: float, *, by: str, reason: str
    ) -> WorkDocument:
        document = WorkDocument(by, "replica:a", reason, 1e9, from_s, until_s)
        return self._put(WorkName(KeyKind.PLANNED_MAINTENANCE, service_id), document)

    async def end(self, name: WorkName) -> None:
        self.found.pop(name, None)

    def _put(self, name: WorkName, document: WorkDocument) -> WorkDocument:
        self.found[name] = document
        return document


@pytest.fixture
def work(agent: ControlAgent) -> FakeWork:
    work = FakeWork()
    agent.api._work = cast("WorkClient", work)
    return work


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/drain", {"reason": "x"}, WorkName(KeyKind.DRAINS)),
        ("/v1/maintenance", {"duration": "1h", "reason": "x"}, WorkName(KeyKind.MAINTENANCE)),
        ("/v1/services/a%2Fb/maintenance", {"duration": "1h", "reason": "x"}, WorkName(KeyKind.MAINTENANCE, "a/b")),
        (
            "/v1/services/db/planned_maintenance",
            {"from": "2001-09-11T00:00:00Z", "until": "2001-09-12T00:00:00Z", "reason": "x"},
            WorkName(KeyKind.PLANNED_MAINTENANCE, "db"),
        ),
    ],
)
def test_what_is_asked_of_all_replicas_is_in_the_registry_and_not_in_the_store(
    agent: ControlAgent, work: FakeWork, path: str, body: dict[str, str], name: WorkName
) -> None:
    made = ask(agent, "PUT", f"{path}?all_replicas=true&by=ann", body)
    assert made.code == 200
    assert {*work.found} == {name}
    fields = json.loads(made.body)
    assert (fields["by"], fields["via"], fields["reason"]) == ("ann", "replica:a", "x")
    assert fields["at"] == iso_time(1e9)
    assert ("until" in fields) is (name.kind is not KeyKind.DRAINS)
    assert json.loads(ask(agent, "GET", f"{path}?all_replicas=true").body) == fields
    assert ask(agent, "GET", path).code == 404
    assert ask(agent, "DELETE", f"{path}?all_replicas=true&by=ann").code == 204
    assert ask(agent, "GET", f"{path}?all_replicas=true").code == 404


def test_a_registry_that_does_not_answer_is_said_and_a_revision_is_refused(agent: ControlAgent, work: FakeWork) -> None:
    work.problem = RegistryUnreachableError("etcd: connection refused")
    assert ask(agent, "GET", "/v1/drain?all_replicas=true").code == 503
    headers = {"if_match": '"1"'}
    assert ask(agent, "PUT", "/v1/drain?all_replicas=true", {}, **headers).code == 400


@pytest.mark.parametrize("is_noticed_before", [True, False])
def test_a_longer_ttl_in_the_file_does_not_revive_a_heartbeat_that_has_expired(
    tmp_path: Path, is_noticed_before: bool
) -> None:
    agent = ControlAgent(tmp_path, {"indexer": True})
    beat(agent)
    agent.now_s += TTL_S + 1
    if not is_noticed_before:
        agent.restart()
    assert agent.statuses() == {"indexer": DOWN}
    agent.file_ttl_s = 100 * TTL_S
    agent.node.replace(define("indexer", ttl=agent.file_ttl_s))  # a reload
    assert agent.statuses() == {"indexer": DOWN}
    for _ in range(2):
        agent.restart()
        state = agent.node.state("indexer")
        assert (state.status.value, state.code) == (DOWN, ReasonCode.TTL_EXPIRED)
    beat(agent)
    agent.restart()
    assert agent.statuses() == {"indexer": UP}
    agent.close()


def test_after_a_restart_of_the_machine_an_old_heartbeat_is_no_evidence(
    agent: ControlAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(agent)
    beat(agent)
    register(agent, "job")
    beat(agent, "job", "down", reason="exit status 1")
    agent.now_s = 5.0  # the clock starts with the machine
    monkeypatch.setattr(store_module, "_boot_id", lambda: "another")
    agent.restart()
    assert agent.statuses() == {"indexer": INITIALIZING, "job": DOWN}
    register(agent, "other")  # stored in the new boot
    agent.restart()
    assert agent.statuses() == {"indexer": INITIALIZING, "job": DOWN, "other": INITIALIZING}


def test_a_stored_service_that_is_not_accepted_any_more_is_listed_and_never_up(
    agent: ControlAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(agent, probe="tcp://127.0.0.1:9", name="Database")
    database = sqlite3.connect(agent.path.with_name("control.db"))
    agent.stop()
    database.execute("UPDATE documents SET value = replace(value, 'tcp:', 'nonsense:')")
    database.commit()
    database.close()
    agent.start()
    assert agent.statuses() == {"indexer": INITIALIZING}
    agent.now_s += 2
    assert agent.statuses() == {"indexer": DOWN}


def test_a_store_that_cannot_be_read_makes_the_node_unhealthy(tmp_path: Path) -> None:
    (tmp_path / "control.db").write_bytes(b"not a database, but long enough to be read as one" * 100)
    agent = ControlAgent(tmp_path)
    assert agent.node.condition.issues == (STORE_ISSUE,)
    assert agent.send("PUT", "/v1/services/db", {"ttl": "5s"}).code == 503
    assert (tmp_path / "control.db").read_bytes().startswith(b"not a database")
    agent.close()


@contextmanager
def full_disk() -> Iterator[None]:
    def write(*_: object) -> None:
        raise StoreError("disk full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ControlStore, "write", write)
        yield


def test_a_change_that_cannot_be_stored_is_refused_and_changes_nothing(agent: ControlAgent) -> None:
    register(agent)
    with full_disk():
        assert register(agent, "other").code == 503
        assert beat(agent).code == 503
    assert agent.statuses() == {"indexer": INITIALIZING}
    assert beat(agent).code == 204


def test_a_change_for_the_worse_that_cannot_be_stored_is_in_effect_and_stored_later(agent: ControlAgent) -> None:
    for service_id in ("indexer", "job", "db"):
        register(agent, service_id)
    beat(agent)
    beat(agent, "job")
    beat(agent, "db", "down")
    with full_disk():
        responses = [
            beat(agent, status="down", reason="stopped"),
            beat(agent, "job", "initializing"),
            beat(agent, "db", "initializing"),
            agent.send("PUT", "/v1/issues/disk", {"reason": "full"}),
            *(agent.send("PUT", "/v1/drain") for _ in range(2)),
            beat(agent),
            agent.send("DELETE", "/v1/drain"),
        ]
        assert {response.code for response in responses} == {503}
        assert agent.statuses() == {"indexer": DOWN, "job": INITIALIZING, "db": DOWN}
        assert agent.node.condition.issues == ("disk: full",)
        assert agent.node.condition.draining
    assert beat(agent, "job").code == 204
    agent.restart()
    assert agent.statuses() == {"indexer": DOWN, "job": UP, "db": DOWN}
    assert agent.node.condition.issues == ("disk: full",)
    assert agent.node.condition.draining


def test_two_nodes_cannot_use_one_store(agent: ControlAgent) -> None:
    register(agent)
    other = make_node("other", version="v1.0.0")
    second = Resources(other, ControlStore(agent.path), define_service)
    agent.loop.run_until_complete(second.start())
    assert other.condition.issues == (STORE_ISSUE,)


class SharedSource:
    """Registers services that the node may also have from elsewhere."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self.ids: list[str] = []

    def __contains__(self, service_id: object, /) -> bool:
        return service_id in self.ids

    def add(self, definition: Definition, /, *, registered_at_s: float | None = None) -> None:
        self.ids.append(definition.service.id)
        self.replace(definition)

    def replace(self, definition: Definition, /) -> None:
        self._node.replace(definition)

    def deregister(self, service_id: str, /) -> None:
        self.ids.remove(service_id)


def test_a_service_that_the_node_has_from_elsewhere_can_be_registered_and_stays_when_it_is_removed(
    tmp_path: Path,
) -> None:
    node = make_node("validator-7", version="v1.0.0")
    node.register("indexer")
    service_list = SharedSource(node)

    async def register_and_remove() -> None:
        resources = Resources(node, ControlStore(tmp_path / "control.db"), define_service, service_list)
        await resources.start()
        await resources.change(ChangeRequest("services/indexer", {"ttl": "5s", "name": "Indexer"}))
        assert (service_list.ids, [service.name for service, _ in node]) == (["indexer"], ["Indexer"])
        await resources.change(ChangeRequest("services/indexer", None))
        assert (service_list.ids, len(node)) == ([], 1)
        await resources.close()

    asyncio.run(register_and_remove())


# ---- bad requests


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "pointer"),
    [
        ("GET", "/v2", None, 404, None),
        ("POST", "/v1/services/indexer", None, 405, None),
        ("GET", "/v1/services/unknown", None, 404, None),
        ("PUT", "/v1/services/indexer", ["ttl"], 400, ""),
        *(
            (
                "PUT",
                "/v1/services/a",
                {"probe": {"url": "http://a", "require": [f"/x < {number}"]}},
                400,
                "/probe/require",
            )
            for number in ("1e99999999", "1e9999999999999999999", "1" * 200)
        ),
        ("PUT", "/v1/services/%0a", {"ttl": "5s"}, 400, None),
        ("PUT", "/v1/services/%ff", {"ttl": "5s"}, 400, None),
        ("PUT", "/v1/services/indexer/status", {"status": "green"}, 400, "/status"),
        ("PUT", "/v1/services/indexer/status", {"status": 5}, 400, "/status"),
        ("PUT", "/v1/services/indexer/status", {"status": "up", "a/b": 1}, 400, "/a~1b"),
        ("PUT", "/v1/services/indexer/status", {"status": "up", "code": "mine"}, 400, "/code"),
        ("PUT", "/v1/services/indexer/status", {"status": "up", "reason": "x" * 2000}, 400, "/reason"),
        ("PUT", "/v1/maintenance", {"duration": "1h", "reason": "a\u0007b"}, 400, "/reason"),
        ("PUT", "/v1/maintenance", {}, 400, "/duration"),
        ("PUT", "/v1/maintenance", {"duration": "soon"}, 400, "/duration"),
        ("PUT", "/v1/maintenance", {"duration": "0s"}, 400, "/duration"),
        ("PUT", "/v1/maintenance", {"duration": "31d"}, 400, "/duration"),
        ("PUT", "/v1/maintenance", {"duration": "1h", "by": "x" * 101}, 400, "/by"),
        ("PUT", "/v1/maintenance", {"duration": "1h", "by": "two\nlines"}, 400, "/by"),
        ("PUT", "/v1/maintenance", {"duration": "1h", "why": "x"}, 400, "/why"),
        ("PUT", "/v1/planned_maintenance", {"until": "2001-09-10T00:00:00Z"}, 400, "/from"),
        ("PUT", "/v1/planned_maintenance", {"from": "2001-09-10T00:00:00Z"}, 400, "/until"),
        ("PUT", "/v1/planned_maintenance", window("2001-09-10T00:00:00", "2001-09-10T01:00:00Z"), 400, "/from"),
        ("PUT", "/v1/planned_maintenance", window("2001-09-10T00:00:00Z", "+2h"), 400, "/until"),
        ("PUT", "/v1/planned_maintenance", window("2001-09-10T00:00:00Z", "2001-09-11T01:00:00Z", by="\n"), 400, "/by"),
        ("PUT", "/v1/planned_maintenance", window("2001-09-08T00:00:00Z", "2001-09-09T00:00:00Z"), 422, "/until"),
        ("PUT", "/v1/planned_maintenance", window("2001-09-11T00:00:00Z", "2001-09-11T00:00:00Z"), 422, "/until"),
        ("PUT", "/v1/planned_maintenance", window("2001-09-11T00:00:00Z", "2001-10-11T00:00:01Z"), 422, "/until"),
        ("PUT", "/v1/planned_maintenance", window("2003-09-11T00:00:00Z", "2003-09-11T01:00:00Z"), 422, "/from"),
    ],
)
def test_a_bad_request_is_refused_with_the_place_of_the_error(  # noqa: PLR0917  one per column
    agent: ControlAgent, method: str, path: str, body: object, code: int, pointer: str | None
) -> None:
    register(agent)
    response = agent.send(method, path, body)
    assert (response.code, body_of(response).get("pointer")) == (code, pointer)
    assert agent.statuses() == {"indexer": INITIALIZING}
    assert (agent.node.maintenance.current(), agent.node.maintenance.next_planned()) == (None, None)


ODD_REASONS = [
    *(b"null", b"5", b'["a"]', b'{"a": 1}', b'"a\\ud800\\u0007\\n"', b'"a\n\xff"', b'"%s"' % (b"x" * 60_000), b'""')
]
NOT_JSON = [b"NaN", b"9" * 5_000, b"[" * 200_000 + b"]" * 200_000, b'"a", "reason": "b"', b'"a']


@pytest.mark.parametrize("reason", [*ODD_REASONS, *NOT_JSON], ids=range(len(ODD_REASONS + NOT_JSON)))
@pytest.mark.parametrize("status", [b"down", b"initializing"])
def test_a_report_that_makes_a_service_worse_is_not_refused_for_its_form(
    agent: ControlAgent, status: bytes, reason: bytes
) -> None:
    register(agent)
    beat(agent)
    body = b'{"status": "%s", "reason": %s, "code": "mine", "other": 1}' % (status, reason)
    path = "/v1/services/indexer/status"
    assert agent.send_all([Request("PUT", path.encode(), b"", {}, body)])[0].code == 204
    stored = body_of(agent.send("GET", path))
    state = agent.node.state("indexer")
    assert state.status.value.lower() == stored["status"] == status.decode()
    assert (state.code == "other") == (reason not in NOT_JSON)
    assert state.reason == stored.get("reason", "")
    assert state.reason.isprintable()
    assert len(state.reason) <= MAX_REASON_CHARS


@pytest.mark.parametrize(
    "body", [b'{"reason": %s}' % reason for reason in ODD_REASONS] + [b"disk \xff\n", b"[]", b"{", b""]
)
@pytest.mark.parametrize("path", ["/v1/issues/disk", "/v1/drain"])
def test_an_issue_and_a_drain_are_not_refused_for_their_form(agent: ControlAgent, path: str, body: bytes) -> None:
    assert agent.send_all([Request("PUT", path.encode(), b"", {}, body)])[0].code == 201
    assert agent.node.health == 503
    reason = body_of(agent.send("GET", path)).get("reason", "")
    assert reason.isprintable()
    assert len(reason) <= MAX_REASON_CHARS
    assert all(issue.isprintable() for issue in agent.node.condition.issues)
    assert agent.send("DELETE", path).code == 204
    assert agent.node.health == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/services/indexer/status", {"status": "down"}),
        ("/v1/services/indexer/maintenance", {"duration": "1h", "by": "s3cr3t-of-the-file"}),
        ("/v1/maintenance", {"duration": "1h"}),
        ("/v1/issues/disk", {}),
        ("/v1/drain", {}),
    ],
)
def test_a_secret_in_a_reason_is_neither_returned_nor_stored(
    agent: ControlAgent, path: str, fields: dict[str, str]
) -> None:
    register(agent)
    with SecretScope() as secrets:
        register_secret("s3cr3t-of-the-file")
    responses = [
        agent.send("PUT", path, {**fields, "reason": "login with s3cr3t-of-the-file"}),
        agent.send("GET", path),
    ]
    assert [response.code for response in responses] in ([201, 200], [204, 200])
    assert body_of(responses[1])["reason"] == "login with ***"
    stored = b"".join(file.read_bytes() for file in agent.path.parent.iterdir())
    assert b"s3cr3t" not in stored + responses[0].body + responses[1].body
    secrets.release()


def maintain(agent: ControlAgent, service_id: str | None = "indexer", **fields: str) -> Response:
    path = "/v1/maintenance" if service_id is None else f"/v1/services/{service_id}/maintenance"
    return agent.send("PUT", path, {"duration": "2h", **fields})


def until_s(response: Response) -> float:
    return datetime.fromisoformat(body_of(response)["until"]).timestamp()


@pytest.mark.parametrize("service_id", ["indexer", None])
def test_maintenance_survives_a_restart_and_is_not_extended_by_it(agent: ControlAgent, service_id: str | None) -> None:
    register(agent)
    assert maintain(agent, service_id, by="alice", reason="new disk").code == 201
    agent.now_s += 3600
    agent.restart()
    maintenance = agent.node.maintenance.current(service_id)
    assert maintenance is not None
    assert (maintenance.by, maintenance.reason) == ("alice", "new disk")
    assert maintenance.ends_at_s == 1000.0 + 7200
    agent.now_s += 3600
    assert agent.node.maintenance.current(service_id) is None
    agent.restart()
    assert agent.node.maintenance.current(service_id) is None


@pytest.mark.parametrize("step_s", [-86_400.0, 86_400.0])
def test_setting_the_wall_clock_moves_the_shown_end_of_maintenance_and_not_its_length(
    agent: ControlAgent, step_s: float
) -> None:
    register(agent)
    before = until_s(maintain(agent))
    agent.wall_offset_s += step_s
    agent.now_s += 600
    for is_restarted in (False, True):
        if is_restarted:
            agent.restart()  # of the node; the machine goes on, and its monotonic clock with it
        maintenance = agent.node.maintenance.current("indexer")
        assert maintenance is not None
        assert maintenance.ends_at_s == 1000.0 + 7200
        assert until_s(agent.send("GET", "/v1/services/indexer/maintenance")) == before + step_s
        listed = body_of(agent.send("GET", "/v1/services/indexer"))["maintenance"]
        assert listed["until"] == body_of(agent.send("GET", "/v1/services/indexer/maintenance"))["until"]
    agent.now_s = 1000.0 + 7200
    assert agent.node.maintenance.current("indexer") is None


def test_after_a_restart_of_the_machine_maintenance_ends_by_the_wall_clock(
    agent: ControlAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(agent)
    maintain(agent)

    def left_s_after_boot(wall_offset_s: float) -> float:
        monkeypatch.setattr(store_module, "_boot_id", lambda: f"of {wall_offset_s}")
        agent.now_s, agent.wall_offset_s = 5.0, wall_offset_s
        agent.restart()
        maintenance = agent.node.maintenance.current("indexer")
        return 0.0 if maintenance is None else maintenance.ends_at_s - agent.now_s

    began_s = 1e9 + 1000.0 - 5.0
    assert left_s_after_boot(began_s + 600) == pytest.approx(6600)
    assert left_s_after_boot(began_s + 3600) == pytest.approx(3600)
    assert left_s_after_boot(began_s - 86_400) == pytest.approx(7200)  # a wrong clock does not make it longer
    assert left_s_after_boot(began_s + 7200) == 0.0


def test_maintenance_is_listed_with_the_service_and_deleted_at_its_end(agent: ControlAgent) -> None:
    register(agent)
    path = "/v1/services/indexer"
    assert body_of(agent.send("GET", path))["maintenance"] is None
    document = body_of(maintain(agent, by="alice", duration="30ms"))
    assert document.keys() == {"duration", "by", "until", "revision"}
    expected = {"until": document["until"], "by": "alice", "reason": "", "source": "control"}
    assert body_of(agent.send("GET", path))["maintenance"] == expected
    assert body_of(agent.send("GET", "/v1"))["maintenance"] is None
    assert agent.send("GET", f"{path}/maintenance").code == 200
    agent.now_s += 0.03
    assert agent.send("GET", f"{path}/maintenance").code == 404

    async def wait_until_deleted() -> None:
        async with asyncio.timeout(60):
            while agent.resources.get("services/indexer/maintenance") is not None:  # noqa: ASYNC110  a timer deletes it
                await asyncio.sleep(0.01)

    agent.loop.run_until_complete(wait_until_deleted())


def in_hours(agent: ControlAgent, hours: float) -> str:
    return iso_time(agent.now_s + agent.wall_offset_s + hours * 3600)


def plan(agent: ControlAgent, service_id: str | None, begin: float, end: float, **fields: str) -> Response:
    """Maintenance from and to a number of hours from now."""
    path = "/v1/planned_maintenance" if service_id is None else f"/v1/services/{service_id}/planned_maintenance"
    return agent.send("PUT", path, window(in_hours(agent, begin), in_hours(agent, end), **fields))


@pytest.mark.parametrize("service_id", ["indexer", None])
def test_planned_maintenance_survives_restarts_and_is_on_between_its_times(
    agent: ControlAgent, monkeypatch: pytest.MonkeyPatch, service_id: str | None
) -> None:
    register(agent)
    times = window(in_hours(agent, 1), in_hours(agent, 3), by="alice", reason="new disk")
    assert plan(agent, service_id, 1, 3, by="alice", reason="new disk").code == 201
    again = plan(agent, service_id, 1, 3, by="alice", reason="new disk")
    assert (again.code, body_of(again)) == (200, {**times, "revision": body_of(again)["revision"]})
    path = "/v1" if service_id is None else f"/v1/services/{service_id}"
    seen = []
    for hours in range(4):
        if hours == 2:  # the machine is restarted, too: only the wall clock goes on
            monkeypatch.setattr(store_module, "_boot_id", lambda: "another")
            agent.wall_offset_s += agent.now_s - 5.0
            agent.now_s = 5.0
        agent.restart()
        fields, document = body_of(agent.send("GET", path)), agent.send("GET", f"{path}/planned_maintenance")
        current = fields["maintenance"]
        seen.append((fields["planned_maintenance"], current and current["source"], document.code))
        assert current is None or (current["until"], current["reason"]) == (times["until"], "new disk")
        agent.now_s += 3600
    assert seen == [(times, None, 200), (None, "planned", 200), (None, "planned", 200), (None, None, 404)]


@pytest.mark.parametrize("service_id", ["indexer", None])
def test_who_plans_and_cancels_maintenance_is_a_change_of_its_own(agent: ControlAgent, service_id: str | None) -> None:
    register(agent)
    plan(agent, service_id, 1, 3, by="alice", reason="new disk")
    plan(agent, service_id, 1, 3, by="alice", reason="new disk")
    path = "/v1/planned_maintenance" if service_id is None else "/v1/services/indexer/planned_maintenance"
    signed(agent, "DELETE", f"{path}?by=bob")
    plan(agent, service_id, -1, 3)
    signed(agent, "DELETE", path)  # it has begun: this is an end
    planned, cancelled, begun, ended = [change for change in agent.changes if "maintenance" in change.kind.value]
    assert {change.service_id for change in (planned, cancelled, begun, ended)} == {service_id}
    assert planned.kind is ChangeKind.MAINTENANCE_PLANNED
    assert "alice" in planned.reason
    assert "new disk" in planned.reason
    assert (cancelled.kind, "bob" in cancelled.by) == (ChangeKind.MAINTENANCE_CANCELLED, True)
    assert (begun.kind, ended.kind) == (ChangeKind.MAINTENANCE, ChangeKind.MAINTENANCE_ENDED)


def test_planned_maintenance_begins_and_is_deleted_without_a_request(agent: ControlAgent) -> None:
    register(agent)
    plan(agent, "indexer", 1, 2)

    async def wait_until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110  a timer does it
                await asyncio.sleep(0.01)

    document = agent.send("GET", "/v1/services/indexer/planned_maintenance")
    agent.now_s += 3600 - 0.03
    agent.restart()  # its timers are for the time that is left
    assert agent.node.maintenance.current("indexer") is None
    agent.now_s += 0.03
    agent.loop.run_until_complete(wait_until(lambda: agent.node.maintenance.current("indexer") is not None))
    agent.now_s += 3600
    agent.restart()
    agent.loop.run_until_complete(wait_until(lambda: agent.resources.revision > body_of(document)["revision"]))
    assert "services/indexer/planned_maintenance" not in agent.resources._documents


def test_planned_maintenance_and_one_from_now_on_do_not_replace_each_other(agent: ControlAgent) -> None:
    register(agent)
    plan(agent, "indexer", 1, 2)
    plan(agent, None, 5, 6)
    maintain(agent, duration="10m")
    assert agent.send("DELETE", "/v1/services/indexer/maintenance").code == 204
    maintain(agent, duration="90m")
    agent.now_s += 3601
    agent.restart()
    assert body_of(agent.send("GET", "/v1/services/indexer"))["maintenance"]["source"] == "planned", "it ends last"
    assert body_of(agent.send("GET", "/v1/services/indexer"))["planned_maintenance"] is not None, "that of the node"
    assert agent.send("DELETE", "/v1/services/indexer/planned_maintenance").code == 204
    assert body_of(agent.send("GET", "/v1/services/indexer"))["maintenance"]["source"] == "control"
    plan(agent, "indexer", 1, 2)
    agent.send("DELETE", "/v1/services/indexer")
    register(agent)
    assert agent.send("GET", "/v1/services/indexer/planned_maintenance").code == 404


@pytest.mark.parametrize("service_id", ["status", "maintenance"])
def test_a_service_may_have_the_name_of_a_child(agent: ControlAgent, service_id: str) -> None:
    assert register(agent, service_id).code == 201
    assert beat(agent, service_id).code == 204
    agent.restart()
    assert agent.statuses() == {service_id: UP}
    assert agent.send("PUT", f"/v1/issues/{service_id}").code == 201


def test_random_requests_steps_of_the_clock_and_restarts_agree_with_a_plain_dict(tmp_path: Path) -> None:
    codes = compare_random_requests(tmp_path, 1000, random.Random())
    assert max(codes) < 500
    assert {200, 201, 204, 400, 404, 409, 412} <= set(codes)


# ---- who and why


def signed(agent: ControlAgent, method: str, target: str, body: object = None, *, user: str = "root") -> None:
    path, _, query = target.partition("?")
    request = Request(
        method, path.encode(), query.encode(), {}, b"" if body is None else json.dumps(body).encode(), user
    )
    [response] = agent.send_all([request])
    assert response.code < 300


def test_every_change_says_who_has_made_it_and_why(agent: ControlAgent) -> None:
    changes: list[tuple[str, str]] = []
    agent.node.subscribe(lambda change: changes.append((change.reason, change.by)))
    signed(agent, "PUT", "/v1/services/db", {"ttl": TTL})
    signed(agent, "PUT", "/v1/services/db/status", {"status": "up"}, user="db")
    signed(agent, "PUT", "/v1/drain?by=ann", {"reason": "kernel"})
    signed(agent, "DELETE", "/v1/drain?by=ann&reason=done")
    signed(agent, "PUT", "/v1/issues/disk?by=root", {"reason": "full"})
    signed(agent, "DELETE", "/v1/issues/disk", user="ops")
    signed(agent, "DELETE", "/v1/services/db?reason=moved")
    assert changes == [
        ("", "root"),
        ("", "db"),
        ("draining: kernel (by ann (user root))", ""),
        ("no longer draining", "ann (user root): done"),
        ("issue: disk: full (by root)", ""),
        ("issue cleared: disk: full (by root)", "ops"),
        ("", "root: moved"),
    ]


def test_what_is_in_effect_says_who_has_set_it_also_after_a_restart(agent: ControlAgent) -> None:
    register(agent)
    signed(agent, "PUT", "/v1/drain?by=ann", {"reason": "kernel"})
    signed(agent, "PUT", "/v1/maintenance", {"duration": "2h", "by": "bob"})
    signed(agent, "PUT", "/v1/services/indexer/status?by=eve", {"status": "down", "reason": "no peers"})
    for _ in range(2):
        maintenance = agent.node.maintenance.current()
        assert agent.node.condition.drain_reason == "kernel (by ann (user root))"
        assert maintenance is not None
        assert maintenance.by == "bob (user root)"
        assert agent.node.state("indexer").reason == "no peers (by eve (user root))"
        agent.restart()


@pytest.mark.parametrize("by", ["%FF%00" * 500, "x" * 10_000, "%1b[2J"])
def test_bad_news_is_not_refused_for_the_name_of_its_author(agent: ControlAgent, by: str) -> None:
    signed(agent, "PUT", f"/v1/drain?by={by}", {"reason": "kernel"})
    assert agent.node.condition.draining
    assert agent.node.condition.drain_reason.isprintable()
    assert len(agent.node.condition.drain_reason) <= MAX_REASON_CHARS


# ---- services that are removed when they are silent


def tick(agent: ControlAgent, *, after_s: float) -> None:
    """Let the time pass as the node sees it, and each removal that is due happen."""
    end_s = agent.now_s + after_s
    while agent.now_s < end_s:
        agent.now_s = min(end_s, agent.now_s + TICK_S)
        agent.loop.run_until_complete(look_for_silence(agent))


async def look_for_silence(agent: ControlAgent) -> None:
    agent.resources._tick()
    if agent.resources._writer is not None:
        await asyncio.wait([agent.resources._writer])


@pytest.fixture
def worker(agent: ControlAgent) -> ControlAgent:
    register(agent, "worker", ttl=TTL, deregister_after="60s")
    register(agent, "indexer", ttl=TTL)
    return agent


def test_a_silent_service_is_removed_and_it_is_said_why(worker: ControlAgent) -> None:
    authors: list[str] = []
    worker.node.subscribe(lambda change: authors.append(change.by) if change.after is None else None)
    beat(worker, "worker")
    tick(worker, after_s=59.0)
    assert worker.statuses() == {"worker": DOWN, "indexer": DOWN}
    tick(worker, after_s=2.0)
    assert worker.statuses() == {"indexer": DOWN}
    assert authors == ["svcnode: no report for 60s"]
    worker.restart()
    assert worker.statuses() == {"indexer": DOWN}


def test_a_report_or_a_running_job_is_no_silence(worker: ControlAgent) -> None:
    for status in ("up", "down", "initializing"):
        beat(worker, "worker", status)
        tick(worker, after_s=50.0)
    assert "worker" in worker.statuses()
    worker.loop.run_until_complete(worker.resources.change(ChangeRequest(run_path("worker"), {})))
    tick(worker, after_s=50.0)
    assert "worker" in worker.statuses()


def test_silence_counts_only_while_the_node_listens(worker: ControlAgent) -> None:
    tick(worker, after_s=50.0)
    worker.restart()
    tick(worker, after_s=50.0)
    assert "worker" in worker.statuses()
    worker.stand_still(3600.0)
    tick(worker, after_s=50.0)
    assert "worker" in worker.statuses()
    tick(worker, after_s=11.0)
    assert "worker" not in worker.statuses()


def test_silence_does_not_count_in_maintenance(worker: ControlAgent) -> None:
    worker.send("PUT", "/v1/services/worker/maintenance", {"duration": "2h"})
    tick(worker, after_s=100.0)
    worker.send("DELETE", "/v1/services/worker/maintenance")
    tick(worker, after_s=58.0)
    assert "worker" in worker.statuses()
    tick(worker, after_s=4.0)
    assert "worker" not in worker.statuses()


def test_a_report_that_waits_with_the_removal_prevents_it(worker: ControlAgent) -> None:
    tick(worker, after_s=59.0)
    worker.now_s += TICK_S
    report = make_request("PUT", "/v1/services/worker/status", {"status": "up"})

    async def report_and_look() -> None:
        reported = asyncio.create_task(worker.api.handle(report))
        await asyncio.sleep(0)
        await look_for_silence(worker)
        assert (await reported).code == 204

    worker.loop.run_until_complete(report_and_look())
    assert worker.statuses()["worker"] == UP


def test_a_service_that_cannot_be_removed_stays_and_is_removed_later(
    worker: ControlAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ControlStore, "write", mock.Mock(side_effect=StoreError("disk full")))
        tick(worker, after_s=70.0)
        assert "worker" in worker.statuses()
    tick(worker, after_s=1.0)
    assert "worker" not in worker.statuses()


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": TTL, "deregister_after": "5s"},
        {"probe": "tcp://127.0.0.1:1", "deregister_after": "1h"},
        {"ttl": TTL, "deregister_after": "soon"},
    ],
)
def test_a_removal_that_makes_no_sense_is_refused(agent: ControlAgent, options: dict[str, object]) -> None:
    response = register(agent, "worker", **options)
    assert (response.code, json.loads(response.body)["pointer"]) == (400, "/deregister_after")


# ---- what a restart tells


@pytest.mark.parametrize("status", ["up", "down", "initializing"])
def test_a_restart_is_no_change_of_a_service_that_reports(agent: ControlAgent, status: str) -> None:
    """Its last report is younger than its ttl, and its registration much older."""
    register(agent)
    for _ in range(10):
        agent.now_s += TTL_S / 3
        beat(agent, status=status)
    before = agent.node.state("indexer")
    agent.stop()
    seen: list[str] = []
    with mock.patch.object(NodeState, "_on_status", autospec=True) as on_status:
        on_status.side_effect = lambda _, __, entry, ___: seen.append(entry.state.status.value)
        agent.start()
        after = agent.node.state("indexer")
    assert seen == ([] if after.status.value == INITIALIZING else [after.status.value])
    assert (after.status, after.reason) == (before.status, before.reason)
