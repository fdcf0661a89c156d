"""The documents of the control socket and the node agree, also after a restart at any time."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from svcnode.api.spec import Request
from svcnode.control import store as store_module
from svcnode.control.api import ControlApp
from svcnode.control.resources import STORE_ISSUE, Resources
from svcnode.control.store import ControlStore
from svcnode.core.errors import ControlError, StoreError, SvcnodeError
from svcnode.core.model import Health
from svcnode.definition import define
from svcnode.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from svcnode.api.spec import Response
    from svcnode.definition import Definition

TTL_S = 15.0
UP, INITIALIZING, DOWN = "Up", "Initializing", "Down"


def define_service(service_id: str, options: Mapping[str, Any]) -> Definition:
    try:
        return define(service_id, **options)
    except SvcnodeError as exc:
        raise ControlError(400, str(exc), pointer="") from exc


class Agent:
    """A node with its control API on a store in a folder, on a clock that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "control.db"
        self.now_s = 1000.0
        self.wall_offset_s = 0.0
        self.loop = asyncio.new_event_loop()
        self.configured: dict[str, bool] = {}
        self.start()

    def start(self) -> None:
        self.node = Node("validator-7", version="v1.0.0", clock=lambda: self.now_s, wall_clock=self._wall_s)
        self.resources = Resources(self.node, ControlStore(self.path), define_service)
        self.api = ControlApp(self.node, self.resources, self._reload)
        self.resources.set_configured(self.configured)
        for service_id, reports in self.configured.items():
            if reports:
                self.node.register(service_id, ttl=TTL_S)
            else:
                self.node.register(service_id)
        self.loop.run_until_complete(self.resources.start())

    def _wall_s(self) -> float:
        return 1e9 + self.now_s + self.wall_offset_s

    async def _reload(self) -> str:
        return "no service changed"

    def stop(self) -> None:
        self.loop.run_until_complete(self.resources.close())

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self.stop()
        self.loop.close()

    def send(self, method: str, path: str, body: object = None, **headers: str) -> Response:
        return self.send_all([(method, path, body)], **headers)[0]

    def send_all(self, requests: list[tuple[str, str, object]], **headers: str) -> list[Response]:
        """At the same time, so that they share a transaction."""
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}

        async def respond() -> list[Response]:
            return await asyncio.gather(
                *(
                    self.api.handle(
                        Request(method, path.encode(), b"", named, b"" if body is None else json.dumps(body).encode())
                    )
                    for method, path, body in requests
                )
            )

        return self.loop.run_until_complete(respond())

    def statuses(self) -> dict[str, str]:
        return {service.id: state.status.value for service, state in self.node}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    yield agent
    agent.close()


def register(agent: Agent, service_id: str = "indexer", **options: object) -> Response:
    return agent.send("PUT", f"/v1/services/{service_id}", options or {"ttl": TTL_S})


def beat(agent: Agent, service_id: str = "indexer", status: str = "up", **fields: str) -> Response:
    return agent.send("PUT", f"/v1/services/{service_id}/status", {"status": status, **fields})


def body_of(response: Response) -> Any:
    return json.loads(response.body)


# ---- services and heartbeats


def test_a_registered_service_is_listed_and_starts_without_evidence(agent: Agent) -> None:
    assert register(agent).code == 201
    assert agent.statuses() == {"indexer": INITIALIZING}


def test_a_heartbeat_makes_a_service_up_until_its_ttl_is_over(agent: Agent) -> None:
    register(agent)
    assert beat(agent).code == 204
    agent.now_s += TTL_S - 0.1
    assert agent.statuses() == {"indexer": UP}
    agent.now_s += 0.2
    assert agent.statuses() == {"indexer": DOWN}


@pytest.mark.parametrize(("status", "expected"), [("up", UP), ("initializing", INITIALIZING), ("down", DOWN)])
def test_a_service_reports_its_status_with_reason_and_code(agent: Agent, status: str, expected: str) -> None:
    register(agent)
    beat(agent, status=status, reason="replaying", code="x_replay")
    state = agent.node.state("indexer")
    assert (state.status.value, state.reason, state.code) == (expected, "replaying", "x_replay")


def test_deregistering_removes_a_service_and_can_be_repeated(agent: Agent) -> None:
    register(agent)
    assert [agent.send("DELETE", "/v1/services/indexer").code for _ in range(2)] == [204, 204]
    assert agent.statuses() == {}
    assert beat(agent).code == 404


def test_a_service_that_is_registered_again_starts_without_evidence(agent: Agent) -> None:
    register(agent)
    beat(agent)
    agent.send_all([("DELETE", "/v1/services/indexer", None), ("PUT", "/v1/services/indexer", {"ttl": TTL_S})])
    assert agent.statuses() == {"indexer": INITIALIZING}
    agent.restart()
    assert agent.statuses() == {"indexer": INITIALIZING}


