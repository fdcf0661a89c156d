"""An etcd in memory, and clients of it, in virtual time.

`SimulatedEtcd` has the revisions, leases, watches, compactions, tokens and errors of etcd. Every message between it
and a client takes a `Channel`, which may be slow or cut: messages on a cut channel wait, as in the buffers of TCP.
"""

from __future__ import annotations

import asyncio
import heapq
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Self, TypeVar

from svcnode.core.address import RegistryAddress
from svcnode.core.errors import (
    RegistryCompactedError,
    RegistryError,
    RegistryFullError,
    RegistryLeaseLostError,
    RegistryPermissionError,
    RegistryUnreachableError,
)
from svcnode.net.connect import TcpEndpoint
from svcnode.net.etcd_json import (
    LOGIN_PATH,
    Delete,
    Event,
    Header,
    KeyValue,
    Lease,
    Put,
    RangeResult,
    TokenError,
    TxnResult,
    WatchBatch,
)
from svcnode.sharing.etcd import DEFAULT_TIMEOUT_S, EtcdClient, Traffic
from svcnode.sharing.fences import Fences
from svcnode.sharing.login import Login

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Iterable

    from svcnode.net.etcd_json import Compare

T = TypeVar("T")

DELAY_S = 0.002  # of a message in one direction
MAX_OPERATIONS = 128


