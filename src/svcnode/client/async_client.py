"""The client for asyncio."""

from __future__ import annotations

import asyncio
import os
import ssl
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote

import httpcore2  # noqa: F401  httpx would load it with the first request, inside of its timeout
import httpx2

from svcnode.client import parse
from svcnode.client.address import DEFAULT_PREFIX, parse_node_address, require_str
from svcnode.client.errors import translate_http_error
from svcnode.client.parse import NodeResponse
from svcnode.client.stream_guard import StreamGuard
from svcnode.core.errors import InvalidValueError, UnexpectedResponseError, UnreachableError
from svcnode.core.text import excerpt, os_error_text
from svcnode.core.units import parse_duration_s
from svcnode.version import __version__

if TYPE_CHECKING:
    from svcnode.client.address import NodeAddress
    from svcnode.client.parse import BackingService, Operation
    from svcnode.core.errors import ClientError
    from svcnode.core.model import Health, Identity

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 10.0
_HEADERS = {
    "User-Agent": f"svcnode/{__version__}",
    "Accept": "application/json, */*;q=0.5",
    "Accept-Encoding": "identity",
}
_KEEPALIVE_EXPIRY_S = 60.0
_MAX_DEVIATIONS = (
    100  # what a node does wrong is often the same; what is always something else must not fill the memory
)
_RETRY_DELAY_S = 0.1
_Owner = tuple[int, asyncio.AbstractEventLoop]  # of connections: a process, and a loop in it


