"""Replicas of one node as real processes, the backends that they check, and a sampler that asks them all the time."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote, unquote

from svcnode.control import ControlClient
from tests.support.processes import Agent, connect_unix
from tests.support.servers.base import wait_until

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
    from pathlib import Path

    from tests.support.processes import Response
    from tests.support.servers.etcd import EtcdServer

NODE = "ledger"
PREFIX = "/svcnode/"  # of the keys
SERVICES, HEALTH = "/svc/node/services", "/svc/node/health"
SAMPLE_S = 0.03
RECENT_CHECKS = 500
LOG_DELAY_S = 0.5  # a status is shown before its line is written and read

Options = dict[str, Any]


class Backends:
    """One HTTP server with a path for each service. It notes when it received each check that it answers with 200."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.failing: set[str] = set()
        self.success_s: dict[str, float] = defaultdict(lambda: float("-inf"))
        self.checks_s: dict[str, list[float]] = defaultdict(list)  # the last ones
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="backends")

    def __enter__(self) -> Self:
        # In this thread: the socket belongs to its network namespace.
        server = self._loop.run_until_complete(self._loop.create_server(lambda: _Connection(self), self.host, 0))
        self.port: int = server.sockets[0].getsockname()[1]
        self._server = server
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url(self, service_id: str) -> str:
        return f"http://{self.host}:{self.port}/{service_id}"

    def checked_after(self, at_s: float, service_id: str) -> list[float]:
        return [checked_s for checked_s in [*self.checks_s[service_id]] if checked_s > at_s]

    def receive_check(self, service_id: str) -> bytes:
        """The response."""
        now_s = time.monotonic()
        checks_s = self.checks_s[service_id]
        checks_s.append(now_s)
        del checks_s[:-RECENT_CHECKS]
        if service_id in self.failing:
            return b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        self.success_s[service_id] = now_s
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class _Connection(asyncio.Protocol):
    def __init__(self, backends: Backends) -> None:
        self._backends = backends
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received:
            path = self._received.split(b" ", 2)[1].decode()
            self._received = b""
            self._transport.write(self._backends.receive_check(path.removeprefix("/")))
            self._transport.close()


class RegistryKeys:
    """The keys of the node, written and read by a client of etcd that is no replica."""

    def __init__(self, server: EtcdServer) -> None:
        self._server = server

    def put_service(self, service_id: str, options: Mapping[str, Any], owner: str = "client") -> None:
        value = json.dumps({"version": 1, "position": 0, "options": options})
        self._call("put", key=_key("services", service_id, owner), value=value)

    def delete_service(self, service_id: str, owner: str = "client") -> None:
        self._call("deleterange", key=_key("services", service_id, owner))

    def states(self, replica: str) -> dict[str, Any]:
        """What the replica publishes, by service id."""
        root = _key("states", replica, "")
        found = self._call("range", key=root, range_end=root[:-1] + "0").get("kvs", [])
        return {_service_id(kv["key"]): json.loads(base64.b64decode(kv["value"])) for kv in found}

    def replicas(self) -> set[str]:
        root = _key("replicas", "")
        found = self._call("range", key=root, range_end=root[:-1] + "0").get("kvs", [])
        return {_service_id(kv["key"]) for kv in found}

    def _call(self, method: str, **texts: str) -> Any:
        body = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
        code, answer = self._server.call(f"/v3/kv/{method}", body, token=self._server.root_token())
        assert code == 200, answer
        return answer


def _key(kind: str, *names: str) -> str:
    return "/".join([f"{PREFIX}v1/{NODE}/{kind}", *(quote(name, safe="") for name in names)])


def _service_id(key: str) -> str:
    return unquote(base64.b64decode(key).decode().rpartition("/")[2])


class StatusChange(NamedTuple):
    replica: str
    service: str
    status: str
    previous: str
    code: str


