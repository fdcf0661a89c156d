"""The node API of the package eigensdk 0.0.3, as its users run it: in an environment of its own."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.servers.base import RealServer
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements" / "eigensdk.txt"

NODE = """
import logging, sys
from eigensdk.nodeapi.nodeapi import *

node = NodeAPI("eigen-node", "v1.0.0", sys.argv[1], logging.getLogger("node"))
node.register_new_service("db", "Database", "Holds the ledger", ServiceStatus.Up)
node.register_new_service("indexer", "Indexer", "Follows the chain", ServiceStatus.Initializing)
node.register_new_service("storage", "Storage", "Keeps the blobs", ServiceStatus.Down)
"""
AS_SHIPPED = NODE + "run(node)\n"
# What `run` builds and forgets to include.
MOUNTED = (
    NODE
    + """
router = APIRouter(prefix=BASE_URL)
router.add_api_route("/node", endpoint=node_handler(node))
router.add_api_route("/node/health", endpoint=health_handler(node))
router.add_api_route("/node/services", endpoint=services_handler(node))
router.add_api_route("/node/services/{service_id}/health", endpoint=service_health_handler(node))
app = FastAPI()
app.include_router(router)
host, port = node.ip_port_addr.split(":")
uvicorn.run(app, host=host, port=int(port))
"""
)


class EigenNode(RealServer):
    def __init__(self, folder: Path, script: str) -> None:
        super().__init__(folder)
        self._script = script

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def command(self) -> Sequence[str]:
        return [str(environment()), "-c", self._script, f"{self.host}:{self.port}"]

    def is_ready(self) -> bool:
        code, _ = http_request(self.port, "/openapi.json")
        return code == 200


def environment() -> Path:
    """The interpreter of an environment with the package; created once per set of pins, in an ignored folder."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"eigensdk-{version}-{hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]}"
    folder = ROOT / ".cache" / name
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / "eigensdk.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _make(folder)
            (folder / "ready").touch()
    return folder / "bin" / "python"


def _make(folder: Path) -> None:
    ours = ROOT / ".uv" / "bin" / "uv"
    uv = str(ours) if ours.exists() else shutil.which("uv")
    if uv is None:
        skip_or_fail("uv is neither in .uv/bin nor on PATH, and eigensdk needs an environment of its own")
    make = [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, "--no-python-downloads", str(folder)]
    python = str(folder / "bin" / "python")
    fill = [uv, "pip", "sync", "--quiet", "--python", python, "--require-hashes", str(PINS)]
    for command in (make, fill):
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        if done.returncode:
            skip_or_fail(f"eigensdk could not be installed: {done.stderr[-500:]}")
