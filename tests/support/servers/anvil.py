"""Anvil, of Foundry: an Ethereum client whose mining can be started and stopped."""

from __future__ import annotations

import platform
import shutil
from typing import TYPE_CHECKING

from tests.support.servers.base import as_flags
from tests.support.servers.ethereum import EthereumServer
from tests.support.servers.provision import npm_package, skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = "1.7.1"
GENESIS_S = 1_600_000_000  # a block is not older than the one before
PACKAGE = "@foundry-rs/anvil-linux-amd64"


class AnvilServer(EthereumServer):
    chain_id = 31337
    set_balance_method = "anvil_setBalance"
    set_code_method = "anvil_setCode"

    def command(self) -> Sequence[str]:
        options = {"host": self.host, "port": self.port, "timestamp": GENESIS_S}
        return [_program(), "--silent", "--no-mining", *as_flags(options)]

    def mine_every(self, interval_s: int) -> None:
        """0: no more blocks."""
        self.call("evm_setIntervalMining", interval_s)


def _program() -> str:
    """That on PATH, or of npm. The package without a machine in its name downloads the program in a script."""
    if found := shutil.which("anvil"):
        return found
    if platform.machine() != "x86_64":
        skip_or_fail(
            f"anvil is not on PATH, and npm has no package of it for Linux on {platform.machine()}, only for x86_64: "
            f"npm install {PACKAGE}@{VERSION}"
        )
    return str(npm_package(PACKAGE, VERSION) / "bin" / "anvil")
