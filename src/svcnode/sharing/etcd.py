"""A client of etcd 3.4 or later, over its JSON gateway.

A call goes to the endpoint that responded last. If that one cannot be reached, does not respond in time or has no
leader, the call goes to the next endpoint, so a write may be applied twice: all writes of a replica are idempotent.

Each linearizable response adds a fence: see `fences`.

A password and the files of TLS may be replaced while the client is used. A password in a file is read again when etcd
refuses the login (`login`), the files of TLS when no connection can be made.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpcore2  # noqa: F401  otherwise httpx loads it with the first request, within its deadline
import httpx2

from svcnode.core.address import RegistryAddress
from svcnode.core.errors import (
    OptionError,
    RegistryError,
    RegistryLoginError,
    RegistryPermissionError,
    RegistryUnreachableError,
)
from svcnode.core.text import error_text
from svcnode.core.url import join_host_port
from svcnode.net.clock import monotonic_s
from svcnode.net.connect import TcpEndpoint
from svcnode.net.etcd_json import (
    DELETE_PATH,
    GRANT_PATH,
    KEEP_ALIVE_PATH,
    LOGIN_PATH,
    PUT_PATH,
    RANGE_PATH,
    REVOKE_PATH,
    STATUS_PATH,
    TXN_PATH,
    WATCH_PATH,
    Compare,
    Delete,
    Event,
    Header,
    KeyValue,
    Lease,
    MemberStatus,
    Put,
    Range,
    RangePage,
    RangeResult,
    TokenError,
    TxnResult,
    WatchBatch,
    encode_key,
    encode_prefix,
    parse_batch,
    parse_header,
    parse_message,
    parse_page,
    parse_ranges,
    parse_status,
    parse_token,
    whole_revisions,
)
from svcnode.net.files import READ_TIMEOUT_S
from svcnode.net.os_errors import connection_error_text
from svcnode.sharing.fences import Fences
from svcnode.sharing.login import Login
from svcnode.sharing.pages import MAX_PAGE_BYTES, MAX_RANGES_BYTES, PAGE_KEYS, PageSize

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from svcnode.net.tls import TlsOptions

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 2.0
# The revision in a response to the others may be an old one: that of the member, not of the cluster.
_LINEARIZABLE_PATHS = {RANGE_PATH, PUT_PATH, DELETE_PATH, TXN_PATH, GRANT_PATH}
_CLOSED = "connection closed"
_WRITE_PATHS = {PUT_PATH, DELETE_PATH, TXN_PATH}
# Without it, a member that has lost its leader lets calls wait, and keeps watches open that receive nothing.
_REQUIRE_LEADER = {"Grpc-Metadata-hasleader": "true"}


@dataclass(slots=True)
class Traffic:
    """Totals of a client. The bytes are those of the bodies of HTTP."""

    requests: int = 0
    writes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class _TimeoutError(RegistryUnreachableError):
    pass


class _TooLargeError(RegistryError):
    pass


class _TooLateError(_TooLargeError):
    """Probably too large: it did not come in time."""


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


class EtcdClient:
    """For one event loop. A call succeeds or raises a `RegistryError`, within `timeout_s` per endpoint.

    The gateway knows no user by a certificate: permissions need a user name and a password.
    """

    def __init__(  # noqa: PLR0913  all but the first have names and defaults
        self,
        endpoints: Iterable[tuple[str, int]],
        *,
        username: str = "",
        password: str = "",
        tls: TlsOptions | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        clock: Callable[[], float] = monotonic_s,
    ) -> None:
        endpoints = tuple(endpoints)
        self.endpoints = tuple(TcpEndpoint.of(host, port) for host, port in endpoints)
        self.fences = Fences()
        self.traffic = Traffic()
        self._timeout_s = timeout_s
        self._clock = clock
        self._current = random.randrange(len(self.endpoints))  # noqa: S311  spreads the replicas over the members
        self._addresses: dict[TcpEndpoint, str] = {}  # of endpoints that are names
        self._replaced_http: httpx2.AsyncClient | None = None  # calls that began before may still use it
        self._page_size = PageSize()
        self._login = Login(RegistryAddress(endpoints, username=username, password=password))
        self._tls = tls
        self._are_files_old, self._file_problem = False, ""

    @classmethod
    def at(cls, registry: RegistryAddress, tls: TlsOptions | None) -> Self:
        client = cls(registry.endpoints)
        client.set_access(registry, tls)
        return client

    def set_access(self, registry: RegistryAddress, tls: TlsOptions | None) -> None:
        """Use this password from the next login on, and these files of TLS from the next call on.

        The endpoints stay.
        """
        self._login.set(registry)
        self._tls = tls
        self._are_files_old = True

    async def __aenter__(self) -> Self:
        self._context = await self._load_context()
        self._are_files_old, self._file_problem = False, ""
        self._http = self._new_http_client()
        return self

    async def __aexit__(self, *_: object) -> None:
        for http in (self._http, self._replaced_http):
            if http is not None:
                await http.aclose()
        self._replaced_http = None

    async def _load_context(self) -> ssl.SSLContext:
        """The same one if the files have not changed."""
        if self._tls is None:
            return _no_tls()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self._tls.tls_context()
        except (OptionError, OSError) as exc:
            raise RegistryError(f"cannot read the TLS files of the registry: {error_text(exc)}") from exc

    async def _load_files_again(self) -> None:
        """Those of before stay in use if they cannot be read, as in the middle of a replacement."""
        self._are_files_old, self._file_problem = False, ""
        try:
            context = await self._load_context()
        except RegistryError as exc:
            self._file_problem = str(exc)
            return
        if context is not self._context:
            closed, self._replaced_http = self._replaced_http, self._http
            self._context = context
            self._http = self._new_http_client()
            if closed is not None:
                await closed.aclose()

    def _new_http_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            verify=self._context, timeout=None, trust_env=False, headers={"Accept-Encoding": "identity"}
        )

    @property
    def endpoint(self) -> TcpEndpoint:
        """The one that responded last."""
        return self.endpoints[self._current]

    async def range(self, prefix: str, *, at_revision: int = 0, keys_only: bool = False) -> RangeResult:
        """All keys with the prefix at one revision, by default the newest one. Sorted by key."""
        size, keys = self._page_size, Range(prefix, keys_only).encode()
        first = page = await self._range_page(keys, at_revision, size)
        revision = at_revision or first.header.revision
        while page.has_more:
            keys["key"] = encode_key(page.kvs[-1].key + "\0")
            page = await self._range_page(keys, revision, size)
            first.kvs.extend(page.kvs)
        self._page_size = size.next_range()
        return RangeResult(first.header, first.kvs)

    async def _range_page(self, keys: dict[str, Any], revision: int, size: PageSize) -> RangePage:
        while True:
            body = {**keys, "revision": str(revision), "limit": str(size.keys)}
            try:
                page, byte_count = await self._try_endpoints(partial(self._post_range, body, size.keys))
            except _TooLargeError:
                size.refuse()
            else:
                size.accept(len(page.kvs), byte_count)
                return page

    async def _post_range(self, body: dict[str, Any], page_keys: int, endpoint: TcpEndpoint) -> tuple[RangePage, int]:
        """A page, and its size. A page of one key may have any size, but must come in time."""
        if page_keys == 1:
            return await self._exchange(endpoint, RANGE_PATH, body, parse_page)
        with _late_is_too_large():
            return await self._exchange(endpoint, RANGE_PATH, body, parse_page, max_bytes=MAX_PAGE_BYTES)

    async def keys(self, prefix: str, *, start: str = "", limit: int = PAGE_KEYS) -> list[str]:
        """The first keys with the prefix, from the key `start` on. Sorted."""
        keys = {**encode_prefix(prefix), "key": encode_key(start or prefix)}
        page = await self._call(RANGE_PATH, {**keys, "keys_only": True, "limit": str(limit)}, parse_page)
        return [kv.key for kv in page.kvs]

    async def ranges(self, ranges: Iterable[Range]) -> list[list[KeyValue]]:
        """Up to 128 ranges at one revision: in one response, or one after the other if it is too large."""
        ranges = list(ranges)
        try:
            found, _ = await self._try_endpoints(partial(self._post_ranges, ranges))
        except _TooLargeError:
            found, revision = [], 0
            for each in ranges:
                result = await self.range(each.prefix, at_revision=revision, keys_only=each.keys_only)
                revision = revision or result.header.revision
                found.append(result.kvs)
        return found

    async def _post_ranges(self, ranges: Iterable[Range], endpoint: TcpEndpoint) -> tuple[list[list[KeyValue]], int]:
        body = {"success": [{"request_range": each.encode()} for each in ranges]}
        with _late_is_too_large():
            return await self._exchange(endpoint, TXN_PATH, body, parse_ranges, max_bytes=MAX_RANGES_BYTES)

    async def get(self, key: str, *, at_revision: int = 0) -> KeyValue | None:
        """At this revision, by default the newest one."""
        body = {"key": encode_key(key), "revision": str(at_revision)}
        page = await self._call(RANGE_PATH, body, parse_page)
        return page.kvs[0] if page.kvs else None

    async def fence(self, key: str) -> Header:
        """Get the revision of the cluster. The key may be any that the user may read; it need not exist."""
        return await self._call(RANGE_PATH, {"key": encode_key(key), "count_only": True}, parse_header)

    async def put(self, key: str, value: bytes, *, lease_id: int = 0) -> Header:
        return await self._call(PUT_PATH, Put(key, value, lease_id).encode(), parse_header)

    async def delete(self, key: str, *, is_prefix: bool = False) -> Header:
        return await self._call(DELETE_PATH, Delete(key, is_prefix).encode(), parse_header)

    async def txn(self, operations: Iterable[Put | Delete], compares: Iterable[Compare] = ()) -> TxnResult:
        """Up to 128 operations on different keys: the default limit of etcd."""
        names = {Put: "request_put", Delete: "request_delete_range"}
        success = [{names[type(operation)]: operation.encode()} for operation in operations]
        body = {"compare": [compare.encode() for compare in compares], "success": success}
        return await self._call(
            TXN_PATH, body, lambda fields: TxnResult(parse_header(fields), fields.get("succeeded", False))
        )

    async def grant_lease(self, ttl_s: int) -> Lease:
        return await self._call(GRANT_PATH, {"TTL": ttl_s}, lambda fields: Lease(int(fields["ID"]), int(fields["TTL"])))

    async def keep_alive(self, lease_id: int) -> int:
        """The remaining seconds; 0 if the lease is over."""
        return await self._call(
            KEEP_ALIVE_PATH, {"ID": str(lease_id)}, lambda fields: int(fields["result"].get("TTL", 0))
        )

    async def revoke(self, lease_id: int) -> None:
        """Deletes the keys under the lease."""
        await self._call(REVOKE_PATH, {"ID": str(lease_id)}, parse_header)

    async def status(self, endpoint: TcpEndpoint) -> MemberStatus:
        """What the member at this endpoint says of itself; no other is asked.

        Older versions tell it without a login, also while they have no leader, and a login waits for one.
        """
        try:
            return await self._post(endpoint, STATUS_PATH, {}, parse_status)
        except TokenError:
            await self._log_in(endpoint, self._login.token)
            return await self._post(endpoint, STATUS_PATH, {}, parse_status)

    async def check_login(self, key: str) -> None:
        """Raise `RegistryLoginError` if authentication was turned off: then newer versions of etcd ignore tokens."""
        if self._login.username and await self._answers_anyone(key):
            self._login.token = None
            await self.fence(key)

    async def _answers_anyone(self, key: str) -> bool:
        """Whether etcd answers a request without a token. A refusal costs it far less than a login."""
        body = {"key": encode_key(key), "count_only": True}
        try:
            await self._post(self.endpoint, RANGE_PATH, body, parse_header, is_anonymous=True)
        except (RegistryLoginError, RegistryPermissionError):
            return False
        return True

    @asynccontextmanager
    async def watch(self, prefix: str, start_revision: int) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        """Changes from this revision on, on a connection of its own.

        The iterator ends by a `RegistryError`, or if a wait for the next batch is cancelled. etcd checks the permission
        only at the start. A connection that is cut may stay silent without end; the caller notices it, because its own
        writes do not come back. Large values come in several pieces (`fragment`).
        """
        options = {"start_revision": str(start_revision), "progress_notify": True, "fragment": True}
        request = {**encode_prefix(prefix), **options}
        async with self._new_http_client() as http:
            open_stream = partial(self._open_watch, http, {"create_request": request})
            endpoint, lines = await self._try_watch(prefix, open_stream)
            async with aclosing(self._batches(endpoint, lines)) as batches:
                yield batches

    async def _try_watch(self, prefix: str, attempt: Callable[[TcpEndpoint], Awaitable[T]]) -> T:
        """Some versions of etcd 3.5 deny a watch whose token is lost as if its user had no permission."""
        used = self._login.token
        try:
            return await self._try_endpoints(attempt)
        except RegistryPermissionError:
            await self.fence(prefix)  # it logs in again, if need be
            if self._login.token in (used, None):
                raise
            return await self._try_endpoints(attempt)

    # ---- calls

    async def _call(self, path: str, body: dict[str, Any], parse: Callable[[dict[str, Any]], T]) -> T:
        return await self._try_endpoints(lambda endpoint: self._post(endpoint, path, body, parse))

    async def _try_endpoints(self, attempt: Callable[[TcpEndpoint], Awaitable[T]]) -> T:
        failures: list[str] = []
        first, count = self._current, len(self.endpoints)  # other calls change the current one meanwhile
        for index in ((first + offset) % count for offset in range(count)):
            endpoint = self.endpoints[index]
            if self._are_files_old:
                await self._load_files_again()
            try:
                result = await self._with_token(endpoint, attempt)
            except RegistryUnreachableError as exc:
                self._addresses.pop(endpoint, None)
                self._are_files_old = self._tls is not None
                failures.append(str(exc))
            else:
                self._current = index
                return result
        raise RegistryUnreachableError("; ".join(filter(None, [*failures, self._file_problem])))

    async def _with_token(self, endpoint: TcpEndpoint, attempt: Callable[[TcpEndpoint], Awaitable[T]]) -> T:
        """With another token after a failure, whatever it was: no response may be due to the token.

        A token has the index of the log of etcd at which it was made, and a member lets each request with it wait until
        it has applied that. Once etcd is restored from a snapshot, this may take for ever. A login waits for nothing.
        """
        if self._login.username and self._login.token is None:
            await self._log_in(endpoint, None)
        used = self._login.token
        try:
            return await attempt(endpoint)
        except TokenError:
            await self._log_in(endpoint, used)
            return await attempt(endpoint)
        except (RegistryUnreachableError, _TooLateError):
            self._login.drop(used)
            raise

    async def _log_in(self, endpoint: TcpEndpoint, used: str | None) -> None:
        """Replace the token that was used."""

        def request(name: str, password: str) -> Awaitable[str]:
            return self._post(endpoint, LOGIN_PATH, {"name": name, "password": password}, parse_token)

        await self._login.renew(endpoint, used, request)

    async def _post(
        self,
        endpoint: TcpEndpoint,
        path: str,
        body: dict[str, Any],
        parse: Callable[[dict[str, Any]], T],
        *,
        is_anonymous: bool = False,
    ) -> T:
        return (await self._exchange(endpoint, path, body, parse, is_anonymous=is_anonymous))[0]

    async def _exchange(  # noqa: PLR0913  the last ones have names
        self,
        endpoint: TcpEndpoint,
        path: str,
        body: dict[str, Any],
        parse: Callable[[dict[str, Any]], T],
        *,
        is_anonymous: bool = False,
        max_bytes: int | None = None,
    ) -> tuple[T, int]:
        """What a response means, and its size. Not more than `max_bytes` are received."""
        with self._translated_errors(endpoint):
            async with asyncio.timeout(self._timeout_s):
                http = self._http
                request = await self._request(http, endpoint, path, body, is_anonymous=is_anonymous)
                sent_at_s = self._clock()
                content = await _content(http, request, max_bytes)
        received_at_s = self._clock()
        self.traffic.received_bytes += len(content)
        fields, result = parse_message(content, endpoint, lambda fields: (fields, parse(fields)))
        if path in _LINEARIZABLE_PATHS:
            self.fences.add(parse_header(fields), sent_at_s=sent_at_s, received_at_s=received_at_s)
        return result, len(content)

    async def _open_watch(
        self, http: httpx2.AsyncClient, body: dict[str, Any], endpoint: TcpEndpoint
    ) -> tuple[TcpEndpoint, AsyncIterator[str]]:
        with self._translated_errors(endpoint):
            async with asyncio.timeout(self._timeout_s):
                request = await self._request(http, endpoint, WATCH_PATH, body)
                response = await http.send(request, stream=True)
                try:
                    lines = response.aiter_lines()
                    parse_message(await anext(lines, ""), endpoint, parse_batch)  # that the watch is created
                except BaseException:
                    await response.aclose()
                    raise
        return endpoint, lines

    async def _batches(self, endpoint: TcpEndpoint, lines: AsyncIterator[str]) -> AsyncGenerator[WatchBatch, None]:
        incomplete: list[Event] = []
        with self._translated_errors(endpoint):
            async for line in lines:
                self.traffic.received_bytes += len(line)
                batch, incomplete = whole_revisions(incomplete, parse_message(line, endpoint, parse_batch))
                if batch is not None:
                    yield batch
        raise RegistryUnreachableError(f"{endpoint}: etcd ended the watch")

    async def _request(
        self,
        http: httpx2.AsyncClient,
        endpoint: TcpEndpoint,
        path: str,
        body: dict[str, Any],
        *,
        is_anonymous: bool = False,
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
                **({} if path == STATUS_PATH else _REQUIRE_LEADER),
                **({"Authorization": self._login.token} if self._login.token and not is_anonymous else {}),
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
    def _translated_errors(self, endpoint: TcpEndpoint) -> Iterator[None]:
        try:
            yield
        except TimeoutError as exc:
            raise _TimeoutError(f"{endpoint}: no response within {self._timeout_s:g} s") from exc
        except (OSError, httpx2.HTTPError) as exc:
            text = _connection_error_text(exc)
            if text == _CLOSED and self._tls is None and self.fences.last_response_at_s is None:
                text = f"{text}; if etcd requires TLS, set tls = true in [sharing], or SVCNODE_SHARING_TLS=true"
            raise RegistryUnreachableError(f"{endpoint}: {text}") from exc


async def _content(http: httpx2.AsyncClient, request: httpx2.Request, max_bytes: int | None) -> bytes:
    response = await http.send(request, stream=True)
    try:
        parts, received = [], 0
        async for part in response.aiter_raw():
            parts.append(part)
            received += len(part)
            if max_bytes is not None and received > max_bytes:
                raise _TooLargeError(f"larger than {max_bytes:,} bytes")
        return b"".join(parts)
    finally:
        await response.aclose()


@contextmanager
def _late_is_too_large() -> Iterator[None]:
    """etcd makes a response as a whole before it sends any of it."""
    try:
        yield
    except _TimeoutError as exc:
        raise _TooLateError(str(exc)) from exc


@cache
def _no_tls() -> ssl.SSLContext:
    """httpx would load the authorities of the system."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _connection_error_text(exc: BaseException) -> str:
    """Of the innermost cause: the errors of httpx do not say why."""
    causes = [exc]
    while inner := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(inner)
    found = next((cause for cause in reversed(causes) if isinstance(cause, OSError) and cause.errno is not None), None)
    return _CLOSED if found is None else connection_error_text(found)
