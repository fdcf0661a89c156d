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

from svcnode.client import reading
from svcnode.client.address import DEFAULT_PREFIX, need_text, node_address
from svcnode.client.connections import Connection
from svcnode.client.faults import translated
from svcnode.client.reading import Answer
from svcnode.core.errors import InvalidValueError, NotThisInterfaceError, UnreachableError
from svcnode.core.units import duration_s
from svcnode.core.wording import excerpt, system_words
from svcnode.version import __version__

if TYPE_CHECKING:
    from svcnode.client.address import NodeAddress
    from svcnode.client.reading import Operation
    from svcnode.client.results import BackingService
    from svcnode.core.errors import ClientError
    from svcnode.core.model import Health, Identity

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 10.0
_HEADERS = {
    "User-Agent": f"svcnode/{__version__}",
    "Accept": "application/json, */*;q=0.5",
    "Accept-Encoding": "identity",
}
_IDLE_S = 60.0
_MAX_TOLERATED = 100  # what a node does wrong is often the same; what is always something else must not fill the memory
_RETRY_PAUSE_S = 0.1
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
        self._address = _askable(node_address(url, prefix))
        self._query = _version_query(version)
        self._timeout_s = _positive_s(timeout)
        self._retries = _count(retries)
        self._has_own_ca = ca is not None
        self._tls = _tls(ca, is_used=self._address.speaks_tls or trust_env)
        self._trust_env = trust_env
        self._tolerated: dict[str, None] = {}
        self._by_owner: dict[_Owner, httpx2.AsyncClient] = {}
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
    def tolerated(self) -> tuple[str, ...]:
        """What was not as the interface has it, and was understood nevertheless: each thing once, in order."""
        return tuple(self._tolerated)

    async def identity(self) -> Identity:
        """Who the node is, in its own words: a version in another form than ours stands there as the node has it."""
        return await self._ask(reading.IDENTITY)

    async def health(self) -> Health:
        return await self._ask(reading.HEALTH)

    async def services(self) -> tuple[BackingService, ...]:
        """In the order of the node."""
        return await self._ask(reading.SERVICES)

    async def service_health(self, service_id: str) -> Health:
        """Of one service, by its id as the list has it, whatever characters it holds."""
        return await self._ask(reading.service_health(service_id))

    async def aclose(self) -> None:
        """Closes the connections of the running loop, and asks no more in any."""
        self._is_closed = True
        self._forget_closed_loops()
        if http := self._by_owner.pop(_owner(), None):
            await http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ---- asking

    @property
    def _http(self) -> httpx2.AsyncClient:
        """That of the running loop in this process: no other loop could use its connections, and a forked process that
        did would take the answers to its parent's questions for its own."""
        if self._is_closed:
            raise RuntimeError("the client is closed")
        owner = _owner()
        if owner not in self._by_owner:
            self._forget_closed_loops()
            self._by_owner[owner] = self._begun()
        return self._by_owner[owner]

    def _begun(self) -> httpx2.AsyncClient:
        """Only with the first request: to make those for many nodes takes a while, before any of them is asked."""
        login = {"Authorization": self._address.authorization} if self._address.authorization else {}
        path, limits = self._address.socket_path, httpx2.Limits(keepalive_expiry=_IDLE_S)
        return httpx2.AsyncClient(
            verify=self._tls,
            headers=_HEADERS | login,
            timeout=None,  # those of httpx are for each step of a request; ours is for all of it
            limits=limits,
            transport=httpx2.AsyncHTTPTransport(uds=path, verify=self._tls, limits=limits) if path else None,
            trust_env=self._trust_env,
        )

    def _forget_closed_loops(self) -> None:
        """Connections that they left open cannot be ended in good order any more, but are closed with that. A loop that
        is open is left alone: another thread may run it, or the process that this one was forked from."""
        for owner in tuple(self._by_owner):
            _, loop = owner
            if loop.is_closed():
                self._by_owner.pop(owner, None)  # another thread may have been faster

    async def _ask(self, operation: Operation[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._answer(operation)
        except TimeoutError:
            where = f"{self.root}{operation.path}"
            raise UnreachableError(f"no whole answer from {where} within {self._timeout_s:g} s") from None
        value, tolerated = operation.reading(answer)
        for sentence in tolerated:
            if len(self._tolerated) < _MAX_TOLERATED:
                self._tolerated[sentence] = None
        return value

    async def _answer(self, operation: Operation[T]) -> Answer:
        target = f"{operation.path}{self._query}"
        url, shown = f"{self._address.root}{target}", f"{self.root}{target}"
        retries_left = self._retries
        while True:
            connection = Connection(self.url)
            try:
                return await self._fetched(url, shown, operation.max_bytes, connection)
            except httpx2.ConnectError as exc:
                if not retries_left:
                    raise self._translated(exc) from exc
            except httpx2.HTTPError as exc:
                if connection.is_new or connection.has_answered:
                    raise self._translated(exc) from exc
                continue  # one that was kept, and that the node had closed meanwhile
            await asyncio.sleep(_RETRY_PAUSE_S * 2 ** (self._retries - retries_left))
            retries_left -= 1

    def _translated(self, exc: httpx2.HTTPError) -> ClientError:
        return translated(exc, self.url, has_own_ca=self._has_own_ca)

    async def _fetched(self, url: str, shown: str, max_bytes: int, connection: Connection) -> Answer:
        body, http = bytearray(), self._http
        try:
            with connection.taken():
                async with http.stream("GET", url, extensions={"trace": connection.trace}) as response:
                    connection.has_answered = True
                    async for chunk in response.aiter_bytes():
                        body += chunk
                        _check_size(len(body), max_bytes, shown)
        except BaseException:
            body.clear()  # the error keeps this frame for a while, and it may be large
            raise
        http.cookies.clear()
        return Answer(shown, response.status_code, response.headers, bytes(body))


def _owner() -> _Owner:
    return os.getpid(), asyncio.get_running_loop()


def _check_size(size: int, max_bytes: int, shown: str) -> None:
    if size > max_bytes:
        raise NotThisInterfaceError(f"got more than {max_bytes // reading.MIB} MiB at {shown}")


def _askable(address: NodeAddress) -> NodeAddress:
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
    need_text("a version", version)
    if not version:
        raise InvalidValueError("a version is not empty; without one, the latest answers")
    try:
        return f"?version={quote(version, safe='')}"
    except UnicodeEncodeError:
        raise InvalidValueError(f"{version!r} is no version: it cannot stand in a URL") from None


def _positive_s(timeout: object) -> float:
    if not isinstance(timeout, str | int | float):
        raise InvalidValueError(f'a timeout is a number of seconds, or text such as "5s", not {timeout!r}')
    seconds = duration_s(timeout)
    if not seconds:
        raise InvalidValueError("a timeout is more than 0")
    return seconds


def _count(retries: object) -> int:
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise InvalidValueError(f"retries are a whole number that is not negative, not {retries!r}")
    return retries


def _tls(ca: str | os.PathLike[str] | None, *, is_used: bool) -> ssl.SSLContext:
    if ca is None and not is_used:
        return _trusting_nobody()
    file = "" if ca is None else str(ca)
    if ca is not None and not file:
        raise InvalidValueError("ca: names no file")
    try:
        return _trusting(file, Path(file).stat().st_mtime_ns if file else 0)
    except (OSError, ValueError) as exc:
        why = system_words(exc) if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError) else "not a PEM file"
        raise InvalidValueError(f"ca: cannot use {file}: {why}") from exc


@lru_cache(maxsize=8)
def _trusting(ca: str, _changed_at_ns: int) -> ssl.SSLContext:
    """Shared: reading what this machine trusts takes longer than asking a node."""
    return ssl.create_default_context(cafile=ca or None)


@lru_cache(maxsize=1)
def _trusting_nobody() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