class Replica(Agent):
    """`services` are those of its file. It is asked over unix sockets, which no cut of a network reaches."""

    def __init__(
        self,
        folder: Path,
        name: str,
        registry: str,
        *,
        settings: str,
        services: Mapping[str, Options],
        prefix: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.registry, self.settings = name, registry, settings
        self.services = dict(services)
        self.folder = folder
        self._prefix = prefix
        super().__init__(folder, config=self.config(), prefix=prefix)

    def started_again(self) -> Replica:
        """A new process, after the end of this one."""
        return Replica(
            self.folder,
            self.name,
            self.registry,
            settings=self.settings,
            services=self.services,
            prefix=self._prefix,
        )

    def config(self) -> str:
        lines = [
            f'[node]\nname = "{NODE}"',
            f'[server]\nlisten = "unix:{self.folder}/n.sock"',
            f'[control]\nlisten = "unix:{self.folder}/c.sock"\npath = "{self.folder}/c.db"',
            "[history]\nkeep = false",
            f'[sharing]\nregistry = "{self.registry}"\nreplica = "{self.name}"',
            self.settings,
        ]
        for service_id, options in self.services.items():
            values = (f"{name} = {json.dumps(value)}" for name, value in options.items())
            lines += ["[[services]]", f'id = "{service_id}"', *values]
        return "\n".join(lines)

    def control(self) -> ControlClient:
        return ControlClient(self.folder / "c.sock", timeout=30)

    def ask(self, path: str) -> Response:
        with connect_unix(self.folder / "n.sock") as client:
            return client.request(path)

    def shown(self) -> dict[str, Any]:
        """Its list, by service id."""
        return {service["id"]: service for service in self.ask(SERVICES).json["services"]}

    def statuses(self) -> dict[str, str]:
        return {service_id: service["status"] for service_id, service in self.shown().items()}

    def wait_for(self, statuses: Mapping[str, str]) -> None:
        try:
            self.wait_until(lambda: self.statuses() == statuses)
        except AssertionError:
            raise AssertionError(f"{self.name}: {self.difference(statuses)}") from None

    def difference(self, expected: Mapping[str, str]) -> str:
        """From these statuses, and what the log says about sharing."""
        shown = self.statuses()
        pairs = ((id_, shown.get(id_), expected.get(id_)) for id_ in sorted(shown.keys() | expected.keys()))
        different = [f"{id_} is {found}, not {wanted}" for id_, found, wanted in pairs if found != wanted]
        return "\n".join([*different[:20], *[line for line in self.lines if "svcnode.sharing" in line][-10:]])

    def health(self) -> int:
        return self.ask(HEALTH).code

    def status_changes(self, start: int = 0) -> list[StatusChange]:
        """From the log, from this line on."""
        return [
            StatusChange(self.name, entry["service"], entry["status"], entry["previous"], entry["code"])
            for line in self.lines[start:]
            if '"service_status"' in line and (entry := json.loads(line))
        ]


class Replicas:
    """Replicas `host-1`, `host-2`, … with the services of their files. The end of the block kills them."""

    def __init__(
        self,
        folder: Path,
        registry: str,
        files: Sequence[Mapping[str, Options]],
        settings: str,
        *,
        prefixes: Sequence[Sequence[str]] = (),
    ) -> None:
        """`settings` is the end of [sharing], and what follows. NAME in `registry` stands for that of the replica."""
        self._stack = ExitStack()
        self.all: list[Replica] = []
        for index, services in enumerate(files):
            name = f"host-{index + 1}"
            replica = Replica(
                folder / name,
                name,
                registry.replace("NAME", name),
                settings=settings,
                services=services,
                prefix=prefixes[index] if prefixes else (),
            )
            self.all.append(self._stack.enter_context(replica))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.all)

    def __getitem__(self, index: int) -> Replica:
        return self.all[index]

    def start_again(self, index: int) -> None:
        self.all[index] = self._stack.enter_context(self.all[index].started_again())

    def lists(self) -> list[bytes]:
        return [replica.ask(SERVICES).body for replica in self.all]

    def are_equal(self) -> bool:
        return len(set(self.lists())) == 1

    def have(self, statuses: Mapping[str, str]) -> bool:
        """Every replica has these services, and no other."""
        return all(replica.statuses() == statuses for replica in self.all)

    def wait_for(self, statuses: Mapping[str, str], timeout_s: float = 60.0) -> None:
        self.wait_until_started()
        try:
            wait_until(lambda: self.have(statuses), "the statuses", timeout_s)
        except AssertionError:
            text = "\n".join(f"{replica.name}: {replica.difference(statuses)}" for replica in self.all)
            raise AssertionError(text) from None

    def wait_until_started(self) -> None:
        wait_until(self._are_started, "the start of the replicas")

    def _are_started(self) -> bool:
        for replica in self.all:
            assert replica.process.poll() is None, "a replica ended\n" + "\n".join(replica.lines)
        return all(any("started: node" in line for line in replica.lines) for replica in self.all)

    def log_lengths(self) -> list[int]:
        time.sleep(LOG_DELAY_S)
        return [len(replica.lines) for replica in self.all]

    def status_changes(self, starts: Sequence[int]) -> list[StatusChange]:
        return [
            change for replica, start in zip(self.all, starts, strict=True) for change in replica.status_changes(start)
        ]


