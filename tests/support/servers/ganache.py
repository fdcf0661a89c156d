"""Ganache: an Ethereum client for tests that creates blocks on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.servers.base import as_flags
from tests.support.servers.ethereum import EthereumServer
from tests.support.servers.provision import npm_package, tool

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = "7.9.2"
CHAIN_ID = 1337


class GanacheServer(EthereumServer):
    chain_id = CHAIN_ID
    set_balance_method = "evm_setAccountBalance"
    set_code_method = "evm_setAccountCode"

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
        return [tool("node"), str(script), *as_flags(options)]
