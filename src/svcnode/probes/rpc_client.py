"""The base classes of probes that call JSON-RPC methods: over HTTP, or through a Unix socket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from svcnode.core.model import Verdict
from svcnode.core.url import SOCKET_FORM, UrlError
from svcnode.net.connect import UnixEndpoint
from svcnode.net.json_stream import JsonStreamProtocol
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.trace import step
from svcnode.probes.base import CheckError, UrlProbe
from svcnode.probes.http_client import HttpSessionProbe
from svcnode.probes.jsonrpc_protocol import build_rpc_request, decode_response, encode_request, result_of

if TYPE_CHECKING:
    from svcnode.net.http1 import HttpSession
    from svcnode.probes.jsonrpc_protocol import Params

READY = Verdict.ready()


class RpcCall(Protocol):
    async def __call__(self, method: str, params: Params) -> Any:  # noqa: ANN401  any JSON value
        """The result of the method. Raises `RpcError` and `OSError`."""


class RpcProbe(UrlProbe, ABC):
    """A kind is this with its options and `check_rpc`; its two classes add the transport."""

    __slots__ = ()

    calls_often: ClassVar[bool] = False  # more than one method in a check

    @abstractmethod
    async def check_rpc(self, call: RpcCall) -> Verdict | None:
        """None if the service is ready. May raise `CheckError` and `OSError`."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpRpcProbe(HttpSessionProbe, RpcProbe, ABC):
    def __post_init__(self) -> None:
        self.build_request(self.url.target)  # reject invalid options when the probe is made

    async def check_session(self, session: HttpSession) -> Verdict | None:
        certificate_verdict: Verdict | None = None

        async def call(method: str, params: Params) -> Any:  # noqa: ANN401  any JSON value
            nonlocal certificate_verdict
            response = await session.send(build_rpc_request(self, method, params, keep_alive=self.calls_often))
            certificate_verdict = response.certificate_verdict
            return decode_response(method, response)

        return await self.check_rpc(call) or certificate_verdict


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UnixRpcProbe(RpcProbe, ABC):
    """The values follow each other on the socket, without HTTP, as on the IPC socket of go-ethereum."""

    url_form: ClassVar = SOCKET_FORM

    def __post_init__(self) -> None:
        if self.url.path or self.url.query:
            raise UrlError(
                "path", f"{self.url.scheme} URLs end with the socket; write {self.url.scheme}://{self.url.socket}"
            )

    async def check(self) -> Verdict:
        try:
            transport, protocol = await UnixEndpoint(self.url.socket).connect(JsonStreamProtocol)
            try:

                async def call(method: str, params: Params) -> Any:  # noqa: ANN401  any JSON value
                    return result_of(method, await protocol.ask(transport, encode_request(method, params)))

                with step("exchange"):
                    return await self.check_rpc(call) or READY
            finally:
                transport.abort()
        except CheckError as exc:
            return exc.verdict(self.url)
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))
