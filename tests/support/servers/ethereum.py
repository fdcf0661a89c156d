"""What the Ethereum clients for tests share: blocks, accounts and contracts as a test sets them."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from tests.support.servers.base import RealServer
from tests.support.servers.http_request import http_request

ACCOUNT = "0x00000000000000000000000000000000000a11ce"
CONTRACT = "0x00000000000000000000000000000000000c0de0"
ETHER = 10**18


class EthereumServer(RealServer):
    """Creates a block when `mine` is called."""

    scheme = "ethereum+http"
    chain_id: ClassVar[int]
    set_balance_method: ClassVar[str]
    set_code_method: ClassVar[str]

    @property
    def websocket_url(self) -> str:
        return f"ethereum+ws://{self.host}:{self.port}"

    def is_ready(self) -> bool:
        return int(self.call("eth_chainId"), 16) == self.chain_id

    def call(self, method: str, *parameters: object) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}
        code, answer = http_request(self.port, "/", method="POST", body=request)
        assert code == 200, answer
        assert "result" in answer, answer
        return answer["result"]

    def mine(self, *, age_s: int = 0) -> int:
        """Create a block with that age and return its number."""
        self.call("evm_mine", {"timestamp": int(time.time()) - age_s})
        return int(self.call("eth_blockNumber"), 16)

    def set_balance(self, wei: int) -> None:
        self.call(self.set_balance_method, ACCOUNT, hex(wei))

    def set_contract(self, code: bytes) -> None:
        self.call(self.set_code_method, CONTRACT, f"0x{code.hex()}")


def returning(data: bytes) -> bytes:
    """The code of a contract that returns this, whatever is called."""
    return _copying(data, 0xF3)


def reverting(reason: str) -> bytes:
    """The code of a contract that reverts each call with `Error(string)`."""
    text = reason.encode()
    padding = bytes(-len(text) % 32)
    return _copying(bytes.fromhex("08c379a0") + word(32) + word(len(text)) + text + padding, 0xFD)


def word(number: int) -> bytes:
    return number.to_bytes(32)


def _copying(data: bytes, last: int) -> bytes:
    """CODECOPY of what follows the code, then RETURN or REVERT."""
    size = len(data)
    return bytes([0x60, size, 0x60, 12, 0x60, 0, 0x39, 0x60, size, 0x60, 0, last]) + data
