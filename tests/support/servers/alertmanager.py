"""Alertmanager with the example configuration of deploy/."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.servers.base import RealServer
from tests.support.servers.http_request import http_request
from tests.support.servers.prometheus import DEPLOY, replaced
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLE = DEPLOY / "prometheus" / "alertmanager.yml"


class AlertmanagerServer(RealServer):
    """Groups alerts for a short time, for fast tests."""

    def command(self) -> Sequence[str]:
        return [
            program("prometheus-alertmanager", "prometheus-alertmanager"),
            f"--config.file={self.folder / 'alertmanager.yml'}",
            f"--storage.path={self.folder / 'data'}",
            f"--web.listen-address={self.host}:{self.port}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ]

    def prepare(self) -> None:
        changes = {
            "http://localhost:9099/alerts": "http://127.0.0.1:1/",
            "group_wait: 10s": "group_wait: 100ms",
            "group_interval: 1m": "group_interval: 200ms",
        }
        (self.folder / "alertmanager.yml").write_text(replaced(EXAMPLE.read_text(), changes))

    def is_ready(self) -> bool:
        return http_request(self.port, "/-/ready")[0] == 200

    def alerts(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Those that are not resolved, by name and service id."""
        code, found = http_request(self.port, "/api/v2/alerts")
        assert code == 200, found
        return {(alert["labels"]["alertname"], alert["labels"].get("service_id", "")): alert for alert in found}
