"""A client of etcd 3.4 or later, over its JSON gateway.

A call goes to the endpoint that responded last. If that one cannot be reached, does not respond in time or has no
leader, the call goes to the next endpoint, so a write may be applied twice: all writes of a replica are idempotent.

`Fences` date what others have written, without comparing the clocks of two machines.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
from bisect import bisect_left
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import httpcore2  # noqa: F401  otherwise httpx loads it with the first request, within its deadline
import httpx2

from svcnode.clock import monotonic_s
from svcnode.core.errors import (
    OptionError,
    RegistryCompactedError,
    RegistryError,
    RegistryFullError,
    RegistryLeaseLostError,
    RegistryLoginError,
    RegistryPermissionError,
    RegistryRestoredError,
    RegistryUnreachableError,
)
from svcnode.core.redaction import RotatingSecret, register_secret
from svcnode.core.text import MAX_REASON_CHARS, error_text, excerpt
from svcnode.core.url import Url, UrlError, join_host_port
from svcnode.net.connect import TcpEndpoint
from svcnode.net.files import READ_TIMEOUT_S
from svcnode.net.os_errors import connection_error_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

    from svcnode.net.tls import TlsOptions

T = TypeVar("T")

DEFAULT_PORT = 2379
DEFAULT_PREFIX = "/svcnode"
DEFAULT_TIMEOUT_S = 2.0
PAGE_KEYS = 500  # a page is parsed at once, on the event loop
MAX_FENCES = 256
_RANGE, _PUT, _DELETE, _TXN = "/v3/kv/range", "/v3/kv/put", "/v3/kv/deleterange", "/v3/kv/txn"
_GRANT, _KEEP_ALIVE, _REVOKE = "/v3/lease/grant", "/v3/lease/keepalive", "/v3/lease/revoke"
_LOGIN, _STATUS, _WATCH = "/v3/auth/authenticate", "/v3/maintenance/status", "/v3/watch"
# The revision in a response to the others may be an old one: that of the member, not of the cluster.
_LINEARIZABLE_PATHS = {_RANGE, _PUT, _DELETE, _TXN, _GRANT}
_WRITE_PATHS = {_PUT, _DELETE, _TXN}
# Without it, a member that has lost its leader lets calls wait, and keeps watches open that receive nothing.
_REQUIRE_LEADER = {"Grpc-Metadata-hasleader": "true"}
_UNAVAILABLE = 14  # a gRPC status


# ---- values


class Header(NamedTuple):
    cluster_id: int
    member_id: int
    revision: int
    raft_term: int


class KeyValue(NamedTuple):
    key: str  # bytes that are not UTF-8 are surrogates
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int  # 0 without a lease


class Event(NamedTuple):
    key: str
    mod_revision: int
    put: KeyValue | None  # None if the key was deleted


class RangeResult(NamedTuple):
    header: Header  # of the first page; all pages are of its revision
    kvs: list[KeyValue]


class TxnResult(NamedTuple):
    header: Header
    succeeded: bool  # False if a compare failed; then nothing was written


class Lease(NamedTuple):
    id: int
    ttl_s: int  # etcd may grant a longer one than requested


class WatchBatch(NamedTuple):
    revision: int  # of the last event; everything up to it has been received
    events: list[Event]  # empty for a progress notification


class MemberStatus(NamedTuple):
    header: Header
    version: str
    db_bytes: int
    leader_id: int  # 0 without a leader
    errors: list[str]  # alarms among them


class Put(NamedTuple):
    key: str
    value: bytes
    lease_id: int = 0

    def encode(self) -> dict[str, Any]:
        return {"key": _encode(self.key), "value": _base64(self.value), "lease": str(self.lease_id)}


class Delete(NamedTuple):
    key: str
    is_prefix: bool = False

    def encode(self) -> dict[str, Any]:
        return _range_of(self.key) if self.is_prefix else {"key": _encode(self.key)}


class Compare(NamedTuple):
    """A condition of a transaction: the key was last written at this revision. 0: it does not exist."""

    key: str
    mod_revision: int

    def encode(self) -> dict[str, Any]:
        fields = {"target": "MOD", "result": "EQUAL", "mod_revision": str(self.mod_revision)}
        return {"key": _encode(self.key), **fields}


@dataclass(slots=True)
class Traffic:
    """Bytes of bodies, of HTTP."""

    requests: int = 0
    writes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class RegistryUrl(NamedTuple):
    """`etcd://user:password@host1:2379,host2:2379/prefix`."""

    endpoints: tuple[TcpEndpoint, ...]
    prefix: str
    username: str
    password: str

    @classmethod
    def parse(cls, text: str) -> RegistryUrl:
        """Raises `UrlError`."""
        scheme, _, rest = text.partition("://")
        if scheme != "etcd":
            raise UrlError("scheme", "the URL of a registry is etcd://host1:2379,host2:2379/prefix")
        authority, slash, path = rest.partition("/")
        login, at, hosts = authority.rpartition("@")
        urls = [Url.parse(f"etcd://{login}{at}{host}{slash}{path}") for host in hosts.split(",")]
        for url in urls:
            url.reject_query()
        endpoints = tuple(TcpEndpoint.of(url.require_host(), url.port or DEFAULT_PORT) for url in urls)
        url = urls[0]
        return cls(endpoints, url.path.rstrip("/") or DEFAULT_PREFIX, url.username, url.password)


# ---- time


class _Fence(NamedTuple):
    sent_at_s: float
    received_at_s: float
    revision: int


class Fences:
    """When keys were written, at the earliest, by the clock of this machine.

    A linearizable response has the revision of the cluster at a moment after its request was sent. So a key with a
    higher mod_revision was written after that, whatever delays and suspensions lie in between.
    """

    def __init__(self) -> None:
        self._cluster_id = 0
        self._since_s = float("-inf")
        self._fences: list[_Fence] = []  # both times of sending and revisions ascend
        self._highest: _Fence | None = None

    def add(self, header: Header, *, sent_at_s: float, received_at_s: float) -> None:
        """Raises `RegistryRestoredError`, once, if the data is older than data seen before, or of another cluster."""
        if sent_at_s < self._since_s:  # of the data before it was restored
            return
        cluster_id, revision = header.cluster_id, header.revision
        fence = _Fence(sent_at_s, received_at_s, revision)
        highest = self._highest
        is_other_cluster = self._cluster_id not in (0, cluster_id)
        if highest and (is_other_cluster or (revision < highest.revision and highest.received_at_s < sent_at_s)):
            self._cluster_id, self._since_s, self._highest, self._fences = cluster_id, sent_at_s, fence, [fence]
            raise RegistryRestoredError(
                f"etcd has other data than before: its revision is {revision} after {highest.revision}"
                f"{', of another cluster' if is_other_cluster else ''}; it was probably restored from a snapshot"
            )
        self._cluster_id = cluster_id
        if highest is None or revision > highest.revision:
            self._highest = fence
        self._insert(fence)

    def _insert(self, fence: _Fence) -> None:
        """Without the fences that give no later time for any revision."""
        if any(each.sent_at_s >= fence.sent_at_s and each.revision <= fence.revision for each in self._fences):
            return
        before = [each for each in self._fences if each.sent_at_s < fence.sent_at_s and each.revision < fence.revision]
        after = [each for each in self._fences if each.sent_at_s > fence.sent_at_s and each.revision > fence.revision]
        self._fences = [*before, fence, *after][-MAX_FENCES:]

    def written_after_s(self, mod_revision: int) -> float | None:
        """None if nothing is known: the key was there at the first fence, or was written too long ago."""
        index = bisect_left(self._fences, mod_revision, key=lambda fence: fence.revision)
        return self._fences[index - 1].sent_at_s if index else None


class Backoff:
    """Delays between attempts: random ("full jitter") up to a limit that doubles until `max_s`."""

    def __init__(
        self, first_s: float = 0.1, max_s: float = 5.0, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._first_s, self._max_s, self._uniform = first_s, max_s, uniform
        self.reset()

    def reset(self) -> None:
        self._limit_s = self._first_s

    def next_delay_s(self) -> float:
        delay_s = self._uniform(0, self._limit_s)
        self._limit_s = min(2 * self._limit_s, self._max_s)
        return delay_s


# ---- the client


class EtcdClient:
    """For one event loop. A call raises a `RegistryError` within `timeout_s` per endpoint.

    The files of `tls` are read when the client is entered, so a new client uses a renewed certificate. The gateway
    accepts no user by certificate: permissions need a user name and a password.
    """

    def __init__(  # noqa: PLR0913  all but the first have names and defaults
        self,
        endpoints: Sequence[TcpEndpoint],
        *,
        username: str = "",
        password: str = "",
        tls: TlsOptions | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        fences: Fences | None = None,
        clock: Callable[[], float] = monotonic_s,
    ) -> None:
        register_secret(password)
        self.endpoints = tuple(endpoints)
        self.fences = Fences() if fences is None else fences
        self.traffic = Traffic()
        self._username, self._password = username, password
        self._tls = tls
        self._timeout_s = timeout_s
        self._clock = clock
        self._current = random.randrange(len(self.endpoints))  # noqa: S311  spreads the replicas over the members
        self._addresses: dict[TcpEndpoint, str] = {}  # of endpoints that are names
        self._token = ""
        self._secret_token = RotatingSecret()

    async def __aenter__(self) -> Self:
        self._context = await self._load_context()
        self._http = self._new_http_client()
        return self

    async def _load_context(self) -> ssl.SSLContext:
        if self._tls is None:
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # httpx would load the authorities of the system
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self._tls.tls_context()
        except (OptionError, OSError) as exc:
            raise RegistryError(f"cannot read the TLS files of the registry: {error_text(exc)}") from exc

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    def _new_http_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            verify=self._context, timeout=None, trust_env=False, headers={"Accept-Encoding": "identity"}
        )

    @property
    def endpoint(self) -> TcpEndpoint:
        """The one that responded last."""
        return self.endpoints[self._current]

    async def range(self, prefix: str, *, at_revision: int = 0, page_keys: int = PAGE_KEYS) -> RangeResult:
        """All keys with the prefix at one revision, by default the newest one. Sorted by key."""
        first = page = await self._range_page(_range_of(prefix), at_revision, page_keys)
        revision = at_revision or first.header.revision
        while page.has_more:
            start = {**_range_of(prefix), "key": _encode(page.kvs[-1].key + "\0")}
            page = await self._range_page(start, revision, page_keys)
            first.kvs.extend(page.kvs)
        return RangeResult(first.header, first.kvs)

    async def _range_page(self, keys: dict[str, str], revision: int, page_keys: int) -> _Page:
        return await self._call(_RANGE, {**keys, "revision": str(revision), "limit": str(page_keys)}, _parse_page)

    async def get(self, key: str) -> KeyValue | None:
        page = await self._call(_RANGE, {"key": _encode(key)}, _parse_page)
        return page.kvs[0] if page.kvs else None

    async def fence(self, key: str) -> Header:
        """Get the revision of the cluster. The key may be any that the user may read; it need not exist."""
        return await self._call(_RANGE, {"key": _encode(key), "count_only": True}, _parse_header)

    async def put(self, key: str, value: bytes, *, lease_id: int = 0) -> Header:
        return await self._call(_PUT, Put(key, value, lease_id).encode(), _parse_header)

    async def delete(self, key: str, *, is_prefix: bool = False) -> Header:
        return await self._call(_DELETE, Delete(key, is_prefix).encode(), _parse_header)

    async def txn(self, operations: Iterable[Put | Delete], compares: Iterable[Compare] = ()) -> TxnResult:
        """Up to 128 operations on different keys: the default limit of etcd."""
        names = {Put: "request_put", Delete: "request_delete_range"}
        success = [{names[type(operation)]: operation.encode()} for operation in operations]
        body = {"compare": [compare.encode() for compare in compares], "success": success}
        return await self._call(_TXN, body, lambda fields: TxnResult(_parse_header(fields), "succeeded" in fields))

    async def grant_lease(self, ttl_s: int) -> Lease:
        return await self._call(_GRANT, {"TTL": ttl_s}, lambda fields: Lease(int(fields["ID"]), int(fields["TTL"])))

    async def keep_alive(self, lease_id: int) -> int:
        """The remaining seconds; 0 if the lease is over."""
        return await self._call(_KEEP_ALIVE, {"ID": str(lease_id)}, lambda fields: int(fields["result"].get("TTL", 0)))

    async def revoke(self, lease_id: int) -> None:
        """Deletes the keys under the lease."""
        await self._call(_REVOKE, {"ID": str(lease_id)}, _parse_header)

    async def status(self, endpoint: TcpEndpoint) -> MemberStatus:
        """What the member at this endpoint says of itself; no other is asked."""
        return await self._post(endpoint, _STATUS, {}, _parse_status)

    @asynccontextmanager
    async def watch(self, prefix: str, start_revision: int) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        """Changes from this revision on, on a connection of its own. The iterator ends only by a `RegistryError`.

        etcd checks the permission only at the start. A connection that is cut may stay silent for ever; the caller
        notices it, because its own writes do not come back.
        """
        request = {**_range_of(prefix), "start_revision": str(start_revision), "progress_notify": True}
        async with self._new_http_client() as http:
            open_stream = partial(self._open_watch, http, {"create_request": request})
            endpoint, lines = await self._try_endpoints(open_stream)
            yield self._batches(endpoint, lines)

    # ---- calls

    async def _call(self, path: str, body: dict[str, Any], parse: Callable[[dict[str, Any]], T]) -> T:
        return await self._try_endpoints(lambda endpoint: self._post(endpoint, path, body, parse))

    async def _try_endpoints(self, attempt: Callable[[TcpEndpoint], Awaitable[T]]) -> T:
        failures: list[str] = []
        count = len(self.endpoints)
        for index in ((self._current + offset) % count for offset in range(count)):
            endpoint = self.endpoints[index]
            try:
                try:
                    result = await attempt(endpoint)
                except _TokenError:
                    await self._log_in(endpoint)
                    result = await attempt(endpoint)
            except RegistryUnreachableError as exc:
                self._addresses.pop(endpoint, None)
                failures.append(str(exc))
            else:
                self._current = index
                return result
        raise RegistryUnreachableError("; ".join(failures))

    async def _log_in(self, endpoint: TcpEndpoint) -> None:
        if not self._username:
            raise RegistryLoginError(f"{endpoint}: etcd requires a user name and a password")
        self._token = ""
        body = {"name": self._username, "password": self._password}
        try:
            self._token = await self._post(endpoint, _LOGIN, body, lambda fields: str(fields["token"]))
        except _LoginDisabledError:  # as other clients, use etcd without a user
            return
        self._secret_token.set(self._token)

    async def _post(
        self, endpoint: TcpEndpoint, path: str, body: dict[str, Any], parse: Callable[[dict[str, Any]], T]
    ) -> T:
        if self._username and not self._token and path not in (_LOGIN, _STATUS):
            await self._log_in(endpoint)
        with _translated_errors(endpoint, self._timeout_s):
            async with asyncio.timeout(self._timeout_s):
                request = await self._request(self._http, endpoint, path, body)
                sent_at_s = self._clock()
                response = await self._http.send(request)
        received_at_s = self._clock()
        self.traffic.received_bytes += len(response.content)
        if path in _LINEARIZABLE_PATHS:
            header = parse_message(response.content, endpoint, _parse_header)
            self.fences.add(header, sent_at_s=sent_at_s, received_at_s=received_at_s)
        return parse_message(response.content, endpoint, parse)

    async def _open_watch(
        self, http: httpx2.AsyncClient, body: dict[str, Any], endpoint: TcpEndpoint
    ) -> tuple[TcpEndpoint, AsyncIterator[str]]:
        if self._username and not self._token:
            await self._log_in(endpoint)
        with _translated_errors(endpoint, self._timeout_s):
            async with asyncio.timeout(self._timeout_s):
                request = await self._request(http, endpoint, _WATCH, body)
                response = await http.send(request, stream=True)
                try:
                    lines = response.aiter_lines()
                    parse_message(await anext(lines, ""), endpoint, parse_batch)  # that the watch is created
                except BaseException:
                    await response.aclose()
                    raise
        return endpoint, lines

    async def _batches(self, endpoint: TcpEndpoint, lines: AsyncIterator[str]) -> AsyncIterator[WatchBatch]:
        with _translated_errors(endpoint, self._timeout_s):
            async for line in lines:
                self.traffic.received_bytes += len(line)
                yield parse_message(line, endpoint, parse_batch)
        raise RegistryUnreachableError(f"{endpoint}: etcd ended the watch")

    async def _request(
        self, http: httpx2.AsyncClient, endpoint: TcpEndpoint, path: str, body: dict[str, Any]
    ) -> httpx2.Request:
        """To an address: httpx would resolve the name on a thread of the pool of the event loop."""
        address = endpoint.host if endpoint.is_ip_address else await self._address(endpoint)
        content = json.dumps(body).encode()
        self.traffic.requests += 1
        self.traffic.writes += path in _WRITE_PATHS
        self.traffic.sent_bytes += len(content)
        scheme = "http" if self._tls is None else "https"
        server_name = (self._tls and self._tls.server_name) or endpoint.host
        return http.build_request(
            "POST",
            f"{scheme}://{join_host_port(address, endpoint.port)}{path}",
            content=content,
            headers={
                "Host": str(endpoint),
                **({} if path == _STATUS else _REQUIRE_LEADER),
                **({"Authorization": self._token} if self._token else {}),
            },
            extensions={"sni_hostname": server_name},
        )

    async def _address(self, endpoint: TcpEndpoint) -> str:
        """The first address of the name that accepts a connection. It is used until a call fails."""
        if endpoint not in self._addresses:
            with await endpoint.open_socket() as sock:
                self._addresses[endpoint] = sock.getpeername()[0]
        return self._addresses[endpoint]


@contextmanager
def _translated_errors(endpoint: TcpEndpoint, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError as exc:
        raise RegistryUnreachableError(f"{endpoint}: no response within {timeout_s:g} s") from exc
    except (OSError, httpx2.HTTPError) as exc:
        raise RegistryUnreachableError(f"{endpoint}: {_connection_error_text(exc)}") from exc


def _connection_error_text(exc: BaseException) -> str:
    """Of the innermost cause: the errors of httpx do not say why."""
    causes = [exc]
    while inner := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(inner)
    found = next((cause for cause in reversed(causes) if isinstance(cause, OSError) and cause.errno is not None), None)
    return "connection closed" if found is None else connection_error_text(found)


# ---- JSON of the gateway: whole numbers are strings, bytes are Base64, fields that are 0 or empty are missing


class _Page(NamedTuple):
    header: Header
    kvs: list[KeyValue]
    has_more: bool


class _TokenError(RegistryLoginError):
    """The token is missing, has expired or was withdrawn; a member that has restarted does not know it."""


class _LoginDisabledError(RegistryError):
    pass


# By a part of the message of etcd: some are sent without a gRPC status, such as that of a watch.
_ERRORS: dict[str, type[RegistryError]] = {
    "invalid auth token": _TokenError,
    "user name is empty": _TokenError,
    "revision of auth store is old": _TokenError,
    "authentication is not enabled": _LoginDisabledError,
    "authentication failed": RegistryLoginError,
    "permission denied": RegistryPermissionError,
    "database space exceeded": RegistryFullError,
    "has been compacted": RegistryCompactedError,
    "requested lease not found": RegistryLeaseLostError,
    "no leader": RegistryUnreachableError,
    "timed out": RegistryUnreachableError,
    "context deadline exceeded": RegistryUnreachableError,
    "too many requests": RegistryUnreachableError,
}


def parse_message(content: str | bytes, endpoint: TcpEndpoint, parse: Callable[[dict[str, Any]], T]) -> T:
    """A response, or a message of a stream. Raises the error that it says."""
    try:
        fields = json.loads(content)
        _raise_error(fields, endpoint)
        return parse(fields)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as exc:
        raise RegistryUnreachableError(f"{endpoint}: not a response of etcd 3.4 or later: {excerpt(content)}") from exc


def _raise_error(fields: dict[str, Any], endpoint: TcpEndpoint) -> None:
    text: str
    status: object = None
    match fields:
        case {"result": {"compact_revision": str(revision)}}:
            text = f"the requested revision has been compacted: the oldest is {revision}"
        case {"result": {"canceled": True, **result}}:
            text = str(result.get("cancel_reason", "the watch was canceled"))
        case {"error": {"message": str(text), **error}}:  # of a stream
            status = error.get("grpc_code", error.get("code"))
        case {"error": str(text)}:
            status = fields.get("code")
        case _:
            return
    default = RegistryUnreachableError if status == _UNAVAILABLE else RegistryError
    error_type = next((found for part, found in _ERRORS.items() if part in text), default)
    raise error_type(f"{endpoint}: {excerpt(text, MAX_REASON_CHARS)}")


def parse_batch(fields: dict[str, Any]) -> WatchBatch:
    result = fields["result"]
    events = [_parse_event(event) for event in result.get("events", ())]
    # While a watch catches up, the revision in the header is that of the member, which is ahead of the events.
    return WatchBatch(events[-1].mod_revision if events else _parse_header(result).revision, events)


def _parse_event(event: dict[str, Any]) -> Event:
    found = _parse_key_value(event["kv"])
    return Event(found.key, found.mod_revision, None if event.get("type") == "DELETE" else found)


def _parse_page(fields: dict[str, Any]) -> _Page:
    return _Page(_parse_header(fields), [_parse_key_value(kv) for kv in fields.get("kvs", ())], "more" in fields)


def _parse_key_value(fields: dict[str, Any]) -> KeyValue:
    return KeyValue(
        key=_decode(fields["key"]),
        value=base64.b64decode(fields.get("value", "")),
        create_revision=int(fields.get("create_revision", 0)),
        mod_revision=int(fields["mod_revision"]),
        lease_id=int(fields.get("lease", 0)),
    )


def _parse_status(fields: dict[str, Any]) -> MemberStatus:
    return MemberStatus(
        header=_parse_header(fields),
        version=str(fields["version"]),
        db_bytes=int(fields.get("dbSize", 0)),
        leader_id=int(fields.get("leader", 0)),
        errors=[str(error) for error in fields.get("errors", ())],
    )


def _parse_header(fields: dict[str, Any]) -> Header:
    header = fields["header"]
    return Header(*(int(header.get(name, 0)) for name in Header._fields))


def _range_of(prefix: str) -> dict[str, str]:
    """All keys with the prefix: etcd takes the first key after them. The last byte of UTF-8 is never 255."""
    start = prefix.encode(errors="surrogateescape")
    return {"key": _base64(start), "range_end": _base64(start[:-1] + bytes([start[-1] + 1]))}


def _encode(key: str) -> str:
    return _base64(key.encode(errors="surrogateescape"))


def _decode(key: str) -> str:
    return base64.b64decode(key).decode(errors="surrogateescape")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
