"""The health service of grpcio in its own process; a test sets the status of each service."""

from __future__ import annotations

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.servers.base import OwnPort, PythonServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.certificates import Certificate

SERVICE = "ledger"
TIMEOUT_S = 5.0


class GrpcHealthServer(PythonServer):
    """Serves `SERVICE` and "", which is the server."""

    control_port = OwnPort()

    def __init__(self, folder: Path, *, certificate: Certificate | None = None) -> None:
        super().__init__(folder)
        self.certificate = certificate
        self.statuses = {"": "SERVING", SERVICE: "SERVING"}

    @property
    def url(self) -> str:
        return f"{'grpc' if self.certificate is None else 'grpcs'}://{self.host}:{self.port}/{SERVICE}"

    @property
    def state(self) -> Mapping[str, str]:
        return {"status": self.statuses[SERVICE]}

    def arguments(self) -> Sequence[str]:
        made = self.certificate
        settings = {
            "port": self.port,
            "control_port": self.control_port,
            "statuses": self.statuses,
            "tls": None if made is None else [str(made.key), str(made.certificate)],
        }
        return [json.dumps(settings)]

    def is_ready(self) -> bool:
        return self._send_statuses({})

    def set(self, service: str = SERVICE, status: str = "NOT_SERVING") -> None:
        """UNKNOWN, SERVING, NOT_SERVING or SERVICE_UNKNOWN; effective when this returns, and after a restart."""
        self.statuses[service] = status
        if self.process is not None:
            assert self._send_statuses({service: status})

    def _send_statuses(self, statuses: Mapping[str, str]) -> bool:
        with socket.create_connection((self.host, self.control_port), timeout=TIMEOUT_S) as sock:
            sock.sendall(json.dumps(statuses).encode() + b"\n")
            return sock.recv(10) == b"ok\n"


def _serve() -> None:
    import grpc  # type: ignore[import-untyped]
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

    settings = json.loads(sys.argv[1])
    servicer = health.HealthServicer()

    def put(statuses: Mapping[str, str]) -> None:
        for service, status in statuses.items():
            servicer.set(service, health_pb2.HealthCheckResponse.ServingStatus.Value(status))

    put(settings["statuses"])
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    address = f"127.0.0.1:{settings['port']}"
    if settings["tls"] is None:
        server.add_insecure_port(address)
    else:
        key, certificate = (Path(path).read_bytes() for path in settings["tls"])
        server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)]))
    server.start()
    with socket.create_server(("127.0.0.1", settings["control_port"])) as control:
        while True:
            connection, _ = control.accept()
            with connection, connection.makefile("rb") as lines:
                put(json.loads(lines.readline() or b"{}"))
                connection.sendall(b"ok\n")


if __name__ == "__main__":
    _serve()
