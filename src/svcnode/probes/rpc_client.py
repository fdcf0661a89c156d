"""JSON-RPC over HTTP, and through a Unix socket: the base classes of probes that call methods.

A kind has its options and rules in a class that derives from `RpcProbe`; its two classes add the transport.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from svcnode.core.model import Verdict
from svcnode.core.url import SOCKET_FORM, UrlError
from svcnode.net.connect import UnixEndpoint
from svcnode.net.http_response import MAX_BODY_BYTES
from svcnode.net.json_stream import JsonStreamProtocol
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.trace import step
from svcnode.probes.base import CheckError, UrlProbe
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.jsonrpc_protocol import build_rpc_request, decode_result, encode_request, result_of

if TYPE_CHECKING:
    import asyncio

    from svcnode.net.http1 import HttpSession
    from svcnode.probes.jsonrpc_protocol import Params

READY = Verdict.ready()


class RpcConnection(ABC):
    certificate_verdict: Verdict | None = None  # of the last response

    @abstractmethod
    async def call(self, method: str, params: Params, max_body_bytes: int = MAX_BODY_BYTES) -> Any:  # noqa: ANN401  any JSON value
        """The result of the method. Raises `RpcError` and `OSError`."""


class RpcProbe(UrlProbe, ABC):
    __slots__ = ()

    calls_often: ClassVar[bool] = False  # more than one method in a check

    @abstractmethod
    def validate_transport(self) -> None:
        """Raise if no connection can be made with the URL and the options."""

    @abstractmethod
    async def check_rpc(self, connection: RpcConnection) -> Verdict | None:
        """None if the service is ready. May raise `CheckError` and `OSError`."""


# ---- HTTP


class HttpRpcConnection(RpcConnection):
    def __init__(self, client: HttpSessionProbe, session: HttpSession, *, keep_alive: bool) -> None:
        self._client = client
        self._session = session
        self._keep_alive = keep_alive

    async def call(self, method: str, params: Params, max_body_bytes: int = MAX_BODY_BYTES) -> Any:  # noqa: ANN401  any JSON value
        request = build_rpc_request(
            self._client, method, params, keep_alive=self._keep_alive, max_body_bytes=max_body_bytes
        )
        response = await self._session.send(request)
        self.certificate_verdict = response.certificate_verdict
        return decode_result(response, self._client.code_for_status)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpRpcProbe(HttpSessionProbe, RpcProbe, ABC):
    def validate_transport(self) -> None:
        self.build_request(self.url.target)

    def connection(self, session: HttpSession) -> RpcConnection:
        return HttpRpcConnection(self, session, keep_alive=self.calls_often)

    async def check_session(self, session: HttpSession) -> Verdict | None:
        connection = self.connection(session)
        return await self.check_rpc(connection) or connection.certificate_verdict


# ---- Unix sockets


class UnixRpcConnection(RpcConnection):
    def __init__(self, transport: asyncio.Transport, protocol: JsonStreamProtocol) -> None:
        self._transport = transport
        self._protocol = protocol

    async def call(self, method: str, params: Params, max_body_bytes: int = MAX_BODY_BYTES) -> Any:  # noqa: ANN401  any JSON value
        return result_of(await self._protocol.ask(self._transport, encode_request(method, params), max_body_bytes))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UnixRpcProbe(RpcProbe, ABC):
    """The values follow each other on the socket, without HTTP, as on the IPC socket of go-ethereum."""

    url_form: ClassVar = SOCKET_FORM

    def validate_transport(self) -> None:
        if self.url.path or self.url.query:
            scheme = self.url.scheme
            raise UrlError("path", f"{scheme} URLs end with the socket; write {scheme}://{self.url.socket}")

    async def check(self) -> Verdict:
        try:
            connection = await UnixEndpoint(self.url.socket).connect(JsonStreamProtocol)
            try:
                with step("exchange"):
                    return await self.check_rpc(UnixRpcConnection(*connection)) or READY
            finally:
                connection[0].abort()
        except CheckError as exc:
            return exc.verdict(self.url)
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))