class AsyncClient:
    """Asks one node. Every operation raises a ClientError, and nothing else, when it cannot be answered.

    `url` is `host`, `host:port` or a whole URL; without a scheme it is http. Or it is `unix:/path`. `version` asks for
    that version of the interface, `timeout` (seconds, or "5s") bounds each operation as a whole, `retries` are for
    connections that cannot be made, `ca` is a PEM file to trust instead of what this machine trusts, and `trust_env`
    heeds the proxies that the environment names.
    """

    def __init__(  # noqa: PLR0913  all but the first have names and defaults
        self,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        version: str | None = None,
        timeout: float | str = DEFAULT_TIMEOUT_S,
        retries: int = 0,
        ca: str | os.PathLike[str] | None = None,
        trust_env: bool = False,
    ) -> None:
        self._address = _validate_address(parse_node_address(url, prefix))
        self._query = _version_query(version)
        self._timeout_s = _parse_timeout(timeout)
        self._retries = _validate_retries(retries)
        self._has_custom_ca = ca is not None
        self._ssl_context = _ssl_context(ca, is_used=self._address.uses_tls or trust_env)
        self._trust_env = trust_env
        self._deviations: dict[str, None] = {}
        self._http_clients: dict[_Owner, httpx2.AsyncClient] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """Fit to be shown: without the password, and without the prefix."""
        return str(self._address)

    @property
    def root(self) -> str:
        """What the paths of the interface stand under, prefix and all; fit to be shown."""
        return f"{self.url}{self._address.prefix}"

    @property
    def deviations(self) -> tuple[str, ...]:
        """What was not as the interface has it, and was understood nevertheless: each thing once, in order."""
        return tuple(self._deviations)

    async def identity(self) -> Identity:
        """Who the node is, in its own words: a version in another form than ours stands there as the node has it."""
        return await self._request(parse.IDENTITY)

    async def health(self) -> Health:
        return await self._request(parse.HEALTH)

    async def services(self) -> tuple[BackingService, ...]:
        """In the order of the node."""
        return await self._request(parse.SERVICES)

    async def service_health(self, service_id: str) -> Health:
        """Of one service, by its id as the list has it, whatever characters it holds."""
        return await self._request(parse.service_health_operation(service_id))

    async def aclose(self) -> None:
        """Closes the connections of the running loop, and asks no more in any."""
        self._is_closed = True
        self._drop_closed_loops()
        if http := self._http_clients.pop(_current_owner(), None):
            await http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ---- asking

    @property
    def _http_client(self) -> httpx2.AsyncClient:
        """That of the running loop in this process: no other loop could use its connections, and a forked process that
        did would take the answers to its parent's questions for its own."""
        if self._is_closed:
            raise RuntimeError("the client is closed")
        owner = _current_owner()
        if owner not in self._http_clients:
            self._drop_closed_loops()
            self._http_clients[owner] = self._create_http_client()
        return self._http_clients[owner]

    def _create_http_client(self) -> httpx2.AsyncClient:
        """Only with the first request: to make those for many nodes takes a while, before any of them is asked."""
        login = {"Authorization": self._address.authorization} if self._address.authorization else {}
        path, limits = self._address.socket_path, httpx2.Limits(keepalive_expiry=_KEEPALIVE_EXPIRY_S)
        return httpx2.AsyncClient(
            verify=self._ssl_context,
            headers=_HEADERS | login,
            timeout=None,  # those of httpx are for each step of a request; ours is for all of it
            limits=limits,
            transport=httpx2.AsyncHTTPTransport(uds=path, verify=self._ssl_context, limits=limits) if path else None,
            trust_env=self._trust_env,
        )

    def _drop_closed_loops(self) -> None:
        """Connections that they left open cannot be ended in good order any more, but are closed with that. A loop that
        is open is left alone: another thread may run it, or the process that this one was forked from."""
        for owner in tuple(self._http_clients):
            _, loop = owner
            if loop.is_closed():
                self._http_clients.pop(owner, None)  # another thread may have been faster

    async def _request(self, operation: Operation[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._fetch_with_retries(operation)
        except TimeoutError:
            where = f"{self.root}{operation.path}"
            raise UnreachableError(f"no whole answer from {where} within {self._timeout_s:g} s") from None
        value, deviations = operation.parse(answer)
        for sentence in deviations:
            if len(self._deviations) < _MAX_DEVIATIONS:
                self._deviations[sentence] = None
        return value

    async def _fetch_with_retries(self, operation: Operation[T]) -> NodeResponse:
        target = f"{operation.path}{self._query}"
        url, shown = f"{self._address.root}{target}", f"{self.root}{target}"
        retries_left = self._retries
        while True:
            connection = StreamGuard(self.url)
            try:
                return await self._fetch(url, shown, operation.max_bytes, connection)
            except httpx2.ConnectError as exc:
                if not retries_left:
                    raise self._to_client_error(exc) from exc
            except httpx2.HTTPError as exc:
                if connection.is_new_connection or connection.has_response:
                    raise self._to_client_error(exc) from exc
                continue  # one that was kept, and that the node had closed meanwhile
            await asyncio.sleep(_RETRY_DELAY_S * 2 ** (self._retries - retries_left))
            retries_left -= 1

    def _to_client_error(self, exc: httpx2.HTTPError) -> ClientError:
        return translate_http_error(exc, self.url, has_custom_ca=self._has_custom_ca)

    async def _fetch(self, url: str, shown: str, max_bytes: int, connection: StreamGuard) -> NodeResponse:
        body, http = bytearray(), self._http_client
        try:
            with connection.activate():
                async with http.stream("GET", url, extensions={"trace": connection.trace}) as response:
                    connection.has_response = True
                    async for chunk in response.aiter_bytes():
                        body += chunk
                        _check_size(len(body), max_bytes, shown)
        except BaseException:
            body.clear()  # the error keeps this frame for a while, and it may be large
            raise
        http.cookies.clear()
        return NodeResponse(shown, response.status_code, response.headers, bytes(body))


def _current_owner() -> _Owner:
    return os.getpid(), asyncio.get_running_loop()


def _check_size(size: int, max_bytes: int, shown: str) -> None:
    if size > max_bytes:
        raise UnexpectedResponseError(f"got more than {max_bytes // parse.MIB} MiB at {shown}")


def _validate_address(address: NodeAddress) -> NodeAddress:
    """Raises for what only httpx knows that it cannot be asked."""
    try:
        _ = httpx2.URL(address.root).host  # some names, it refuses only here
    except (httpx2.InvalidURL, UnicodeError) as exc:
        why = "its host is not a name as the network knows them, or it is too long"
        raise InvalidValueError(f"'{excerpt(str(address))}' is not the URL of a node: {why}") from exc
    return address


def _version_query(version: str | None) -> str:
    if version is None:
        return ""
    require_str("a version", version)
    if not version:
        raise InvalidValueError("a version is not empty; without one, the latest answers")
    try:
        return f"?version={quote(version, safe='')}"
    except UnicodeEncodeError:
        raise InvalidValueError(f"{version!r} is no version: it cannot stand in a URL") from None


def _parse_timeout(timeout: object) -> float:
    if not isinstance(timeout, str | int | float):
        raise InvalidValueError(f'a timeout is a number of seconds, or text such as "5s", not {timeout!r}')
    seconds = parse_duration_s(timeout)
    if not seconds:
        raise InvalidValueError("a timeout is more than 0")
    return seconds


def _validate_retries(retries: object) -> int:
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise InvalidValueError(f"retries are a whole number that is not negative, not {retries!r}")
    return retries


def _ssl_context(ca: str | os.PathLike[str] | None, *, is_used: bool) -> ssl.SSLContext:
    if ca is None and not is_used:
        return _empty_ssl_context()
    file = "" if ca is None else str(ca)
    if ca is not None and not file:
        raise InvalidValueError("ca: names no file")
    try:
        return _load_ssl_context(file, Path(file).stat().st_mtime_ns if file else 0)
    except (OSError, ValueError) as exc:
        why = os_error_text(exc) if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError) else "not a PEM file"
        raise InvalidValueError(f"ca: cannot use {file}: {why}") from exc


@lru_cache(maxsize=8)
def _load_ssl_context(ca: str, _changed_at_ns: int) -> ssl.SSLContext:
    """Shared: reading what this machine trusts takes longer than asking a node."""
    return ssl.create_default_context(cafile=ca or None)


@lru_cache(maxsize=1)
def _empty_ssl_context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