class EventQueue:
    """The virtual time of a simulation, and what happens at which time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._tiebreaker = count()

    def call_at(self, at_s: float, function: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(at_s, self.now_s), next(self._tiebreaker), function))

    @property
    def next_at_s(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def run_due(self) -> None:
        while self._heap and self._heap[0][0] <= self.now_s:
            heapq.heappop(self._heap)[2]()


class Channel:
    """One direction of a connection. Messages keep their order."""

    def __init__(self, events: EventQueue) -> None:
        self.delay_s = DELAY_S
        self.is_cut = False
        self._events = events
        self._last_s = 0.0
        self._waiting: list[Callable[[], None]] = []

    def send(self, deliver: Callable[[], None]) -> None:
        if self.is_cut:
            self._waiting.append(deliver)
            return
        self._last_s = max(self._last_s, self._events.now_s + self.delay_s)
        self._events.call_at(self._last_s, deliver)

    def reconnect(self, *, keeps: bool) -> None:
        """`keeps`: whether the messages that wait arrive after all."""
        self.is_cut = False
        waiting, self._waiting = self._waiting, []
        for deliver in waiting if keeps else ():
            self.send(deliver)


@dataclass(eq=False)
class _Lease:
    id: int
    ttl_s: float
    expires_at_s: float


@dataclass(eq=False)
class _Watcher:
    prefix: str
    next_revision: int
    receive: Callable[[WatchBatch | RegistryError], None]


@dataclass(eq=False)
class _Data:
    revision: int = 1
    cluster_id: int = 1
    compacted: int = 0
    base: dict[str, KeyValue] = field(default_factory=dict)  # the keys at the compacted revision
    kvs: dict[str, KeyValue] = field(default_factory=dict)
    leases: dict[int, _Lease] = field(default_factory=dict)
    history: list[tuple[int, list[Event]]] = field(default_factory=list)

    def copy(self) -> _Data:
        leases = {lease_id: copy(lease) for lease_id, lease in self.leases.items()}
        return _Data(
            self.revision,
            self.cluster_id,
            self.compacted,
            dict(self.base),
            dict(self.kvs),
            leases,
            list(self.history),
        )

    def kvs_at(self, revision: int) -> dict[str, KeyValue]:
        if revision < self.compacted:
            raise RegistryCompactedError("etcd: the requested revision has been compacted")
        if revision > self.revision:
            raise RegistryError("etcd: required revision is a future revision")
        kvs = dict(self.base)
        for _, events in (each for each in self.history if each[0] <= revision):
            for event in events:
                if event.put is None:
                    kvs.pop(event.key, None)
                else:
                    kvs[event.key] = event.put
        return kvs


class SimulatedEtcd:
    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._data = _Data()
        self._watchers: list[_Watcher] = []
        self._lease_ids = count(1000)
        self._waiting: list[Callable[[], None]] = []  # requests to a suspended server
        self.generation = 0  # of the process: requests to an earlier one are lost
        self.is_running, self.is_suspended, self.is_full = True, False, False
        self.denied: set[str] = set()  # "read", "write"
        self.requires_auth = False
        self.tokens: set[str] = set()  # of this process
        self.login_count = 0
        self.write_count = 0

    # ---- faults

    def stop(self) -> None:
        self.generation += 1
        self.is_running = False
        self._waiting.clear()
        self.tokens.clear()
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.receive(RegistryUnreachableError("etcd: connection closed"))

    def start(self, data: _Data | None = None) -> None:
        """With the data that it had, or those of a snapshot. Leases get their whole time again."""
        self._data = data.copy() if data is not None else self._data
        self.is_running = True
        for lease in self._data.leases.values():
            self._renew(lease)

    def wipe(self, *, is_other_cluster: bool = False) -> None:
        """Stop, and start with an empty database."""
        self.stop()
        self.start(_Data(cluster_id=self._data.cluster_id + is_other_cluster))

    def snapshot(self) -> _Data:
        return self._data.copy()

    def suspend(self) -> None:
        self.is_suspended = True

    def resume(self) -> None:
        self.is_suspended = False
        waiting, self._waiting = self._waiting, []
        for handle in waiting:
            handle()
        for lease in list(self._data.leases.values()):
            self._expire(lease)

    def compact(self) -> None:
        self._data.compacted, self._data.base = self._data.revision, dict(self._data.kvs)
        self._data.history.clear()

    # ---- requests

    def handle(self, generation: int, request: Callable[[], None]) -> None:
        if self.is_suspended:
            self._waiting.append(lambda: self.handle(generation, request))
        elif self.is_running and generation == self.generation:
            request()

    def log_in(self) -> str:
        """A token has the index at which it was made; here, that is the revision."""
        self.login_count += 1
        token = f"{self.generation}-{self.login_count}.{self._data.revision}"
        self.tokens.add(token)
        return token

    def check_token(self, token: str | None) -> bool:
        """False if the request waits until this process is as far as the one that made the token."""
        if not self.requires_auth:
            return True
        if token is None:
            raise TokenError("etcd: user name is empty")
        if int(token.partition(".")[2]) > self._data.revision:
            return False
        if token not in self.tokens:
            raise TokenError("etcd: invalid auth token")
        return True

    @property
    def header(self) -> Header:
        return Header(self._data.cluster_id, 1, self._data.revision, 1)

    @property
    def kvs(self) -> dict[str, KeyValue]:
        return self._data.kvs

    def _check(self, access: str) -> None:
        if access in self.denied:
            raise RegistryPermissionError("etcd: permission denied")

    def range(self, prefix: str, at_revision: int = 0) -> RangeResult:
        self._check("read")
        kvs = self._data.kvs_at(at_revision) if at_revision else self._data.kvs
        found = sorted(kv for key, kv in kvs.items() if key.startswith(prefix))
        return RangeResult(self.header, found)

    def txn(self, operations: Iterable[Put | Delete], compares: Iterable[Compare] = ()) -> TxnResult:
        self._check("write")
        operations = list(operations)
        assert len(operations) <= MAX_OPERATIONS
        if self.is_full and any(isinstance(operation, Put) for operation in operations):
            raise RegistryFullError("etcd: database space exceeded")
        for operation in operations:
            if isinstance(operation, Put) and operation.lease_id and operation.lease_id not in self._data.leases:
                raise RegistryLeaseLostError("etcd: requested lease not found")
        for compare in compares:
            known = self._data.kvs.get(compare.key)
            if (0 if known is None else known.mod_revision) != compare.mod_revision:
                return TxnResult(self.header, succeeded=False)
        self.write_count += 1
        self._commit(operations)
        return TxnResult(self.header, succeeded=True)

    def _commit(self, operations: Iterable[Put | Delete]) -> None:
        data, events = self._data, list[Event]()
        revision = data.revision + 1
        for operation in operations:
            if isinstance(operation, Put):
                known = data.kvs.get(operation.key)
                create_revision = revision if known is None else known.create_revision
                kv = KeyValue(operation.key, operation.value, create_revision, revision, operation.lease_id)
                data.kvs[operation.key] = kv
                events.append(Event(operation.key, revision, kv))
                continue
            prefix = operation.key
            for key in [key for key in data.kvs if key == prefix or (operation.is_prefix and key.startswith(prefix))]:
                del data.kvs[key]
                events.append(Event(key, revision, None))
        if events:
            data.revision = revision
            data.history.append((revision, events))
            for watcher in list(self._watchers):
                self._notify(watcher, revision, events)

    def _notify(self, watcher: _Watcher, revision: int, events: list[Event]) -> None:
        found = [event for event in events if event.key.startswith(watcher.prefix)]
        if found and revision >= watcher.next_revision:
            watcher.receive(WatchBatch(revision, found))

    def grant(self, ttl_s: int) -> Lease:
        if self.is_full:
            raise RegistryFullError("etcd: database space exceeded")
        lease = _Lease(next(self._lease_ids), ttl_s, 0)
        self._data.leases[lease.id] = lease
        self._renew(lease)
        return Lease(lease.id, ttl_s)

    def _renew(self, lease: _Lease) -> None:
        lease.expires_at_s = self._events.now_s + lease.ttl_s
        self._events.call_at(lease.expires_at_s, lambda: self._expire(lease))

    def _expire(self, lease: _Lease) -> None:
        is_known = self._data.leases.get(lease.id) is lease
        if is_known and self.is_running and not self.is_suspended and lease.expires_at_s <= self._events.now_s:
            self.revoke(lease.id)

    def keep_alive(self, lease_id: int) -> int:
        lease = self._data.leases.get(lease_id)
        if lease is None:
            return 0
        self._renew(lease)
        return int(lease.ttl_s)

    def revoke(self, lease_id: int) -> None:
        if self._data.leases.pop(lease_id, None) is None:
            raise RegistryLeaseLostError("etcd: requested lease not found")
        self._commit([Delete(key) for key, kv in self._data.kvs.items() if kv.lease_id == lease_id])

    def watch(self, watcher: _Watcher) -> None:
        self._check("read")
        if watcher.next_revision <= self._data.compacted:
            raise RegistryCompactedError("etcd: the requested revision has been compacted")
        for revision, events in self._data.history:
            self._notify(watcher, revision, events)
        self._watchers.append(watcher)

    def unwatch(self, watcher: _Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)


class SimulatedClient(EtcdClient):
    """The client of one process. `deliver` calls a function in the event loop of the process."""

    def __init__(
        self,
        etcd: SimulatedEtcd,
        events: EventQueue,
        *,
        clock: Callable[[], float],
        deliver: Callable[[Callable[[], None]], None],
        rng: random.Random,
    ) -> None:
        """It logs in if etcd requires it, as `EtcdClient` does."""
        self._etcd = etcd
        self._clock = clock
        self._deliver = deliver
        self._rng = rng
        self.fences = Fences()
        self.traffic = Traffic()
        self._login = Login(RegistryAddress((), username="me" if etcd.requires_auth else ""))
        self.endpoints, self._current = (TcpEndpoint.of("etcd", 2379),), 0
        self.refusal: RegistryError | None = None  # of all its writes; leases are granted and renewed
        self.requests, self.responses = Channel(events), Channel(events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def kill(self) -> None:
        self.requests.is_cut = self.responses.is_cut = True
        self._login = Login(RegistryAddress(()))  # the tokens of the other one are no longer hidden

    def reconnect(self) -> None:
        for channel in (self.requests, self.responses):
            if channel.is_cut:
                channel.reconnect(keeps=self._rng.random() < 0.5)

    async def check_login(self, key: str) -> None:
        pass

    async def _post(self, endpoint: TcpEndpoint, path: str, *_: Any, is_anonymous: bool = False) -> Any:
        assert path == LOGIN_PATH
        return await self._send_once(self._etcd.log_in, is_fence=False, needs_token=False)

    async def _send(self, handle: Callable[[], T], *, is_fence: bool = True) -> T:
        return await self._with_token(self.endpoint, lambda _: self._send_once(handle, is_fence=is_fence))

    async def _send_once(self, handle: Callable[[], T], *, is_fence: bool, needs_token: bool = True) -> T:
        token = self._login.token
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if not self._etcd.is_running:
            raise RegistryUnreachableError("etcd: connection refused")
        sent_at_s, generation = self._clock(), self._etcd.generation
        headers: list[Header] = []

        def respond() -> None:
            try:
                if needs_token and not self._etcd.check_token(token):
                    return
                result: T | RegistryError = handle()
            except RegistryError as exc:
                result = exc
            headers.append(self._etcd.header)
            self.responses.send(lambda: self._deliver(lambda: _resolve(future, result)))

        self.requests.send(lambda: self._etcd.handle(generation, respond))
        try:
            async with asyncio.timeout(DEFAULT_TIMEOUT_S):
                result = await future
        except TimeoutError:
            raise RegistryUnreachableError(f"etcd: no response within {DEFAULT_TIMEOUT_S:g} s") from None
        if is_fence:
            self.fences.add(headers[0], sent_at_s=sent_at_s, received_at_s=self._clock())
        return result

    async def range(self, prefix: str, *, at_revision: int = 0, **_: Any) -> RangeResult:
        return await self._send(lambda: self._etcd.range(prefix, at_revision))

    async def get(self, key: str, *, at_revision: int = 0) -> KeyValue | None:
        found = (await self.range(key, at_revision=at_revision)).kvs
        return next((kv for kv in found if kv.key == key), None)

    async def fence(self, key: str) -> Header:
        return (await self._send(lambda: self._etcd.range(f"{key}\0"))).header

    async def put(self, key: str, value: bytes, *, lease_id: int = 0) -> Header:
        return (await self.txn([Put(key, value, lease_id)])).header

    async def delete(self, key: str, *, is_prefix: bool = False) -> Header:
        return (await self.txn([Delete(key, is_prefix)])).header

    async def txn(self, operations: Iterable[Put | Delete], compares: Iterable[Compare] = ()) -> TxnResult:
        operations, compares = list(operations), list(compares)

        def handle() -> TxnResult:
            if self.refusal is not None:
                raise self.refusal
            return self._etcd.txn(operations, compares)

        return await self._send(handle)

    async def grant_lease(self, ttl_s: int) -> Lease:
        return await self._send(lambda: self._etcd.grant(ttl_s))

    async def keep_alive(self, lease_id: int) -> int:
        return await self._send(lambda: self._etcd.keep_alive(lease_id), is_fence=False)

    async def revoke(self, lease_id: int) -> None:
        await self._send(lambda: self._etcd.revoke(lease_id), is_fence=False)

    @asynccontextmanager
    async def watch(self, prefix: str, start_revision: int) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        received: asyncio.Queue[WatchBatch | RegistryError] = asyncio.Queue()

        def receive(batch: WatchBatch | RegistryError) -> None:
            self.responses.send(lambda: self._deliver(lambda: received.put_nowait(batch)))

        watcher = _Watcher(prefix, start_revision, receive)
        await self._send(lambda: self._etcd.watch(watcher), is_fence=False)
        try:
            yield _batches(received)
        finally:
            self._etcd.unwatch(watcher)


async def _batches(received: asyncio.Queue[WatchBatch | RegistryError]) -> AsyncIterator[WatchBatch]:
    while True:
        batch = await received.get()
        if isinstance(batch, RegistryError):
            raise batch
        yield batch


def _resolve(future: asyncio.Future[T], result: T | RegistryError) -> None:
    if future.done():
        return
    if isinstance(result, RegistryError):
        future.set_exception(result)
    else:
        future.set_result(result)
