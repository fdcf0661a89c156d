"""The node API of the package eigensdk 0.0.3, as its users run it: in an environment of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.servers.base import RealServer
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import python_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

PINS = Path(__file__).parents[2] / "requirements" / "eigensdk.txt"

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
        return [str(python_environment(PINS) / "bin" / "python"), "-c", self._script, f"{self.host}:{self.port}"]

    def is_ready(self) -> bool:
        code, _ = http_request(self.port, "/openapi.json")
        return code == 200
