"""A scripted WebSocket server that answers JSON-RPC requests and delivers heads."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from tests.support.ports import free_port

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from websockets.http11 import Request, Response

SUBSCRIPTION = "0xcd0c3e8af590364c09d0fa6a1210faf5"


class EthereumSocket:
    """`answers` are results by method; an exception in them is an error of JSON-RPC. `deliver` sends a head to all."""

    def __init__(
        self, answers: Mapping[str, Any] | None = None, *, tls: ssl.SSLContext | None = None, status: int = 101
    ) -> None:
        self.answers = dict(answers or {})
        self.calls: list[str] = []
        self.requests: list[Request] = []
        self.head_on_subscribe = True
        self.connections: list[ServerConnection] = []  # that are subscribed
        self._others: list[ServerConnection] = []
        self.port = free_port()
        self._status = status
        self._server: Server = serve(self._serve, "127.0.0.1", self.port, ssl=tls, process_request=self._refuse)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close_all()
        self._server.shutdown()
        self._thread.join()

    def deliver(self, head: object = None, *, age_s: float = 0.0) -> None:
        head = {"number": "0x10", "timestamp": hex(int(time.time() - age_s))} if head is None else head
        message = {"method": "eth_subscription", "params": {"subscription": SUBSCRIPTION, "result": head}}
        self.send(json.dumps({"jsonrpc": "2.0", **message}))

    def send(self, message: str) -> None:
        for connection in self.connections:
            with suppress(ConnectionClosed):
                connection.send(message)

    def close_all(self) -> None:
        for connection in [*self.connections, *self._others]:
            with suppress(Exception):
                connection.close_socket()
        self.connections.clear()

    def _refuse(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        return None if self._status == 101 else connection.respond(self._status, "no\n")

    def _serve(self, connection: ServerConnection) -> None:
        self._others.append(connection)
        with suppress(ConnectionClosed):
            for message in connection:
                call = json.loads(message)
                self.calls.append(call["method"])
                connection.send(json.dumps({"jsonrpc": "2.0", "id": call["id"], **self._answer(call["method"])}))
                if call["method"] == "eth_subscribe" and "result" in self._answer("eth_subscribe"):
                    self.connections.append(connection)
                    if self.head_on_subscribe:
                        self.deliver()

    def _answer(self, method: str) -> dict[str, Any]:
        block = {"number": "0x10", "timestamp": hex(int(time.time()))}
        usual = {"eth_chainId": "0x1", "eth_syncing": False, "eth_getBlockByNumber": block, "net_peerCount": "0x19"}
        found = {**usual, "eth_subscribe": SUBSCRIPTION, **self.answers}.get(method, KeyError(-32601))
        if isinstance(found, Exception):
            return {"error": {"code": found.args[0], "message": "refused"}}
        return {"result": found}
