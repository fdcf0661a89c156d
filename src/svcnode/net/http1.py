"""An HTTP/1.1 client for probes, webhooks and discovery: one request, one response, one connection.

General clients cost 4 to 40 times as much per check. They also bring pools, retries and the proxies of the environment;
a check uses none of them unless it is configured to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, TypeVar
from urllib.parse import quote

from svcnode.core.codes import ReasonCode, code_for_http_status
from svcnode.core.errors import InvalidValueError, OptionError
from svcnode.core.option_types import option_type, public_text, show_url
from svcnode.core.redaction import register_secret
from svcnode.core.text import type_name
from svcnode.net.connect import (
    REUSE_STEP_DETAIL,
    ConnectionCache,
    Endpoint,
    TcpEndpoint,
    UnixEndpoint,
    peer_address,
    send,
)
from svcnode.net.http_response import (
    MAX_BODY_BYTES,
    PROTOCOLS,
    BodyProtocol,
    HttpProtocolError,
    HttpResponse,
    ResponseProtocol,
)
from svcnode.net.proxy import FROM_ENVIRONMENT, Proxy
from svcnode.net.tls import TlsOptions, connect_tls
from svcnode.net.trace import step
from svcnode.version import install_command

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from svcnode.core.url import Url
    from svcnode.net.http_response import Needs

P = TypeVar("P", bound="asyncio.Protocol")

DEFAULT_PORTS = {"http": 80, "https": 443}

_PRINTABLE_ASCII = "".join(map(chr, range(0x21, 0x7F)))  # allowed unencoded in a request line
# Of a header whose value is a secret, such as X-Api-Key.
_SECRET_HEADER_NAME = re.compile("auth|cookie|key|pass|secret|token", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


_HEADERS_SCHEMA = {
    "type": "object",
    "propertyNames": {"pattern": f"^{_HEADER_NAME.pattern}$"},
    "additionalProperties": {"anyOf": [{"type": "string", "pattern": "^[^\\r\\n\\x00]*$"}, {"$ref": "#/$defs/file"}]},
}


@option_type(_HEADERS_SCHEMA)
def parse_headers(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise InvalidValueError(f'must be a table such as {{ X-Api-Key = "…" }}, not {type_name(value)}')
    for name, text in value.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidValueError(f'"{name}" is not a valid header name')
        if not isinstance(text, str) or any(char in text for char in "\r\n\0") or not _is_latin1(text):
            raise InvalidValueError(f"invalid value of the header {name}: must be one line of Latin-1 text")
    return tuple(value.items())


@option_type(
    {"type": "string", "not": {"pattern": "^(?!http://)[A-Za-z][A-Za-z0-9+.-]*://"}},
    show=lambda text: text if text == FROM_ENVIRONMENT else show_url(text),
)
def proxy_url(value: object) -> str:
    return public_text(value)


def _is_latin1(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request in bytes, which can be sent any number of times."""

    endpoint: Endpoint
    payload: bytes = field(repr=False)
    uses_tls: bool
    protocol_class: type[ResponseProtocol]
    proxy: Proxy | None
    is_same_origin: bool  # as the URL of the client
    keep_alive: bool  # more requests follow on the same connection
    needs_body: bool
    max_body_bytes: int = MAX_BODY_BYTES
    http2_head: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # then `payload` is the body
    step_name: str = "exchange"
    is_upgrade: bool = False  # to another protocol, which a proxy does not read


