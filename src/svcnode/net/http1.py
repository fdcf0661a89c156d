"""An HTTP/1.1 client for probes, webhooks and discovery: one request, one response, one connection.

General clients cost 4 to 40 times as much per check. They also bring pools, retries and the proxies of the environment;
a check uses none of them unless it is configured to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple
from urllib.parse import quote

from svcnode.core.errors import InvalidValueError, OptionError
from svcnode.core.redaction import register_secret
from svcnode.core.text import type_name
from svcnode.net.connect import REUSE_STEP_DETAIL, ConnectionSlot, TcpEndpoint
from svcnode.net.http_response import PROTOCOLS, BodyProtocol, HttpResponse, StatusProtocol
from svcnode.net.proxy import Proxy
from svcnode.net.tls import TlsOptions, connect_tls
from svcnode.net.trace import step

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from svcnode.net.http_response import Needs
    from svcnode.net.url import Url

DEFAULT_PORTS = {"http": 80, "https": 443}

_PRINTABLE_ASCII = "".join(map(chr, range(0x21, 0x7F)))  # what may stand in the first line of a request as it is
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def parse_headers(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise InvalidValueError(f'must be a table such as {{ X-Api-Key = "…" }}, not {type_name(value)}')
    for name, text in value.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidValueError(f'"{name}" is not the name of a header')
        if not isinstance(text, str) or any(char in text for char in "\r\n\0") or not _is_latin1(text):
            raise InvalidValueError(f"the value of {name} is not one line of text that a header can carry")
    return tuple(value.items())


def _is_latin1(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """Ready to be sent again and again."""

    endpoint: TcpEndpoint
    payload: bytes = field(repr=False)
    uses_tls: bool
    protocol_class: type[StatusProtocol]
    proxy: Proxy | None
    is_same_origin: bool  # goes to the host of the kind's own URL
    keep_alive: bool  # by others on the same connection
    needs_body: bool


class _OpenConnection(NamedTuple):
    """A connection and the protocol on it."""

    transport: asyncio.Transport
    protocol: StatusProtocol

    def abort(self) -> None:
        self.transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Http1Client(TlsOptions):
    """The options of every kind that speaks HTTP."""

    headers: Annotated[tuple[tuple[str, str], ...], parse_headers] = ()
    bearer: str = ""
    proxy: str = ""  # a URL, or "environment" for what HTTP_PROXY and its like say
    reuse: bool = False
    _slot: ConnectionSlot[_OpenConnection] = field(init=False, compare=False, default_factory=ConnectionSlot)

    default_ports: ClassVar[Mapping[str, int]] = DEFAULT_PORTS

    @property
    def http_scheme(self) -> str:
        """http or https."""
        return self.url.scheme.rpartition("+")[2]

    def build_request(  # noqa: PLR0913  a request has these parts
        self,
        target: str,
        *,
        method: str = "GET",
        body: bytes = b"",
        content_type: str = "",
        needs: Needs = "status",
        url: Url | None = None,
        keep_alive: bool = False,
    ) -> PreparedRequest:
        """A request to the host of this kind's URL, or, without what only that may see, to another one.

        One that is followed by others goes into a `conversation`.
        """
        is_home = url is None
        scheme = self.http_scheme if url is None else url.scheme
        url = self.url if url is None else url
        if is_home:
            self.validate_tls_options(uses_tls=scheme == "https")
            keep_alive = keep_alive or self.reuse
        if keep_alive and method == "HEAD":
            raise OptionError("reuse", "a connection cannot be kept over HEAD, whose answers do not show their end")
        endpoint = TcpEndpoint.of(url.require_host(), url.port or self.default_ports[scheme])
        proxy = Proxy.from_option(self.proxy, scheme, endpoint) if self.proxy else None
        headers = self._all_headers(url, body, content_type, is_same_origin=is_home, keep_alive=keep_alive)
        if method == "POST" and not body:
            headers.append(("Content-Length", "0"))  # some proxies insist on it
        if proxy is not None and scheme == "http":
            target = f"http://{url.host_port}{target}"
            headers += proxy.headers
        first = f"{method} {quote(target, safe=_PRINTABLE_ASCII)} HTTP/1.1"
        lines = [first, *(f"{name}: {value}" for name, value in headers), "", ""]
        payload = "\r\n".join(lines).encode("latin-1") + body
        client = BodyProtocol if keep_alive else PROTOCOLS[needs]
        return PreparedRequest(
            endpoint, payload, scheme == "https", client, proxy, is_home, keep_alive, needs == "body"
        )

    def _all_headers(
        self, url: Url, body: bytes, content_type: str, *, is_same_origin: bool, keep_alive: bool
    ) -> list[tuple[str, str]]:
        given = [*self.headers, *self.authorization()] if is_same_origin else []
        names = {name.lower() for name, _ in given}
        ours = [("Host", url.host_port), ("User-Agent", "svcnode"), ("Accept", "*/*")]
        if not keep_alive:
            ours.append(("Connection", "close"))
        if body:
            ours += [("Content-Type", content_type)] * bool(content_type) + [("Content-Length", str(len(body)))]
        return [(name, value) for name, value in ours if name.lower() not in names] + given

    def authorization(self) -> list[tuple[str, str]]:
        basic = self.url.basic_authorization
        if not (self.bearer or basic):
            return []
        if self.bearer and basic:
            raise OptionError("bearer", "stands beside a user name in the URL; only one of the two can be sent")
        if any(name.lower() == "authorization" for name, _ in self.headers):
            raise OptionError("headers", "Authorization stands beside a bearer or a user name; only one can be sent")
        if any(char in self.bearer for char in "\r\n\0") or not _is_latin1(self.bearer):
            raise OptionError("bearer", "is not one line of text that a header can carry")
        register_secret(self.bearer)
        return [("Authorization", basic or f"Bearer {self.bearer}")]

    async def send(self, request: PreparedRequest) -> HttpResponse:
        """One exchange, on a fresh connection unless one is kept; raises `OSError`."""
        if request.keep_alive:
            with self.session() as conversation:
                return await conversation.send(request)
        transport, client = await self._connect(request)
        try:
            return await self._exchange(transport, client, request)
        finally:
            transport.abort()

    @contextmanager
    def session(self) -> Iterator[HttpSession]:
        """For requests that follow each other on one connection, as far as the server lets them."""
        conversation = HttpSession(self, self._slot.take() if self.reuse else None)
        try:
            yield conversation
        finally:
            if (connection := conversation.release(keep=self.reuse)) is not None:
                self.close()  # what another look at the same time may have kept
                self._slot.put(connection)

    def close(self) -> None:
        """Nobody will look for a while: what was kept is not needed any more."""
        self._slot.close(_OpenConnection.abort)

    async def _exchange(
        self, transport: asyncio.Transport, client: StatusProtocol, request: PreparedRequest
    ) -> HttpResponse:
        expiring = self.certificate_verdict(transport) if request.uses_tls else None
        client.collects_body = request.needs_body
        with step("exchange"):
            transport.write(request.payload)
            answer = await client.response
        return answer if expiring is None else answer._replace(certificate_verdict=expiring)

    async def _connect(self, request: PreparedRequest) -> tuple[asyncio.Transport, StatusProtocol]:
        if request.proxy is None and not request.uses_tls:
            return await request.endpoint.connect(request.protocol_class)
        if request.proxy is not None and not request.uses_tls:
            with request.proxy.wrap_errors():
                return await request.proxy.endpoint.connect(request.protocol_class)
        connect = request.endpoint.connect if request.proxy is None else request.proxy.tunnel_to(request.endpoint)
        server_name = (request.is_same_origin and self.server_name) or request.endpoint.host
        tls = self.tls_context(with_client_certificate=request.is_same_origin)
        return await connect_tls(connect, request.protocol_class, tls, server_name)


class HttpSession:
    """Requests and their answers in turn, on one connection, or on the next when the server has closed it."""

    def __init__(self, options: Http1Client, kept: _OpenConnection | None) -> None:
        self._options = options
        self._connection = kept
        self._is_reused = kept is not None

    async def send(self, request: PreparedRequest) -> HttpResponse:
        connection = self._connection
        if connection is not None:
            if self._is_reused:
                self._is_reused = False
                with step("reuse", REUSE_STEP_DETAIL):
                    pass
            if (answer := await self._send_reused(connection, request)) is not None:
                return answer
        self._connection = _OpenConnection(*await self._options._connect(request))
        return await self._options._exchange(*self._connection, request)

    async def _send_reused(self, connection: _OpenConnection, request: PreparedRequest) -> HttpResponse | None:
        """None when the server had closed it, which only a new connection gives a meaning."""
        if not connection.protocol.begin_next_request():
            connection.abort()
            return None
        try:
            return await self._options._exchange(*connection, request)
        except OSError:
            connection.abort()
            if connection.protocol.has_received:
                raise
            return None

    def release(self, *, keep: bool) -> _OpenConnection | None:
        """The connection, if it is to be kept and can be."""
        connection, self._connection = self._connection, None
        if connection is None or (keep and connection.protocol.is_idle):
            return connection
        connection.abort()
        return None