class Sampler:
    """Asks every replica all the time.

    A service that is Up needs a check that its backend has answered with 200 within `valid_s` before the sample was
    requested, and a node with 200 needs that of all services that it listed before and after. Evidence is dated at the
    start of the check, which is before its backend received it: so no tolerance is needed.
    """

    def __init__(self, replicas: Iterable[Replica], backends: Backends, valid_s: Mapping[str, float]) -> None:
        self._backends = backends
        self._valid_s = valid_s
        self._stop = threading.Event()
        self._paused: set[str] = set()
        self._threads = [threading.Thread(target=self._run, args=(replica,)) for replica in replicas]
        self.samples = 0
        self.max_latency_s = 0.0
        self.false_answers: list[str] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def problems(self) -> list[str]:
        return [*self.false_answers[:10], *self.failures[:10]]

    @contextmanager
    def without(self, replica: Replica) -> Iterator[None]:
        """Its failures do not count: it is killed or stopped."""
        self.pause(replica)
        yield
        self.resume(replica)

    def pause(self, replica: Replica) -> None:
        self._paused.add(replica.name)

    def resume(self, replica: Replica) -> None:
        self._paused.remove(replica.name)

    def _run(self, replica: Replica) -> None:
        listed: Set[str] = set()  # in the previous sample
        while not self._stop.wait(SAMPLE_S):
            if replica.name in self._paused:
                listed = set()
                continue
            asked_s = time.monotonic()
            try:
                health, services = replica.health(), replica.ask(SERVICES)
            except (OSError, HTTPException) as exc:
                if replica.name not in self._paused:
                    self.failures.append(f"{replica.name}: {type(exc).__name__}: {exc}")
                listed = set()
                continue
            if replica.name not in self._paused:
                self.max_latency_s = max(self.max_latency_s, time.monotonic() - asked_s)
            self.samples += 2
            statuses = {service["id"]: service["status"] for service in services.json["services"]}
            self._verify(replica.name, asked_s, statuses, listed & statuses.keys() if health == 200 else ())
            listed = statuses.keys()

    def _verify(self, name: str, asked_s: float, statuses: Mapping[str, str], healthy: Collection[str]) -> None:
        ids = [
            service_id for service_id, valid_s in self._valid_s.items() if self._is_past(service_id, valid_s, asked_s)
        ]
        self.false_answers += [f"{name}: {id_} is Up past its evidence" for id_ in ids if statuses.get(id_) == "Up"]
        if past := [service_id for service_id in ids if service_id in healthy]:
            self.false_answers.append(f"{name}: 200 past the evidence of {past[:3]}")

    def _is_past(self, service_id: str, valid_s: float, asked_s: float) -> bool:
        return asked_s >= self._backends.success_s[service_id] + valid_s