def test_registering_the_same_service_again_changes_nothing(agent: Agent) -> None:
    first = register(agent)
    beat(agent)
    second = register(agent)
    assert (second.code, body_of(second)["revision"]) == (200, body_of(first)["revision"])
    assert agent.statuses() == {"indexer": UP}


def test_a_service_with_a_probe_cannot_report_its_status(agent: Agent) -> None:
    register(agent, probe="tcp://127.0.0.1:9")
    assert beat(agent).code == 409
    assert agent.statuses() == {"indexer": INITIALIZING}


def test_a_service_of_the_file_cannot_be_changed_or_removed_but_may_report(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.configured = {"indexer": True, "db": False}
    agent.restart()
    assert register(agent).code == 409
    assert agent.send("DELETE", "/v1/services/indexer").code == 409
    assert beat(agent).code == 204
    assert beat(agent, "db").code == 409
    assert agent.statuses() == {"indexer": UP, "db": INITIALIZING}
    agent.restart()
    assert agent.statuses() == {"indexer": UP, "db": INITIALIZING}
    agent.close()


def test_a_service_of_the_file_takes_precedence_until_the_file_no_longer_has_it(agent: Agent) -> None:
    register(agent, ttl=TTL_S, name="of the socket")
    agent.configured = {"indexer": True}
    agent.restart()
    assert [service.name for service, _ in agent.node] == ["indexer"]
    agent.configured = {}
    agent.restart()
    assert [service.name for service, _ in agent.node] == ["of the socket"]


# ---- revisions


def test_a_change_with_if_match_is_made_only_at_that_revision(agent: Agent) -> None:
    revision = body_of(register(agent))["revision"]
    path, options = "/v1/services/indexer", {"ttl": 30}
    assert agent.send("PUT", path, options, if_match=f'"{revision + 1}"').code == 412
    assert agent.send("PUT", path, options, if_match=f'"{revision}"').code == 200
    assert agent.send("DELETE", path, if_match=f'"{revision}"').code == 412
    assert agent.send("PUT", path, options, if_none_match="*").code == 412
    assert agent.send("DELETE", path, if_match="*").code == 204
    assert agent.send("DELETE", path, if_match="*").code == 412


# ---- the node


def test_an_issue_makes_the_node_unhealthy_until_it_is_cleared(agent: Agent) -> None:
    assert agent.send("PUT", "/v1/issues/disk", {"reason": "full"}).code == 201
    assert (agent.node.health, agent.node.condition.issues) == (Health.UNHEALTHY, ("disk: full",))
    agent.send("PUT", "/v1/issues/disk", {"reason": "nearly full"})
    assert agent.node.condition.issues == ("disk: nearly full",)
    agent.restart()
    assert agent.node.condition.issues == ("disk: nearly full",)
    agent.send("DELETE", "/v1/issues/disk")
    assert agent.node.health is Health.HEALTHY


def test_a_drained_node_stays_drained_after_a_restart(agent: Agent) -> None:
    agent.send("PUT", "/v1/drain")
    agent.restart()
    assert agent.node.condition.draining
    agent.send("DELETE", "/v1/drain")
    assert not agent.node.condition.draining


# ---- restarts


def test_a_restart_does_not_extend_the_deadline_of_a_heartbeat(agent: Agent) -> None:
    register(agent)
    beat(agent)
    agent.now_s += TTL_S - 1
    agent.restart()
    assert agent.statuses() == {"indexer": UP}
    agent.now_s += 2
    assert agent.statuses() == {"indexer": DOWN}
    agent.restart()
    assert agent.statuses() == {"indexer": DOWN}


def test_after_a_restart_of_the_machine_an_old_heartbeat_is_no_evidence(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
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
    agent: Agent, monkeypatch: pytest.MonkeyPatch
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
    agent = Agent(tmp_path)
    assert agent.node.condition.issues == (STORE_ISSUE,)
    assert agent.send("PUT", "/v1/services/db", {"ttl": 5}).code == 503
    assert (tmp_path / "control.db").read_bytes().startswith(b"not a database")
    agent.close()


def test_a_change_that_cannot_be_stored_is_refused_and_changes_nothing(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(agent)

    def write(*_: object) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(ControlStore, "write", write)
        assert register(agent, "other").code == 503
        assert beat(agent).code == 503
    assert agent.statuses() == {"indexer": INITIALIZING}
    assert beat(agent).code == 204


def test_two_nodes_cannot_use_one_store(agent: Agent) -> None:
    register(agent)
    other = Node("other", version="v1.0.0")
    second = Resources(other, ControlStore(agent.path), define_service)
    agent.loop.run_until_complete(second.start())
    assert other.condition.issues == (STORE_ISSUE,)


# ---- bad requests


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "pointer"),
    [
        ("GET", "/v2", None, 404, None),
        ("POST", "/v1/services/indexer", None, 405, None),
        ("GET", "/v1/services/unknown", None, 404, None),
        ("PUT", "/v1/services/indexer", ["ttl"], 400, ""),
        ("PUT", "/v1/services/%0a", {"ttl": 5}, 400, None),
        ("PUT", "/v1/services/%ff", {"ttl": 5}, 400, None),
        ("PUT", "/v1/services/indexer/status", {"status": "green"}, 400, "/status"),
        ("PUT", "/v1/services/indexer/status", {"status": 5}, 400, "/status"),
        ("PUT", "/v1/services/indexer/status", {"status": "up", "a/b": 1}, 400, "/a~1b"),
        ("PUT", "/v1/services/indexer/status", {"status": "up", "code": "mine"}, 400, "/code"),
        ("PUT", "/v1/services/indexer/status", {"status": "up", "reason": "x" * 2000}, 400, "/reason"),
        ("PUT", "/v1/issues/disk", {"reason": "a\u0007b"}, 400, "/reason"),
    ],
)
def test_a_bad_request_is_refused_with_the_place_of_the_error(  # noqa: PLR0917  one per column
    agent: Agent, method: str, path: str, body: object, code: int, pointer: str | None
) -> None:
    register(agent)
    response = agent.send(method, path, body)
    assert (response.code, body_of(response).get("pointer")) == (code, pointer)
    assert agent.statuses() == {"indexer": INITIALIZING}


def test_secrets_of_a_probe_are_not_returned(agent: Agent) -> None:
    register(agent, probe="postgresql://reader:hunter2secret@127.0.0.1/ledger")
    response = agent.send("GET", "/v1/services/indexer")
    assert response.code == 200
    assert b"hunter2secret" not in response.body


# ---- maintenance


def maintain(agent: Agent, service_id: str | None = "indexer", **fields: str) -> Response:
    path = "/v1/maintenance" if service_id is None else f"/v1/services/{service_id}/maintenance"
    return agent.send("PUT", path, {"duration": "2h", **fields})


@pytest.mark.parametrize("service_id", ["indexer", None])
def test_maintenance_survives_a_restart_and_is_not_extended_by_it(agent: Agent, service_id: str | None) -> None:
    register(agent)
    assert maintain(agent, service_id, by="alice", reason="new disk").code == 201
    agent.now_s += 3600
    agent.restart()
    maintenance = agent.node.maintenance(service_id)
    assert maintenance is not None
    assert (maintenance.by, maintenance.reason) == ("alice", "new disk")
    assert maintenance.ends_at_s == 1000.0 + 7200
    agent.now_s += 3600
    assert agent.node.maintenance(service_id) is None
    agent.restart()
    assert agent.node.maintenance(service_id) is None


def test_maintenance_ends_by_the_wall_clock_across_a_restart(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    register(agent)
    maintain(agent)
    monkeypatch.setattr(store_module, "_boot_id", lambda: "another")
    agent.now_s, agent.wall_offset_s = 5.0, 995.0 + 600  # ten minutes later
    agent.restart()
    maintenance = agent.node.maintenance("indexer")
    assert maintenance is not None
    assert maintenance.ends_at_s == pytest.approx(5.0 + 6600)
    agent.wall_offset_s += 3000.0
    agent.restart()
    maintenance = agent.node.maintenance("indexer")
    assert maintenance is not None
    assert maintenance.ends_at_s == pytest.approx(5.0 + 3600)
    agent.wall_offset_s = -86_400.0  # a clock that is set back does not make it longer
    agent.restart()
    maintenance = agent.node.maintenance("indexer")
    assert maintenance is not None
    assert maintenance.ends_at_s <= 5.0 + 7200


def test_the_document_of_a_maintenance_is_deleted_at_its_end(agent: Agent) -> None:
    register(agent)
    maintain(agent, duration="30ms")
    assert agent.send("GET", "/v1/services/indexer/maintenance").code == 200
    agent.now_s += 0.03
    agent.loop.run_until_complete(asyncio.sleep(0.3))
    assert agent.send("GET", "/v1/services/indexer/maintenance").code == 404


def test_maintenance_is_ended_by_delete_and_with_its_service(agent: Agent) -> None:
    register(agent)
    maintain(agent)
    assert agent.send("DELETE", "/v1/services/indexer/maintenance").code == 204
    assert agent.node.maintenance("indexer") is None
    maintain(agent)
    agent.send("DELETE", "/v1/services/indexer")
    assert agent.node.maintenance("indexer") is None
    register(agent)
    assert agent.send("GET", "/v1/services/indexer/maintenance").code == 404


def test_maintenance_is_listed_with_the_service_and_the_node(agent: Agent) -> None:
    register(agent)
    assert body_of(agent.send("GET", "/v1/services/indexer"))["maintenance"] is None
    document = body_of(maintain(agent, by="alice"))
    assert document.keys() == {"duration", "by", "until", "revision"}
    expected = {"until": document["until"], "by": "alice", "reason": "", "source": "control"}
    assert body_of(agent.send("GET", "/v1/services/indexer"))["maintenance"] == expected
    assert body_of(agent.send("GET", "/v1"))["maintenance"] is None


def test_a_service_of_the_file_may_be_in_maintenance_and_an_unknown_one_may_not(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.configured = {"db": False}
    agent.restart()
    assert maintain(agent, "db").code == 201
    assert maintain(agent, "nothing").code == 404
    agent.close()


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"duration": "soon"}, "/duration"),
        ({"duration": "0s"}, "/duration"),
        ({"duration": "31d"}, "/duration"),
        ({"by": "x" * 101}, "/by"),
        ({"by": "two\nlines"}, "/by"),
        ({"why": "x"}, "/why"),
    ],
)
def test_a_wrong_maintenance_is_refused(agent: Agent, fields: dict[str, str], pointer: str) -> None:
    response = maintain(agent, None, **fields)
    assert (response.code, body_of(response)["pointer"]) == (400, pointer)
    assert agent.node.maintenance() is None


