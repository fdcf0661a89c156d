"""A node with its control API on a store in a folder, on a clock that the test sets; and a plain model of the API."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from svcnode.api.spec import Request
from svcnode.config import load
from svcnode.config.registration import PATH, define_registered
from svcnode.control.api import ControlApi, json_pointer
from svcnode.control.resources import Resources
from svcnode.control.store import ControlStore
from svcnode.core.errors import ConfigError, ControlError
from svcnode.core.model import Maintenance
from tests.support.nodes import make_node

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path

    from svcnode.api.spec import Response
    from svcnode.core.model import Change
    from svcnode.node.definition import RegisteredService

FILE_TTL_S = 15.0
SETTINGS = load(None, {"HOME": "/nowhere"})


def define_service(service_id: str, options: Mapping[str, Any]) -> RegisteredService:
    """As the agent does."""
    try:
        return define_registered(service_id, options, SETTINGS, {})
    except ConfigError as exc:
        raise ControlError(400, str(exc), pointer=json_pointer(*exc.path[len(PATH) :])) from exc


class ControlAgent:
    """A node with its control API on a store in a folder, on a clock that the test sets."""

    def __init__(self, folder: Path, configured: Mapping[str, bool] | None = None) -> None:
        self.path = folder / "control.db"
        self._now_s = 1000.0
        self.wall_offset_s = 1e9  # between the wall clock and this one
        self.loop = asyncio.new_event_loop()
        self.file_ttl_s = FILE_TTL_S
        self.configured = dict(configured or {})  # the services of the file: whether they send heartbeats
        self.start()

    def start(self) -> None:
        self.node = make_node("validator-7", version="v1.0.0", clock=lambda: self._now_s, wall_clock=self._wall_s)
        self.changes: list[Change] = []
        self.node.subscribe(self.changes.append)
        self.resources = Resources(self.node, ControlStore(self.path), define_service)
        runs_with = {"config_file": None, "listen": ["http://127.0.0.1:8420"]}
        self.api = ControlApi(self.node, self.resources, self._reload, runs_with=lambda: runs_with)
        self.resources.set_configured(self.configured)
        for service_id, reports in self.configured.items():
            if reports:
                self.register_configured(service_id)
            else:
                self.node.register(service_id)
        self.loop.run_until_complete(self.resources.start())

    @property
    def now_s(self) -> float:
        return self._now_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        """The node runs until then."""
        standstill = self.resources._kinds.standstill
        standstill.tick()
        self._now_s = standstill._last_tick_s = now_s

    def stand_still(self, time_s: float) -> None:
        self._now_s += time_s

    def register_configured(self, service_id: str) -> None:
        """A service of the file that sends heartbeats."""
        self.node.register(service_id, ttl=self.file_ttl_s)

    def _wall_s(self) -> float:
        return self.now_s + self.wall_offset_s

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
        return self.send_all([make_request(method, path, body, **headers)])[0]

    def send_all(self, requests: list[Request]) -> list[Response]:
        """At the same time, so that they share a transaction."""

        async def respond() -> list[Response]:
            return await asyncio.gather(*map(self.api.handle, requests))

        return self.loop.run_until_complete(respond())

    def statuses(self) -> dict[str, str]:
        return {service.id: state.status.value for service, state in self.node}


def make_request(method: str, path: str, body: object = None, **headers: str) -> Request:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Request(method, path.encode(), b"", named, b"" if body is None else json.dumps(body).encode())


# ---- the model: what each request must answer, and what the node must be

CONFIGURED = {"file": True, "fixed": False}
SERVICE_IDS = ("a", "b/c", "ä", "%41", "file", "fixed")
ISSUES = ("disk", "disk: full")
REASONS: tuple[dict[str, str], ...] = ({}, {"reason": "full"}, {"reason": "slow"})
REPORTS: tuple[object, ...] = (
    {"status": "up"},
    {"status": "up", "reason": "synced"},
    {"status": "initializing"},
    {"status": "down", "reason": "exit status 1", "code": "x_exit"},
    {"status": "green"},
    {"status": "up", "since": 5},
)
OPTIONS: tuple[object, ...] = (
    {"ttl": "5s"},
    {"ttl": "20s"},
    {"ttl": "20s", "name": "A"},
    {"probe": "tcp://127.0.0.1:9"},
    {"probe": "tcp://127.0.0.1:10", "interval": "5s"},
    {"probe": "exec:/bin/true"},
    {"ttl": "soon"},
    {"ttl": "5s", "id": "b"},
    {},
    [],
)
# So long that none ends while the test runs: it would be deleted at a time that the model does not know.
MAINTENANCE: tuple[dict[str, str], ...] = (
    {"duration": "29d"},
    {"duration": "30d", "by": "alice", "reason": "disk"},
    {"duration": "0s"},
    {},
)
ACCEPTED_MAINTENANCE = MAINTENANCE[:2]
ACCEPTED_OPTIONS = OPTIONS[:5]
ACCEPTED_REPORTS = REPORTS[:4]
BODIES: dict[str, tuple[object, ...]] = {
    "service": OPTIONS,
    "issue": REASONS,
    "drain": REASONS,
    "maintenance": MAINTENANCE,
    "node_maintenance": MAINTENANCE,
}
NODE_WIDE = ("drain", "node_maintenance")  # one document, whatever the name
MATCHES = ("", "", "", "current", "other", "any", "none")
_STATUSES = {"up": "Up", "initializing": "Initializing", "down": "Down"}


class Operation(NamedTuple):
    method: str
    kind: str  # service, status, maintenance, issue, drain or node_maintenance
    name: str
    body: object = None
    match: str = ""  # the revision that it requires: current, other, any, none

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, "" if self.kind in NODE_WIDE else self.name

    @property
    def has_accepted_body(self) -> bool:
        if self.body is None:
            return True
        if "maintenance" in self.kind:
            return self.body in ACCEPTED_MAINTENANCE
        return self.body in ACCEPTED_REPORTS if self.kind == "status" else not isinstance(self.body, list)

    @property
    def path(self) -> str:
        name = quote(self.name, safe="")
        match self.kind:
            case "service":
                return f"/v1/services/{name}"
            case "status":
                return f"/v1/services/{name}/status"
            case "maintenance":
                return f"/v1/services/{name}/maintenance"
            case "node_maintenance":
                return "/v1/maintenance"
            case "issue":
                return f"/v1/issues/{name}"
            case _:
                return "/v1/drain"


def random_operation(rng: random.Random) -> Operation:
    kinds = ("service", "service", "status", "status", "status", "issue", "drain", "maintenance", "node_maintenance")
    kind = rng.choice(kinds)
    match = rng.choice(MATCHES)
    if kind == "status":
        return Operation("PUT", kind, rng.choice(SERVICE_IDS), rng.choice(REPORTS), match)
    is_delete = rng.random() < 0.4
    name = rng.choice(ISSUES if kind in ("issue", "drain") else SERVICE_IDS)
    body = None if is_delete else rng.choice(BODIES[kind])
    return Operation("DELETE" if is_delete else "PUT", kind, name, body, match)


@dataclass
class ModelService:
    options: dict[str, Any]
    revision: int
    registered_s: float
    report: str = ""
    reported_s: float = 0.0
    has_expired: bool = False

    @property
    def ttl_s(self) -> float | None:
        return float(self.options["ttl"].removesuffix("s")) if "ttl" in self.options else None

    def expire(self, now_s: float) -> None:
        seen_s = self.reported_s if self.report else self.registered_s
        if self.ttl_s is not None and self.report != "down" and now_s >= seen_s + self.ttl_s:
            self.has_expired = True

    @property
    def status(self) -> str:
        return "Down" if self.has_expired else _STATUSES.get(self.report, "Initializing")


@dataclass
class Model:
    """A plain dict of everything that was acknowledged."""

    now_s: float
    revision: int = 0
    services: dict[str, ModelService] = field(default_factory=dict)
    file: ModelService = field(init=False)
    documents: dict[tuple[str, str], tuple[object, int]] = field(default_factory=dict)  # body and revision

    def __post_init__(self) -> None:
        self.file = ModelService({"ttl": f"{FILE_TTL_S:g}s"}, 0, self.now_s)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for service in (*self.services.values(), self.file):
            service.expire(self.now_s)

    def restart(self) -> None:
        self.file.registered_s = self.now_s
        for service in (*self.services.values(), self.file):
            service.has_expired = service.has_expired and self._has_report(service)
            if not self._has_report(service):
                service.report = ""
            service.expire(self.now_s)

    def _has_report(self, service: ModelService) -> bool:
        name = "file" if service is self.file else next(key for key, one in self.services.items() if one is service)
        return ("status", name) in self.documents

    def request(self, operation: Operation) -> Request:
        headers = {}
        revision = self._revision_of(operation)
        if operation.match in ("current", "other"):
            headers["if_match"] = f'"{(revision or 0) + (operation.match == "other")}"'
        elif operation.match:
            headers["if_match" if operation.match == "any" else "if_none_match"] = "*"
        return make_request(operation.method, operation.path, operation.body, **headers)

    def _revision_of(self, operation: Operation) -> int | None:
        document = self.documents.get(operation.key)
        return None if document is None else document[1]

    def apply(self, operation: Operation, revision_before: int | None) -> int:  # noqa: PLR0911  one per rule
        """The status code that the response must have. `revision_before`: when the request was made."""
        key = operation.key
        if not operation.has_accepted_body:
            return 400
        if refusal := self._refusal(operation):
            return refusal
        if not self._matches(operation, self._revision_of(operation), revision_before):
            return 412
        if operation.kind == "status":
            return self._report(operation)
        if operation.kind == "service":
            if operation.body is not None:
                return self._register(operation)
            self.services.pop(operation.name, None)
            self._delete(key)
            self._delete(("status", operation.name))
            self._delete(("maintenance", operation.name))
            return 204
        if operation.body is None:
            self._delete(key)
            return 204
        if "maintenance" in operation.kind:
            return self._maintain(key, operation.body)
        return self._put(key, operation.body)

    @staticmethod
    def _matches(operation: Operation, revision: int | None, revision_before: int | None) -> bool:
        match operation.match:
            case "current":
                return revision is not None and revision == (revision_before or 0)
            case "other":
                return revision is not None and revision == (revision_before or 0) + 1
            case "any":
                return revision is not None
            case "none":
                return revision is None
            case _:
                return True

    def _put(self, key: tuple[str, str], body: object) -> int:
        old = self.documents.get(key)
        if old is None or old[0] != body:
            self.revision += 1
            self.documents[key] = (body, self.revision)
        return 201 if old is None else 200

    def _maintain(self, key: tuple[str, str], body: Any) -> int:
        ends_at_s = self.now_s + 86_400.0 * int(body["duration"].removesuffix("d"))
        return self._put(key, {**body, "ends_at_s": ends_at_s})

    def _delete(self, key: tuple[str, str]) -> None:
        if self.documents.pop(key, None) is not None:
            self.revision += 1

    def _register(self, operation: Operation) -> int:
        if operation.body not in ACCEPTED_OPTIONS:
            return 400
        options, old = dict(operation.body), self.services.get(operation.name)  # type: ignore[call-overload]
        status_key = ("status", operation.name)
        if old is None or ("ttl" in options) != ("ttl" in old.options):
            self._delete(status_key)
            service = ModelService(options, 0, self.now_s)
            if old is None:
                self.services[operation.name] = service
            else:
                self.services[operation.name].__dict__.update(service.__dict__)
        elif options != old.options:
            old.options = options
            old.expire(self.now_s)
        code = self._put(("service", operation.name), options)
        self.services[operation.name].revision = self.documents["service", operation.name][1]
        return code

    def _refusal(self, operation: Operation) -> int | None:
        """Whatever the revision."""
        if operation.kind == "service":
            return 409 if operation.name in CONFIGURED else None
        if operation.kind == "maintenance":
            return 404 if operation.body and operation.name not in (*self.services, *CONFIGURED) else None
        return self._refusal_of_report(operation.name) if operation.kind == "status" else None

    def _refusal_of_report(self, name: str) -> int | None:
        if name == "file":
            return None
        if name == "fixed":
            return 409
        return 404 if name not in self.services else 409 if self.services[name].ttl_s is None else None

    def _report(self, operation: Operation) -> int:
        service = self.file if operation.name == "file" else self.services[operation.name]
        assert isinstance(operation.body, dict)
        service.report, service.reported_s, service.has_expired = operation.body["status"], self.now_s, False
        self._put(("status", operation.name), {**operation.body, "at_s": self.now_s})
        return 204

    # ---- comparing

    def check(self, agent: ControlAgent) -> None:
        listed = json.loads(agent.send("GET", "/v1/services").body)
        assert listed["revision"] == self.revision
        fields = [(one["id"], one["status"], one.get("options"), one.get("revision")) for one in listed["services"]]
        assert fields == [
            ("file", self.file.status, None, None),
            ("fixed", "Initializing", None, None),
            *((name, one.status, one.options, one.revision) for name, one in self.services.items()),
        ]
        issues = {name: body for (kind, name), (body, _) in self.documents.items() if kind == "issue"}
        texts = {": ".join([name, *body.values()]) for name, body in issues.items()}  # type: ignore[attr-defined]
        assert set(agent.node.condition.issues) == texts
        assert agent.node.condition.draining == (("drain", "") in self.documents)
        for name in (*self.services, *CONFIGURED):
            assert agent.node.maintenance.current(name) == self._maintenance(
                ("node_maintenance", ""), ("maintenance", name)
            )
        assert agent.node.maintenance.current() == self._maintenance(("node_maintenance", ""))

    def _maintenance(self, *keys: tuple[str, str]) -> Maintenance | None:
        bodies: list[Any] = [self.documents[key][0] for key in keys if key in self.documents]
        found = (Maintenance("control", one["ends_at_s"], one.get("by", ""), one.get("reason", "")) for one in bodies)
        return max(found, key=lambda one: one.ends_at_s, default=None)

    def check_get(self, operation: Operation, agent: ControlAgent) -> None:
        """The document of an operation can be read, with its revision."""
        response = agent.send("GET", operation.path)
        revision = self._revision_of(operation)
        if operation.kind == "service" and operation.name in CONFIGURED:
            assert response.code == 200
            return
        assert response.code == (404 if revision is None else 200)
        if revision is not None:
            assert dict(response.headers)["ETag"] == f'"{revision}"'


def run_batch(model: Model, agent: ControlAgent, operations: list[Operation]) -> list[int]:
    """Send the operations at the same time, and compare each response with the model; returns the status codes."""
    # The second change of one service would be judged by what the node was before the first.
    unique: list[Operation] = []
    registered: set[str] = set()
    for operation in operations:
        is_register = operation.kind == "service" and operation.method == "PUT"
        if not (is_register and operation.name in registered):
            unique.append(operation)
        if is_register:
            registered.add(operation.name)
    before = [model._revision_of(operation) for operation in unique]
    requests = [model.request(operation) for operation in unique]
    responses = agent.send_all(requests)
    for index, (operation, revision, response) in enumerate(zip(unique, before, responses, strict=True)):
        expected = model.apply(operation, revision)
        is_deleted_later = any(
            later.method == "DELETE" and (later.kind, later.name) == (operation.kind, operation.name)
            for later in unique[index + 1 :]
        )
        may_be_gone = is_deleted_later and operation.kind == "service" and expected in (200, 201)
        assert response.code == expected or (may_be_gone and response.code == 404), (operation, expected, response)
    return [response.code for response in responses]


def compare_random_requests(folder: Path, requests: int, rng: random.Random) -> Counter[int]:
    """The responses by status code, with restarts and steps of the clock. Raises AssertionError at a difference."""
    agent = ControlAgent(folder, CONFIGURED)
    model, codes = Model(agent.now_s), Counter[int]()
    while codes.total() < requests:
        operations = [random_operation(rng) for _ in range(rng.randint(1, rng.choice((1, 5, 50))))]
        codes.update(run_batch(model, agent, operations))
        model.check_get(operations[-1], agent)
        model.wait(rng.choice((0.0, 0.0, 0.5, 1.0, 4.0, 19.0)))
        agent.now_s = model.now_s
        if rng.random() < 0.05:
            agent.restart()
            model.restart()
        model.check(agent)
    agent.close()
    return codes
