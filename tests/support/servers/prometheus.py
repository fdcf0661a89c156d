"""Prometheus with the example configuration of deploy/, and promtool."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.support.servers.base import RealServer
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PACKAGE = "prometheus"
DEPLOY = Path(__file__).parents[3] / "deploy"
EXAMPLE = DEPLOY / "prometheus" / "prometheus.yml"
METRICS_PAGE = DEPLOY.parent / "docs" / "metrics.md"
RULES = DEPLOY / "prometheus" / "svcnode-rules.yml"
TOOL_DEADLINE_S = 60.0


def promtool(*arguments: str, text: str = "") -> tuple[int, str]:
    """The exit code and the output of promtool."""
    ended = subprocess.run(
        [program("promtool", PACKAGE), *arguments],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TOOL_DEADLINE_S,
        check=False,
    )
    return ended.returncode, ended.stdout


def replaced(config: str, changes: Mapping[str, str]) -> str:
    """An example with the addresses and times of a test. Each of them must be in the example once."""
    for shown, ours in changes.items():
        assert config.count(shown) == 1, shown
        config = config.replace(shown, ours)
    return config


class PrometheusServer(RealServer):
    """Scrapes and evaluates every second, for fast tests."""

    def __init__(self, folder: Path, *, target: str, token: str) -> None:
        super().__init__(folder)
        self._target = target
        self._token = token

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/-/ready"

    def command(self) -> Sequence[str]:
        return [
            program("prometheus", PACKAGE),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={self.host}:{self.port}",
            "--log.level=warn",
        ]

    def prepare(self) -> None:
        token_file = self.folder / "token"
        token_file.write_text(f"{self._token}\n")
        (self.folder / RULES.name).write_text(RULES.read_text())
        changes = {
            "validator-7.example.com:8420": self._target,
            "/etc/prometheus/svcnode-token": str(token_file),
            "scrape_interval: 15s": "scrape_interval: 1s",
            "localhost:9093": "127.0.0.1:1",
        }
        config = replaced(EXAMPLE.read_text(), changes)
        (self.folder / "prometheus.yml").write_text(f"global:\n  evaluation_interval: 1s\n\n{config}")

    def is_ready(self) -> bool:
        return http_request(self.port, "/-/ready")[0] == 200

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now, each with its labels (`metric`) and `value`."""
        answer = self._get(f"/api/v1/query?query={quote(expression, safe='')}")
        result: list[dict[str, Any]] = answer["result"]
        return result

    def value(self, expression: str) -> float | None:
        """Of the one series that there is; None while there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def targets(self) -> dict[str, str]:
        """The health of each target, by the URL that is scraped."""
        return {found["scrapeUrl"]: found["health"] for found in self._get("/api/v1/targets")["activeTargets"]}

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Those that are pending or fire."""
        found: list[dict[str, Any]] = self._get("/api/v1/alerts")["alerts"]
        return found

    def _get(self, path: str) -> Any:
        code, answer = http_request(self.port, path)
        assert code == 200, answer
        return answer["data"]


class DiscoveringPrometheus(PrometheusServer):
    """With the job of docs/metrics.md that asks a node for its targets, every second."""

    def prepare(self) -> None:
        token_file = self.folder / "token"
        token_file.write_text(f"{self._token}\n")
        changes = {
            "https://fleet.example.com:8420/targets": f"http://{self._target}/targets",
            "refresh_interval: 30s": "refresh_interval: 1s",
        }
        config = replaced(discovery_example(), changes).replace("/etc/prometheus/svcnode-token", str(token_file))
        (self.folder / "prometheus.yml").write_text(f"global:\n  scrape_interval: 1s\n\n{config}")


def discovery_example() -> str:
    (example,) = re.findall(r"(?ms)^```yaml\n([^`]*http_sd_configs:[^`]*)^```$", METRICS_PAGE.read_text())
    return str(example)