@pytest.mark.parametrize("service_id", ["status", "maintenance"])
def test_a_service_may_have_the_name_of_a_child(agent: Agent, service_id: str) -> None:
    assert register(agent, service_id).code == 201
    assert beat(agent, service_id).code == 204
    agent.restart()
    assert agent.statuses() == {service_id: UP}
    assert agent.send("PUT", f"/v1/issues/{service_id}").code == 201


# ---- any sequence of requests and restarts agrees with a plain dict

IDS = st.sampled_from(["a", "b/c", "ä", "%41"])
PATHS = {"a": "a", "b/c": "b%2Fc", "ä": "%C3%A4", "%41": "%2541"}


class ControlModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.agent = Agent(Path(self.folder.name))
        self.services: dict[str, tuple[float, str | None, float]] = {}  # ttl, last report, since
        self.issues: set[str] = set()

    @initialize()
    def begin(self) -> None:
        assert self.agent.statuses() == {}

    @rule(service_id=IDS, ttl=st.sampled_from([5.0, 20.0]))
    def put(self, service_id: str, ttl: float) -> None:
        response = register_at(self.agent, service_id, ttl)
        assert response.code == (200 if service_id in self.services else 201)
        old_ttl, report, since_s = self.services.get(service_id, (ttl, None, self.agent.now_s))
        has_expired = self.agent.now_s - since_s >= old_ttl
        self.services[service_id] = (ttl, None if has_expired else report, since_s)

    @rule(service_id=IDS)
    def delete(self, service_id: str) -> None:
        assert self.agent.send("DELETE", f"/v1/services/{PATHS[service_id]}").code == 204
        self.services.pop(service_id, None)

    @rule(service_id=IDS, status=st.sampled_from(["up", "initializing", "down"]))
    def report(self, service_id: str, status: str) -> None:
        response = self.agent.send("PUT", f"/v1/services/{PATHS[service_id]}/status", {"status": status})
        assert response.code == (204 if service_id in self.services else 404)
        if service_id in self.services:
            self.services[service_id] = (self.services[service_id][0], status, self.agent.now_s)

    @rule(name=st.sampled_from(["disk", "fork: deep"]), is_set=st.booleans())
    def issue(self, name: str, is_set: bool) -> None:
        code = self.agent.send("PUT" if is_set else "DELETE", f"/v1/issues/{name.replace(' ', '%20')}").code
        assert code == ((200 if name in self.issues else 201) if is_set else 204)
        (self.issues.add if is_set else self.issues.discard)(name)

    @rule(seconds=st.sampled_from([1.0, 4.0, 19.0]))
    def wait(self, seconds: float) -> None:
        self.agent.now_s += seconds

    @rule()
    def restart(self) -> None:
        self.agent.restart()

    @invariant()
    def the_list_is_as_acknowledged(self) -> None:
        assert set(self.agent.statuses()) == set(self.services)
        assert set(self.agent.node.condition.issues) == self.issues

    @invariant()
    def no_service_is_up_without_a_heartbeat_within_its_ttl(self) -> None:
        for service_id, status in self.agent.statuses().items():
            ttl, report, since_s = self.services[service_id]
            is_fresh = report == "up" and self.agent.now_s - since_s < ttl
            assert (status == UP) == is_fresh

    def teardown(self) -> None:
        self.agent.close()
        self.folder.cleanup()


def register_at(agent: Agent, service_id: str, ttl: float) -> Response:
    return agent.send("PUT", f"/v1/services/{PATHS[service_id]}", {"ttl": ttl})


TestControlModel = ControlModel.TestCase
TestControlModel.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
