"""The client for asyncio."""

from __future__ import annotations

import asyncio
import math
import os
import ssl
import time
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, cast
from urllib.parse import quote

import httpcore2  # noqa: F401  otherwise httpx loads it with the first request, within its timeout
import httpx2

from svcnode.client import parse
from svcnode.client.errors import translate_http_error
from svcnode.client.parse import NodeResponse
from svcnode.client.response_guard import ResponseGuard
from svcnode.core.address import parse_node_address
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, UnexpectedResponseError, UnreachableError, VersionIgnoredError
from svcnode.core.model import DEFAULT_PREFIX, Identity, require_str
from svcnode.core.text import excerpt, os_error_text
from svcnode.core.units import parse_duration_s, parse_size_bytes
from svcnode.net.threads import ThreadRefusedError, call_in_thread
from svcnode.version import __version__

if TYPE_CHECKING:
    from svcnode.client.parse import BackingService, Operation, ParsedResponse
    from svcnode.core.address import NodeAddress
    from svcnode.core.errors import ClientError
    from svcnode.core.model import Health

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_MAX_RESPONSE = "8MiB"
_PARSED_AT_ONCE_BYTES = 64 * 1024  # a larger response is parsed in a thread
_HEADERS = {
    "User-Agent": f"svcnode/{__version__}",
    "Accept": "application/json, */*;q=0.5",
    "Accept-Encoding": "identity",
}
_KEEPALIVE_EXPIRY_S = 60.0
_RETRY_DELAY_S = 0.1
_VERSION_VALID_S = 60.0  # another node may answer at the same address later
_Owner = tuple[int, asyncio.AbstractEventLoop]  # process id and loop that own connections


