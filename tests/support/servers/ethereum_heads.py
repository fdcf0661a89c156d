"""The scripted execution client of chains.py over WebSocket, with subscriptions to new heads.

As in geth's documentation of subscriptions: `eth_subscribe` returns an id, and each head is a notification with it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from websockets.exceptions import ConnectionClosed, InvalidMessage
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from tests.support.servers.chains import StubChain, answer

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND = "ethereum"
SUBSCRIPTION = "0xcd0c3e8af590364c09d0fa6a1210faf5"
BETWEEN_HEADS_S = 0.4


class EthereumHeads(StubChain):
    """`is_silent`: it answers calls and delivers no heads. `head_age_s`: the heads are older than its newest block."""

    defaults: ClassVar[dict[str, Any]] = {**StubChain.defaults, "is_silent": False, "head_age_s": 0}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, KIND)
        self.scheme = "ethereum+ws"

    def is_ready(self) -> bool:
        with suppress(InvalidMessage), connect(f"ws://{self.host}:{self.port}") as socket:
            socket.send(json.dumps({"id": 1, "method": "eth_chainId"}))
            return "id" in json.loads(socket.recv())
        return False


class Connection:
    def __init__(self, socket: ServerConnection, state_file: Path) -> None:
        self._socket = socket
        self._state_file = state_file

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._state_file.read_text())
        return state

    def serve(self) -> None:
        with suppress(ConnectionClosed):
            for message in self._socket:
                call, state = json.loads(message), self._state()
                if call["method"] == "eth_subscribe" and "eth_subscribe" not in state["missing"]:
                    self._send({"id": call["id"], "result": SUBSCRIPTION})
                    threading.Thread(target=self._deliver_heads, daemon=True).start()
                else:
                    self._send(answer(KIND, state, call)[1])

    def _deliver_heads(self) -> None:
        """Until the connection ends, or the server has no subscriptions any more, and ends it."""
        with suppress(ConnectionClosed):
            while "eth_subscribe" not in (state := self._state())["missing"]:
                if not state["is_silent"]:
                    self._send({"method": "eth_subscription", "params": _notification(state)})
                time.sleep(BETWEEN_HEADS_S)
            self._socket.close()

    def _send(self, document: Mapping[str, Any]) -> None:
        self._socket.send(json.dumps({"jsonrpc": "2.0", **document}))


def _notification(state: Mapping[str, Any]) -> dict[str, Any]:
    delivered = {**state, "age_s": state["age_s"] + state["head_age_s"]}
    head = answer(KIND, delivered, {"method": "eth_getBlockByNumber"})[1]["result"]
    return {"subscription": SUBSCRIPTION, "result": head}


if __name__ == "__main__":
    port, state_file = int(sys.argv[1]), Path(sys.argv[2])
    serve(lambda socket: Connection(socket, state_file).serve(), "127.0.0.1", port).serve_forever()
