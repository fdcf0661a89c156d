"""Ganache: an Ethereum client for tests that creates blocks on request."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.servers.base import RealServer
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = "7.9.2"
CHAIN_ID = 1337
_HOME = Path(__file__).parents[3] / ".cache" / "npm"
_PACKAGE = _HOME / "node_modules" / "ganache"


class GanacheServer(RealServer):
    """Creates a block every `block_time_s`, or when `mine` is called."""

    def __init__(self, folder: Path, *, block_time_s: int = 0) -> None:
        super().__init__(folder)
        self.block_time_s = block_time_s

    @property
    def url(self) -> str:
        return f"ethereum+http://{self.host}:{self.port}"

    def prepare(self) -> None:
        _install()

    def command(self) -> Sequence[str]:
        options = {
            "server.host": self.host,
            "server.port": self.port,
            "chain.chainId": CHAIN_ID,
            "miner.blockTime": self.block_time_s,
            "database.dbPath": self.folder / "chain",
            "wallet.totalAccounts": 1,
            "wallet.seed": "ledger",  # the same accounts after a restart
            "logging.quiet": "true",
        }
        script = _PACKAGE / "dist" / "node" / "cli.js"
        return [_tool("node"), str(script), *(f"--{name}={value}" for name, value in options.items())]

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


def _install() -> None:
    """Once, into a folder that git ignores; concurrent test runs wait."""
    npm = _tool("npm")
    _HOME.mkdir(parents=True, exist_ok=True)
    with (_HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _installed_version() == VERSION:
            return
        options = ["--silent", "--no-audit", "--no-fund", "--prefix", str(_HOME)]
        done = subprocess.run([npm, "install", *options, f"ganache@{VERSION}"], check=False, capture_output=True)
    if done.returncode != 0 or _installed_version() != VERSION:
        skip_or_fail(f"npm could not install ganache {VERSION}: {done.stderr.decode(errors='replace')[-500:]}")


def _installed_version() -> str | None:
    with suppress(OSError, ValueError):
        version: str = json.loads((_PACKAGE / "package.json").read_text())["version"]
        return version
    return None


def _tool(name: str) -> str:
    return shutil.which(name) or skip_or_fail(f"{name} is not installed: ganache needs Node.js and npm")
