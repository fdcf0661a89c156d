"""`ethereum+ws://…`, `ethereum+wss://…`: an Ethereum execution client that delivers new heads to its subscribers.

As `ethereum+http://…`, over WebSocket. In addition:

ready      the subscription `newHeads` has delivered a head that is not older than `max_block_age`
not ready  it has not delivered one yet
failed     it has delivered none for longer than that, although the client has newer blocks
unknown    the client has no subscriptions

The connection is kept between checks, so that heads arrive all the time. With `reuse = false`, each check opens a
connection and waits for a head.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from svcnode.core.codes import ReasonCode
from svcnode.core.units import format_limit
from svcnode.core.url import Url
from svcnode.net.clock import monotonic_s
from svcnode.net.connect import REUSE_STEP_DETAIL, ConnectionCache
from svcnode.net.http_response import MAX_BODY_BYTES, HttpResponse
from svcnode.net.os_errors import CodedOSError, verdict_for_os_error
from svcnode.net.trace import step
from svcnode.net.websocket import HandshakeStatusError, WebSocket, open_websocket
from svcnode.probes.base import MAX_CLOCK_SKEW_S, CheckError, time_for_others_s
from svcnode.probes.chain import text_at
from svcnode.probes.ethereum import EthereumProbe, block_timestamp_s
from svcnode.probes.http_client import READY
from svcnode.probes.jsonrpc_protocol import decode_result, encode_request
from svcnode.probes.rpc_client import RpcConnection

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from svcnode.probes.chain import RpcCall
    from svcnode.probes.jsonrpc_protocol import Params


class Heads:
    """What subscriptions have delivered to one probe, also on earlier connections."""

    def __init__(self) -> None:
        self._last_s = -math.inf  # the time of the last one, by the clock of the chain
        self._waiting_since_s: float | None = None

    def add(self, block_s: int) -> None:
        self._last_s = block_s

    def is_fresh(self, limit_s: float) -> bool:
        """Always without a limit: then there is a block only when someone needs one."""
        return limit_s == math.inf or -MAX_CLOCK_SKEW_S <= time.time() - self._last_s <= limit_s

    def waited_s(self, limit_s: float, subscribed_at_s: float) -> float:
        """How long there was a subscription and no fresh head; 0 if there is one.

        A new subscription instead of a silent one does not end the silence.
        """
        if self.is_fresh(limit_s):
            self._waiting_since_s = None
            return 0.0
        if self._waiting_since_s is None:
            self._waiting_since_s = subscribed_at_s
        return monotonic_s() - self._waiting_since_s


class RpcSocket(WebSocket, RpcConnection):
    """Sends one request at a time. Notifications of the subscription may arrive at any moment."""

    def __init__(self, client: EthereumProbe, heads: Heads) -> None:
        super().__init__()
        self._client = client
        self._heads = heads
        self._response: asyncio.Future[HttpResponse] | None = None
        self._head: asyncio.Future[None] | None = None
        self.subscribed_at_s: float | None = None
        self.is_silent = False  # for so long that a new connection may be better

    @property
    def is_usable(self) -> bool:
        return self.error is None and not self.is_silent

    async def call(self, method: str, params: Params, max_body_bytes: int = MAX_BODY_BYTES) -> Any:  # noqa: ANN401  any JSON value; the limit is that of every message
        self._response = asyncio.get_running_loop().create_future()
        with step("exchange"):
            self.send_text(encode_request(method, params))
            response = await self._response
        self.certificate_verdict = self._verdict_on_certificate()
        return decode_result(response, self._client.code_for_status)

    async def next_head(self) -> None:
        self.raise_if_failed()
        self._head = asyncio.get_running_loop().create_future()
        with step("wait for a head"):
            await self._head

    def _verdict_on_certificate(self) -> Verdict | None:
        return self._client.certificate_verdict(self.transport) if self._client.http_scheme == "https" else None

    def message_received(self, message: bytes) -> None:
        response = HttpResponse(200, {}, message)
        match response.document():
            case {"method": "eth_subscription", "params": {"result": head}}:
                self._head_received(head)
            case {"method": _}:  # another notification
                pass
            case {"id": _} if self._response is not None and not self._response.done():
                self._response.set_result(response)
            case _:
                self.fail(CodedOSError("the message is not a JSON-RPC response", ReasonCode.PROTOCOL_ERROR))

    def _head_received(self, head: object) -> None:
        try:
            self._heads.add(block_timestamp_s(head))
        except CheckError as exc:
            self.fail(CodedOSError(f"newHeads: {exc}", exc.code))
        else:
            if self._head is not None and not self._head.done():
                self._head.set_result(None)

    def connection_failed(self, error: OSError) -> None:
        for waiting in (self._response, self._head):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EthereumSubscriptionProbe(EthereumProbe):
    reuse: bool = True
    _heads: Heads = field(init=False, compare=False, default_factory=Heads)
    _sockets: ConnectionCache[RpcSocket] = field(init=False, compare=False, default_factory=ConnectionCache)

    @property
    def http_scheme(self) -> str:
        return "https" if self.url.scheme == "ethereum+wss" else "http"

    def reference_probe(self, text: str) -> EthereumProbe:
        """They are asked over HTTP."""
        url = Url.parse(f"ethereum+{text}")
        return EthereumProbe(url, proxy=self.proxy, ca=self.ca if text.startswith("https:") else "")

    async def check(self) -> Verdict:
        try:
            kept = self._take_socket()
            if kept is not None and (verdict := await self._check_kept(kept)) is not None:
                return verdict
            return await self._check_and_release(await open_websocket(self, self._make_socket))
        except HandshakeStatusError as exc:
            return self.failed(str(exc), self.code_for_status(exc.status))
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))

    def _make_socket(self) -> RpcSocket:
        return RpcSocket(self, self._heads)

    def _take_socket(self) -> RpcSocket | None:
        """That of an earlier check, unless it is closed, or its host has moved since."""
        socket = self._sockets.take()
        if socket is None or socket.error is not None:
            return None
        if self.proxy or not self._sockets.has_moved(self.url.host, socket.peer_address):
            return socket
        socket.abort()
        return None

    async def _check_kept(self, socket: RpcSocket) -> Verdict | None:
        """None if the connection failed: only a new one shows the state of the server."""
        with step("reuse", REUSE_STEP_DETAIL):
            socket.reset_limits()
        with suppress(OSError):
            return await self._check_and_release(socket)
        return None

    async def _check_and_release(self, socket: RpcSocket) -> Verdict:
        is_kept = False
        try:
            verdict = await self._verdict_over(socket)
            is_kept = self.reuse and socket.is_usable and verdict.code is not ReasonCode.TLS_EXPIRES_SOON
        finally:
            if not is_kept:
                socket.abort()
        if is_kept:
            self.close()  # another check may have stored a connection at the same time
            self._sockets.put(socket)
        return verdict

    async def _verdict_over(self, socket: RpcSocket) -> Verdict:
        """Whatever it is, the connection can be kept: without it, no heads would arrive until the next check."""
        try:
            return await self.check_rpc(socket) or READY
        except CheckError as exc:
            return exc.verdict(self.url)

    async def head_verdict(self, call: RpcCall, limit_s: float) -> Verdict | None:
        if verdict := await EthereumProbe.head_verdict(self, call, limit_s):
            return verdict
        assert isinstance(call.connection, RpcSocket)
        subscribed_at_s = await self._subscribe(call, call.connection, limit_s)
        waited_s = self._heads.waited_s(limit_s, subscribed_at_s)
        if waited_s > limit_s:
            call.connection.is_silent = monotonic_s() - subscribed_at_s > limit_s
            text = f"the subscription has delivered no new head for {format_limit(round(waited_s))}"
            return self.failed(f"{text}, although the client has newer blocks", ReasonCode.STALLED)
        if not self._heads.is_fresh(limit_s):
            return self.not_ready("the subscription has not delivered a head yet", ReasonCode.STARTING)
        return None

    async def _subscribe(self, call: RpcCall, socket: RpcSocket, limit_s: float) -> float:
        """When it began. In the check that subscribes, wait for a head if none is known."""
        if socket.subscribed_at_s is None:
            text_at(await call("eth_subscribe", "newHeads"), "")
            socket.subscribed_at_s = monotonic_s()
            if not self._heads.is_fresh(limit_s):
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(limit_s, time_for_others_s() or limit_s)):
                        await socket.next_head()
        return socket.subscribed_at_s

    def close(self) -> None:
        self._sockets.close(RpcSocket.abort)
