"""One HTTP exchange over a connection of its own, for every kind that speaks HTTP.

By hand rather than by a general client: those cost many times as much per look, and bring pools, retries and the
environment's proxies, none of which a look may have unasked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple
from urllib.parse import quote

from svcnode.core.errors import InvalidValueError, OptionError
from svcnode.core.redaction import keep_secret
from svcnode.core.wording import kind_of
from svcnode.probes.tools.connect import Endpoint
from svcnode.probes.tools.http_answer import CLIENTS, BodyClient, HttpAnswer, StatusClient
from svcnode.probes.tools.kept import REUSED, Kept
from svcnode.probes.tools.proxy import Proxy
from svcnode.probes.tools.steps import step
from svcnode.probes.tools.tls import TlsOptions
from svcnode.probes.tools.tls_layer import connected_under_tls

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from svcnode.probes.tools.http_answer import Needs
    from svcnode.probes.tools.url import Url

DEFAULT_PORTS = {"http": 80, "https": 443}

_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))  # what may stand in the first line of a request as it is
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def headers_from(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise InvalidValueError(f'must be a table such as {{ X-Api-Key = "…" }}, not {kind_of(value)}')
    for name, text in value.items():
        if not _TOKEN.fullmatch(name):
            raise InvalidValueError(f'"{name}" is not the name of a header')
        if not isinstance(text, str) or any(char in text for char in "\r\n\0") or not _is_latin(text):
            raise InvalidValueError(f"the value of {name} is not one line of text that a header can carry")
    return tuple(value.items())


def _is_latin(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Request:
    """Ready to be sent again and again."""

    endpoint: Endpoint
    payload: bytes = field(repr=False)
    speaks_tls: bool
    client: type[StatusClient]
    proxy: Proxy | None
    is_home: bool  # goes to the host of the kind's own URL
    is_followed: bool  # by others on the same connection
    needs_body: bool


class _Open(NamedTuple):
    """A connection and the protocol on it."""

    transport: asyncio.Transport
    client: StatusClient

    def drop(self) -> None:
        self.transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpOptions(TlsOptions):
    """The options of every kind that speaks HTTP."""

    headers: Annotated[tuple[tuple[str, str], ...], headers_from] = ()
    bearer: str = ""
    proxy: str = ""  # a URL, or "environment" for what HTTP_PROXY and its like say
    reuse: bool = False
    _kept: Kept[_Open] = field(init=False, compare=False, default_factory=Kept)

    default_ports: ClassVar[Mapping[str, int]] = DEFAULT_PORTS

    @property
    def web_scheme(self) -> str:
        """http or https."""
        return self.url.scheme.rpartition("+")[2]

    def request(  # noqa: PLR0913  a request has these parts
        self,
        target: str,
        *,
        method: str = "GET",
        body: bytes = b"",
        content_type: str = "",
        needs: Needs = "status",
        url: Url | None = None,
        is_followed: bool = False,
    ) -> Request:
        """A request to the host of this kind's URL, or, without what only that may see, to another one.

        One that is followed by others goes into a `conversation`.
        """
        is_home = url is None
        scheme = self.web_scheme if url is None else url.scheme
        url = self.url if url is None else url
        if is_home:
            self.check_tls_options(is_used=scheme == "https")
            is_followed = is_followed or self.reuse
        if is_followed and method == "HEAD":
            raise OptionError("reuse", "a connection cannot be kept over HEAD, whose answers do not show their end")
        endpoint = Endpoint.of(url.need_host(), url.port or self.default_ports[scheme])
        proxy = Proxy.chosen(self.proxy, scheme, endpoint) if self.proxy else None
        headers = self._all_headers(url, body, content_type, is_home=is_home, is_followed=is_followed)
        if method == "POST" and not body:
            headers.append(("Content-Length", "0"))  # some proxies insist on it
        if proxy is not None and scheme == "http":
            target = f"http://{url.place}{target}"
            headers += proxy.headers
        first = f"{method} {quote(target, safe=_VISIBLE)} HTTP/1.1"
        lines = [first, *(f"{name}: {value}" for name, value in headers), "", ""]
        payload = "\r\n".join(lines).encode("latin-1") + body
        client = BodyClient if is_followed else CLIENTS[needs]
        return Request(endpoint, payload, scheme == "https", client, proxy, is_home, is_followed, needs == "body")

    def _all_headers(
        self, url: Url, body: bytes, content_type: str, *, is_home: bool, is_followed: bool
    ) -> list[tuple[str, str]]:
        given = [*self.headers, *self.authorization()] if is_home else []
        names = {name.lower() for name, _ in given}
        ours = [("Host", url.place), ("User-Agent", "svcnode"), ("Accept", "*/*")]
        if not is_followed:
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
        if any(char in self.bearer for char in "\r\n\0") or not _is_latin(self.bearer):
            raise OptionError("bearer", "is not one line of text that a header can carry")
        keep_secret(self.bearer)
        return [("Authorization", basic or f"Bearer {self.bearer}")]

    async def send(self, request: Request) -> HttpAnswer:
        """One exchange, on a fresh connection unless one is kept; raises `OSError`."""
        if request.is_followed:
            with self.conversation() as conversation:
                return await conversation.send(request)
        transport, client = await self._connect(request)
        try:
            return await self._exchanged(transport, client, request)
        finally:
            transport.abort()

    @contextmanager
    def conversation(self) -> Iterator[Conversation]:
        """For requests that follow each other on one connection, as far as the server lets them."""
        conversation = Conversation(self, self._kept.take() if self.reuse else None)
        try:
            yield conversation
        finally:
            if (connection := conversation.ended(is_kept=self.reuse)) is not None:
                self.let_go()  # what another look at the same time may have kept
                self._kept.put(connection)

    def let_go(self) -> None:
        """Nobody will look for a while: what was kept is not needed any more."""
        self._kept.let_go(_Open.drop)

    async def _exchanged(self, transport: asyncio.Transport, client: StatusClient, request: Request) -> HttpAnswer:
        expiring = self.expiry_verdict(transport) if request.speaks_tls else None
        client.gathers_body = request.needs_body
        with step("exchange"):
            transport.write(request.payload)
            answer = await client.answer
        return answer if expiring is None else answer._replace(expiring=expiring)

    async def _connect(self, request: Request) -> tuple[asyncio.Transport, StatusClient]:
        if request.proxy is None and not request.speaks_tls:
            return await request.endpoint.connect(request.client)
        if request.proxy is not None and not request.speaks_tls:
            with request.proxy.blamed():
                return await request.proxy.endpoint.connect(request.client)
        connect = request.endpoint.connect if request.proxy is None else request.proxy.tunnelled(request.endpoint)
        server_name = (request.is_home and self.server_name) or request.endpoint.host
        tls = self.tls_context(shows_client=request.is_home)
        return await connected_under_tls(connect, request.client, tls, server_name)


class Conversation:
    """Requests and their answers in turn, on one connection, or on the next when the server has closed it."""

    def __init__(self, options: HttpOptions, kept: _Open | None) -> None:
        self._options = options
        self._connection = kept
        self._is_of_earlier_look = kept is not None

    async def send(self, request: Request) -> HttpAnswer:
        connection = self._connection
        if connection is not None:
            if self._is_of_earlier_look:
                self._is_of_earlier_look = False
                with step("reuse", REUSED):
                    pass
            if (answer := await self._sent_again(connection, request)) is not None:
                return answer
        self._connection = _Open(*await self._options._connect(request))
        return await self._options._exchanged(*self._connection, request)

    async def _sent_again(self, connection: _Open, request: Request) -> HttpAnswer | None:
        """None when the server had closed it, which only a new connection gives a meaning."""
        if not connection.client.begin_next():
            connection.drop()
            return None
        try:
            return await self._options._exchanged(*connection, request)
        except OSError:
            connection.drop()
            if connection.client.has_heard:
                raise
            return None

    def ended(self, *, is_kept: bool) -> _Open | None:
        """The connection, if it is to be kept and can be."""
        connection, self._connection = self._connection, None
        if connection is None or (is_kept and connection.client.is_idle):
            return connection
        connection.drop()
        return None