class _OpenConnection(NamedTuple):
    transport: asyncio.Transport
    protocol: ResponseProtocol

    def abort(self) -> None:
        self.transport.abort()

    @property
    def peer_address(self) -> str:
        return peer_address(self.transport)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Http1Client(TlsOptions):
    """A URL and the options of the HTTP client that sends requests to it."""

    headers: Annotated[tuple[tuple[str, str], ...], parse_headers] = ()
    bearer: str = ""
    proxy: Annotated[str, proxy_url] = ""  # a URL, or "environment" to use HTTP_PROXY and HTTPS_PROXY
    reuse: bool = False  # keep the connection open between requests
    _connections: ConnectionCache[_OpenConnection] = field(init=False, compare=False, default_factory=ConnectionCache)

    default_ports: ClassVar[Mapping[str, int]] = DEFAULT_PORTS

    @property
    def http_scheme(self) -> str:
        return "http" if self.url.socket else self.url.scheme.rpartition("+")[2]

    def build_request(  # noqa: PLR0913  a request has these parts
        self,
        target: str,
        *,
        method: str = "GET",
        body: bytes = b"",
        content_type: str = "",
        needs: Needs = "status",
        max_body_bytes: int = MAX_BODY_BYTES,
        url: Url | None = None,
        keep_alive: bool = False,
        http2: bool = False,
        is_upgrade: bool = False,
        default_headers: Sequence[tuple[str, str]] = (),
    ) -> PreparedRequest:
        """A request to the host of the client's URL.

        A request to another `url` has none of the client's headers, credentials and certificates. A request with
        `keep_alive` is sent in a `session`. Headers of the client replace `default_headers`.
        """
        is_same_origin = url is None
        scheme = self.http_scheme if url is None else url.scheme
        url, uses_tls = url or self.url, scheme == "https"
        if is_same_origin:
            self.validate_tls_options(uses_tls=uses_tls)
            keep_alive = keep_alive or self.reuse
        if keep_alive and method == "HEAD":
            raise OptionError("reuse", "cannot be used with HEAD, because the end of such a response cannot be seen")
        endpoint = self._endpoint(url, scheme)
        proxy = Proxy.from_option(self.proxy, scheme, endpoint) if self.proxy else None
        headers = [*_default_headers(url, method, body, content_type, keep_alive=keep_alive), *default_headers]
        if is_same_origin:
            headers = self._with_own_headers(headers)
        if proxy is not None and not uses_tls and not is_upgrade:
            if http2:
                raise OptionError("http2", "cannot be combined with proxy for an http URL")
            target = f"http://{url.host_port}{target}"
            headers += proxy.headers
        target = quote(target, safe=_PRINTABLE_ASCII)
        if http2:
            module = _load_http2()
            head = tuple(module.http2_headers(method, scheme, target, headers))
            payload, protocol_class = body, module.Http2Protocol
        else:
            head = ()
            lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
            payload = "\r\n".join(lines).encode("latin-1") + body
            protocol_class = BodyProtocol if keep_alive else PROTOCOLS[needs]
        return PreparedRequest(
            endpoint=endpoint,
            payload=payload,
            uses_tls=uses_tls,
            protocol_class=protocol_class,
            proxy=proxy,
            is_same_origin=is_same_origin,
            keep_alive=keep_alive,
            needs_body=needs == "body",
            max_body_bytes=max_body_bytes,
            http2_head=head,
            is_upgrade=is_upgrade,
        )

    def _endpoint(self, url: Url, scheme: str) -> Endpoint:
        if not url.socket:
            return TcpEndpoint.of(url.require_host(), url.port or self.default_ports[scheme])
        if self.proxy:
            raise OptionError("proxy", "cannot be used with a Unix socket")
        return UnixEndpoint(url.socket)

    def _with_own_headers(self, default: list[tuple[str, str]]) -> list[tuple[str, str]]:
        for name, value in self.headers:
            if _SECRET_HEADER_NAME.search(name):
                register_secret(value)
                register_secret(value.rpartition(" ")[2])  # without "Bearer"
        own = [*self.headers, *self.authorization()]
        names = {name.lower() for name, _ in own}
        return [(name, value) for name, value in default if name.lower() not in names] + own

    def authorization(self) -> list[tuple[str, str]]:
        basic = self.url.basic_authorization
        if not (self.bearer or basic):
            return []
        if self.bearer and basic:
            raise OptionError("bearer", "cannot be combined with a user name in the URL")
        if "authorization" in self._header_names:
            raise OptionError("headers", "Authorization cannot be combined with bearer or a user name in the URL")
        if any(char in self.bearer for char in "\r\n\0") or not _is_latin1(self.bearer):
            raise OptionError("bearer", "must be one line of Latin-1 text")
        register_secret(self.bearer)
        return [("Authorization", basic or f"Bearer {self.bearer}")]

    def code_for_status(self, status: int) -> ReasonCode:
        """The reason code of a status that is not the expected one."""
        if status == 407 and self.proxy:  # only a proxy that is configured can require this login
            return ReasonCode.PROXY_FAILED
        is_authenticated = self.bearer or self.url.basic_authorization or "authorization" in self._header_names
        return ReasonCode.AUTH_FAILED if status == 401 and is_authenticated else code_for_http_status(status)

    @property
    def _header_names(self) -> set[str]:
        return {name.lower() for name, _ in self.headers}

    async def send(self, request: PreparedRequest) -> HttpResponse:
        """Send one request, on a new connection unless `reuse` is set. Raises `OSError`."""
        if request.keep_alive:
            with self.session() as session:
                return await session.send(request)
        transport, protocol = await self._connect(request)
        try:
            return await self._exchange(transport, protocol, request)
        finally:
            transport.abort()

    @contextmanager
    def session(self) -> Iterator[HttpSession]:
        """Send several requests on one connection, or on as few as the server allows."""
        session = HttpSession(self, self._connections.take() if self.reuse else None)
        try:
            yield session
        finally:
            if (connection := session.release(keep=self.reuse)) is not None:
                self.close()  # another check may have stored a connection at the same time
                self._connections.put(connection)

    def close(self) -> None:
        """Close the connection that is kept between requests."""
        self._connections.close(_OpenConnection.abort)

    def _has_moved(self, connection: _OpenConnection, request: PreparedRequest) -> bool:
        """Whether the server, or the proxy, has other addresses than that of the connection."""
        endpoint = request.endpoint if request.proxy is None else request.proxy.endpoint
        return not endpoint.is_ip_address and self._connections.has_moved(endpoint.host, connection.peer_address)

    async def _exchange(
        self, transport: asyncio.Transport, protocol: ResponseProtocol, request: PreparedRequest
    ) -> HttpResponse:
        verdict = self.certificate_verdict(transport) if request.uses_tls else None
        protocol.collects_body, protocol.max_body_bytes = request.needs_body, request.max_body_bytes
        with step(request.step_name):
            if request.http2_head:
                protocol.send_request(transport, request.http2_head, request.payload)
            else:
                send(transport, request.payload)
            response = await protocol.response
        return response if verdict is None else response._replace(certificate_verdict=verdict)

    async def _connect(self, request: PreparedRequest) -> tuple[asyncio.Transport, ResponseProtocol]:
        transport, protocol = await self.connect(request, request.protocol_class)
        tls = transport.get_extra_info("ssl_object") if request.http2_head else None
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            transport.abort()
            raise HttpProtocolError("the server does not offer HTTP/2 in the TLS handshake", ReasonCode.PROTOCOL_ERROR)
        return transport, protocol

    async def connect(self, request: PreparedRequest, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        """A new connection to the server of the request, or to its proxy. The caller aborts it."""
        if request.proxy is None and not request.uses_tls:
            return await request.endpoint.connect(protocol)
        if request.proxy is not None and not request.uses_tls and not request.is_upgrade:
            with request.proxy.wrap_errors():
                return await request.proxy.endpoint.connect(protocol)
        connect = request.endpoint.connect if request.proxy is None else request.proxy.tunnel_to(request.endpoint)
        if not request.uses_tls:
            return await connect(protocol)
        server_name = (request.is_same_origin and self.server_name) or request.endpoint.host
        alpn = "h2,http/1.1" if request.http2_head else ""  # offered only h2, servers without it send an alert
        tls = await self.tls_context(with_client_certificate=request.is_same_origin, alpn=alpn)
        return await connect_tls(connect, protocol, tls, server_name)


def _load_http2() -> ModuleType:
    try:
        from svcnode.net import http2
    except ModuleNotFoundError as exc:
        raise OptionError("http2", f"needs a library: {install_command('http2')}") from exc
    return http2


def _default_headers(
    url: Url, method: str, body: bytes, content_type: str, *, keep_alive: bool
) -> Iterator[tuple[str, str]]:
    yield from (("Host", url.host_port or UnixEndpoint.host), ("User-Agent", "svcnode"), ("Accept", "*/*"))
    if not keep_alive:
        yield "Connection", "close"
    if body and content_type:
        yield "Content-Type", content_type
    if body or method == "POST":  # some proxies require a length even of an empty body
        yield "Content-Length", str(len(body))


class HttpSession:
    """Sends requests one after the other on one connection, and reconnects when the server has closed it."""

    def __init__(self, client: Http1Client, connection: _OpenConnection | None) -> None:
        self._client = client
        self._connection = connection
        self._is_reused = connection is not None

    async def send(self, request: PreparedRequest) -> HttpResponse:
        connection = self._connection
        if connection is not None and self._is_reused:
            self._is_reused = False
            connection = self._unless_moved(connection, request)
        if connection is not None and (response := await self._send_reused(connection, request)) is not None:
            return response
        self._connection = _OpenConnection(*await self._client._connect(request))
        return await self._client._exchange(*self._connection, request)

    def _unless_moved(self, connection: _OpenConnection, request: PreparedRequest) -> _OpenConnection | None:
        if self._client._has_moved(connection, request):
            connection.abort()
            return None
        with step("reuse", REUSE_STEP_DETAIL):
            return connection

    async def _send_reused(self, connection: _OpenConnection, request: PreparedRequest) -> HttpResponse | None:
        """None if the server has closed the connection, so that the request needs a new one."""
        if not connection.protocol.begin_next_request():
            connection.abort()
            return None
        try:
            return await self._client._exchange(*connection, request)
        except OSError:
            connection.abort()
            if connection.protocol.has_received:
                raise
            return None

    def release(self, *, keep: bool) -> _OpenConnection | None:
        """The connection if it is to be kept and can be reused, else None."""
        connection, self._connection = self._connection, None
        if connection is None or (keep and connection.protocol.is_idle):
            return connection
        connection.abort()
        return None