class AsyncClient:
    """Sends requests to one node. An operation that fails raises a ClientError.

    `url` is `host`, `host:port`, a URL (default scheme http) or `unix:/path`. `version` is the version of the interface
    to request. If the node ignores it, the operation fails; to notice that, the client also requests its
    `spec_version`. `timeout` (seconds, or "5s") is the limit for a whole operation, including the reading of the
    response, and `max_response` is the limit for the size of the response. `retries` is how many more times to try to
    connect. `ca` is a PEM file with the authorities to trust instead of those of this machine, or an SSLContext. With
    `trust_env`, the proxies in the environment are used.
    """

    def __init__(  # noqa: PLR0913  all but the first have names and defaults
        self,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        version: str | None = None,
        timeout: float | str = DEFAULT_TIMEOUT_S,
        max_response: str = DEFAULT_MAX_RESPONSE,
        retries: int = 0,
        ca: str | os.PathLike[str] | ssl.SSLContext | None = None,
        trust_env: bool = False,
    ) -> None:
        self._address = _validate_address(parse_node_address(url, prefix))
        self._version = version
        self._version_checked_s = -math.inf
        self._query = _version_query(version)
        self._timeout_s = _parse_timeout(timeout)
        self._max_bytes = _parse_max_response(max_response)
        self._retries = _validate_retries(retries)
        self._has_custom_ca = ca is not None
        self._ssl_context = _ssl_context(ca, is_used=self._address.uses_tls or trust_env)
        self._trust_env = trust_env
        self._deviations: dict[str, None] = {}
        self._listed_ids: frozenset[str] = frozenset()  # of the newest list
        self._http_clients: dict[_Owner, httpx2.AsyncClient] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """Without the password and the prefix."""
        return str(self._address)

    @property
    def root(self) -> str:
        """The URL with the prefix, without the password."""
        return f"{self.url}{self._address.prefix}"

    @property
    def deviations(self) -> tuple[str, ...]:
        """Deviations from the interface in the responses so far: each once, in order."""
        return tuple(self._deviations)

    async def identity(self) -> Identity:
        """As the node sent it, also if a version has an invalid form."""
        return await self._request(parse.IDENTITY)

    async def health(self) -> Health:
        return await self._request(parse.HEALTH)

    async def services(self) -> tuple[BackingService, ...]:
        """In the order of the node."""
        services = await self._request(parse.SERVICES)
        self._listed_ids = frozenset(service.id for service in services)
        return services

    async def service_health(self, service_id: str) -> Health:
        """The health of one service. The id may hold any character."""
        is_listed = service_id in self._listed_ids
        return await self._request(parse.service_health_operation(service_id, is_listed=is_listed))

    async def aclose(self) -> None:
        """Close the connections of the running loop; no loop can use the client afterwards."""
        self._is_closed = True
        self._drop_closed_loops()
        if http := self._http_clients.pop(_current_owner(), None):
            await http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ---- requests

    @property
    def _http_client(self) -> httpx2.AsyncClient:
        """Per process and running loop: on inherited connections, a fork would receive the responses of its parent."""
        if self._is_closed:
            raise RuntimeError("the client is closed")
        owner = _current_owner()
        if owner not in self._http_clients:
            self._drop_closed_loops()
            self._http_clients[owner] = self._create_http_client()
        return self._http_clients[owner]

    def _create_http_client(self) -> httpx2.AsyncClient:
        """Called with the first request: creating clients for many nodes would delay the first request to any."""
        authorization = self._address.url.basic_authorization
        login = {"Authorization": authorization} if authorization else {}
        path, limits = self._address.socket_path, httpx2.Limits(keepalive_expiry=_KEEPALIVE_EXPIRY_S)
        return httpx2.AsyncClient(
            verify=self._ssl_context,
            headers=_HEADERS | login,
            timeout=None,  # httpx bounds each step of a request; asyncio.timeout bounds the whole
            limits=limits,
            transport=httpx2.AsyncHTTPTransport(uds=path, verify=self._ssl_context, limits=limits) if path else None,
            trust_env=self._trust_env,
        )

    def _drop_closed_loops(self) -> None:
        """Drop the connections of closed loops. An open loop may belong to another thread or to the parent process."""
        for owner in tuple(self._http_clients):
            _, loop = owner
            if loop.is_closed():
                self._http_clients.pop(owner, None)  # another thread may have removed it

    async def _request(self, operation: Operation[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                value = await self._fetch_value(operation)
                if operation is not parse.IDENTITY:
                    await self._require_version()
                return value
        except TimeoutError:
            raise UnreachableError(
                f"timeout: no complete response within {self._timeout_s:g} s",
                url=f"{self.root}{operation.path}",
                code=ReasonCode.TIMEOUT,
            ) from None

    async def _fetch_value(self, operation: Operation[T]) -> T:
        response = await self._fetch_with_retries(operation)
        if len(response.body) <= _PARSED_AT_ONCE_BYTES:
            parsed = operation.parse(response)
        else:
            parsed = await _parse_in_thread(operation, response)
        value = parsed.value
        for deviation in parsed.deviations:
            if len(self._deviations) < parse.MAX_DEVIATIONS:
                self._deviations[deviation] = None
        if isinstance(value, Identity):
            self._check_version(value)
        return value

    async def _require_version(self) -> None:
        """Many nodes ignore the version; health and services do not say of which version they are."""
        if self._version is not None and time.monotonic() - self._version_checked_s > _VERSION_VALID_S:
            try:
                await self._fetch_value(parse.IDENTITY)
            except UnexpectedResponseError as exc:
                if exc.code is not ReasonCode.NOT_FOUND:
                    raise
                raise UnexpectedResponseError(
                    "the node does not serve its identity, so it is not known which version it answers with",
                    url=exc.url,
                    code=ReasonCode.NOT_SUPPORTED,
                ) from exc

    def _check_version(self, identity: Identity) -> None:
        if self._version is None:
            return
        if identity.spec_version.removeprefix("v") != self._version.removeprefix("v"):
            raise VersionIgnoredError(
                f"the node ignores the requested version: it answers with {excerpt(identity.spec_version) or 'none'}",
                url=f"{self.root}{parse.IDENTITY.path}{self._query}",
                code=ReasonCode.NOT_SUPPORTED,
            )
        self._version_checked_s = time.monotonic()

    async def _fetch_with_retries(self, operation: Operation[T]) -> NodeResponse:
        target = f"{operation.path}{self._query}"
        url, display_url = f"{self._address.root}{target}", f"{self.root}{target}"
        retries_left = self._retries
        while True:
            guard = ResponseGuard(self.url)
            try:
                return await self._fetch(url, display_url, guard)
            except httpx2.ConnectError as exc:
                if not retries_left:
                    raise self._to_client_error(exc) from exc
            except httpx2.HTTPError as exc:
                if guard.is_new_connection or guard.has_response:
                    raise self._to_client_error(exc) from exc
                continue  # the node had closed the idle connection
            await asyncio.sleep(_RETRY_DELAY_S * 2 ** (self._retries - retries_left))
            retries_left -= 1

    def _to_client_error(self, exc: httpx2.HTTPError) -> ClientError:
        return translate_http_error(exc, self.url, has_custom_ca=self._has_custom_ca)

    async def _fetch(self, url: str, display_url: str, guard: ResponseGuard) -> NodeResponse:
        body, http = bytearray(), self._http_client
        try:
            with guard.activate():
                async with http.stream("GET", url, extensions={"trace": guard.trace}) as response:
                    guard.has_response = True
                    async for chunk in response.aiter_bytes():
                        body += chunk
                        _check_size(len(body), self._max_bytes, display_url)
        except BaseException:
            body.clear()  # the exception keeps this frame alive, and the body may be large
            raise
        http.cookies.clear()
        return NodeResponse(display_url, response.status_code, response.headers, bytes(body))


async def _parse_in_thread(operation: Operation[T], response: NodeResponse) -> ParsedResponse[T]:
    try:
        parsing = call_in_thread(partial(operation.parse, response), "parse a response")
    except (ThreadRefusedError, MemoryError):
        return operation.parse(response)
    return await asyncio.wrap_future(parsing)


def _current_owner() -> _Owner:
    return os.getpid(), asyncio.get_running_loop()


def _check_size(size: int, max_bytes: int, url: str) -> None:
    if size > max_bytes:
        raise UnexpectedResponseError(
            f"the response is larger than max_response, {max_bytes / parse.MIB:g} MiB",
            url=url,
            code=ReasonCode.UNEXPECTED_RESPONSE,
        )


def _validate_address(address: NodeAddress) -> NodeAddress:
    """Raises for a host that httpx does not accept."""
    try:
        _ = httpx2.URL(address.root).host  # httpx validates some names only here
    except (httpx2.InvalidURL, UnicodeError) as exc:
        raise InvalidValueError(
            f"invalid node URL '{excerpt(str(address))}': the host name is invalid or too long"
        ) from exc
    return address


def _version_query(version: str | None) -> str:
    if version is None:
        return ""
    require_str("version", version)
    if not version:
        raise InvalidValueError("version: must not be empty; omit it for the latest version")
    try:
        return f"?version={quote(version, safe='')}"
    except UnicodeEncodeError:
        raise InvalidValueError(f"version: {version!r} cannot be encoded in a URL") from None


def _parse_timeout(timeout: object) -> float:
    if not isinstance(timeout, str | int | float):
        raise InvalidValueError(f'timeout: must be a number of seconds, or a string such as "5s", not {timeout!r}')
    seconds = parse_duration_s(timeout)
    if not seconds:
        raise InvalidValueError("timeout: must be greater than 0")
    return seconds


def _parse_max_response(size: object) -> int:
    if not isinstance(size, str) or not (max_bytes := parse_size_bytes(size)):
        raise InvalidValueError(f'max_response: must be a size greater than 0, such as "8MiB", not {size!r}')
    return max_bytes


def _validate_retries(retries: object) -> int:
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise InvalidValueError(f"retries: must be a whole number, 0 or greater, not {retries!r}")
    return retries


def _ssl_context(ca: str | os.PathLike[str] | ssl.SSLContext | None, *, is_used: bool) -> ssl.SSLContext:
    if isinstance(ca, ssl.SSLContext):
        return ca
    if ca is None and not is_used:
        return _empty_ssl_context()
    file = "" if ca is None else str(ca)
    if ca is not None and not file:
        raise InvalidValueError("ca: must name a file")
    try:
        return _load_ssl_context(file, Path(file).stat().st_mtime_ns if file else 0)
    except (OSError, ValueError) as exc:
        is_os_error = isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError)
        problem = os_error_text(cast("OSError", exc)) if is_os_error else "not a PEM file"
        raise InvalidValueError(f"ca: {problem}: {file}") from exc


@lru_cache(maxsize=8)
def _load_ssl_context(ca: str, _changed_at_ns: int) -> ssl.SSLContext:
    """Cached: loading the trusted authorities takes longer than a request."""
    return ssl.create_default_context(cafile=ca or None)


@lru_cache(maxsize=1)
def _empty_ssl_context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
