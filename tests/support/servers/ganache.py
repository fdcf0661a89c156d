"""Ganache: an Ethereum client for tests that creates blocks on request."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.support.servers.base import RealServer
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import npm_package, tool

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = "7.9.2"
CHAIN_ID = 1337


class GanacheServer(RealServer):
    """Creates a block when `mine` is called."""

    scheme = "ethereum+http"

    def command(self) -> Sequence[str]:
        options = {
            "server.host": self.host,
            "server.port": self.port,
            "chain.chainId": CHAIN_ID,
            "miner.blockTime": 0,
            "database.dbPath": self.folder / "chain",
            "wallet.totalAccounts": 1,
            "wallet.seed": "ledger",  # the same accounts after a restart
            "logging.quiet": "true",
        }
        script = npm_package("ganache", VERSION) / "dist" / "node" / "cli.js"
        return [tool("node"), str(script), *(f"--{name}={value}" for name, value in options.items())]

    def is_ready(self) -> bool:
        return int(self.call("eth_chainId"), 16) == CHAIN_ID

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
