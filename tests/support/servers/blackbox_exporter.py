"""blackbox_exporter with the modules of deploy/."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tests.support.servers.base import RealServer
from tests.support.servers.http_request import http_request
from tests.support.servers.prometheus import DEPLOY
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULES = DEPLOY / "prometheus" / "blackbox.yml"


class BlackboxExporter(RealServer):
    def command(self) -> Sequence[str]:
        return [
            program("prometheus-blackbox-exporter", "prometheus-blackbox-exporter"),
            f"--config.file={MODULES}",
            f"--web.listen-address={self.host}:{self.port}",
            "--log.level=warn",
        ]

    def is_ready(self) -> bool:
        return http_request(self.port, "/-/healthy")[0] == 200

    def probe(self, target: str, module: str) -> dict[str, float]:
        """The metrics of one probe, without those that have labels."""
        code, text = http_request(self.port, f"/probe?{urlencode({'target': target, 'module': module})}")
        assert code == 200, text
        samples = (line.split(" ") for line in text.splitlines() if not line.startswith("#") and "{" not in line)
        return {name: float(value) for name, value in samples}
