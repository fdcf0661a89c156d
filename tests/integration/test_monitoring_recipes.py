"""blackbox_exporter, Prometheus and Alertmanager with the files of deploy/ and the configuration in docs/recipes.md."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.backends import HttpBackend, http_response
from tests.support.processes import Agent
from tests.support.servers.alertmanager import AlertmanagerServer
from tests.support.servers.base import wait_until
from tests.support.servers.blackbox_exporter import BlackboxExporter
from tests.support.servers.prometheus import PrometheusServer, replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.wide

RECIPES = Path(__file__).parents[2] / "docs" / "recipes.md"
TOKEN = "the-token-of-the-operator"
CONFIG = """
[server]
listen = "0.0.0.0:0"

[security]
operator_token = "{token}"

[history]
keep = false

[defaults]
interval = "1s"
transition_interval = "100ms"
start_period = "0s"

[[services]]
id = "ledger"
name = "Ledger database"
probe = "file:{folder}/ledger"
impact = "critical"

[[services]]
id = "up"
status = "Up"

[[services]]
id = "starting"
status = "Initializing"

[[services]]
id = "down"
status = "Down"
impact = "none"
"""


@dataclass
class MonitoredNode:
    """A node that is partially healthy, and what monitors it."""

    agent: Agent
    ledger: Path
    blackbox: BlackboxExporter
    prometheus: PrometheusServer
    alertmanager: AlertmanagerServer
    receiver: HttpBackend

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.agent.port}{path}"

    def received(self, status: str) -> set[tuple[str, str]]:
        """Name and service id of the alerts that the receiver of Alertmanager has got with this status."""
        alerts = [alert for request in self.receiver.requests for alert in json.loads(request.body)["alerts"]]
        return {
            (alert["labels"]["alertname"], alert["labels"].get("service_id", ""))
            for alert in alerts
            if alert["status"] == status
        }


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredNode]:
    folder = tmp_path_factory.mktemp("node")
    (folder / "ledger").touch()
    config = CONFIG.format(token=TOKEN, folder=folder)
    with ExitStack() as stack:
        agent = stack.enter_context(Agent(folder, "--config", "svcnode.toml", config=config))
        receiver = stack.enter_context(HttpBackend(http_response()))
        blackbox = stack.enter_context(BlackboxExporter(tmp_path_factory.mktemp("blackbox")))
        alertmanager = stack.enter_context(
            AlertmanagerServer(tmp_path_factory.mktemp("alertmanager"), receiver=f"http://127.0.0.1:{receiver.port}/")
        )
        prometheus = stack.enter_context(
            PrometheusServer(
                tmp_path_factory.mktemp("prometheus"),
                target=f"127.0.0.1:{agent.port}",
                token=TOKEN,
                alertmanager=f"127.0.0.1:{alertmanager.port}",
                jobs=blackbox_job(agent, blackbox),
                fires_at_once=True,
            )
        )
        yield MonitoredNode(agent, folder / "ledger", blackbox, prometheus, alertmanager, receiver)


def blackbox_job(agent: Agent, blackbox: BlackboxExporter) -> str:
    """The job in the page, without the key above it."""
    (job,) = re.findall(r"(?ms)^```yaml\nscrape_configs:\n(  - job_name: .*?)^```$", RECIPES.read_text())
    changes = {
        "validator-7.example.com:8420": f"127.0.0.1:{agent.port}",
        "localhost:9115": f"127.0.0.1:{blackbox.port}",
        "job_name: svcnode-health": "job_name: svcnode-health\n    scrape_interval: 1s",
    }
    return replaced(job, changes)


def test_the_modules_of_blackbox_exporter_read_206_as_good_or_as_bad(monitored: MonitoredNode) -> None:
    monitored.agent.wait_until(lambda: monitored.agent.health() == 206)
    for path, code, is_good, is_good_if_strict in (
        ("/svc/node/services/up/health", 200, True, True),
        ("/svc/node/services/down/health", 503, False, False),
        ("/svc/node/health", 206, True, False),
        ("/svc/node/services/other/health", 404, False, False),
    ):
        for module, success in (("svcnode", is_good), ("svcnode_strict", is_good_if_strict)):
            result = monitored.blackbox.probe(monitored.url(path), module)
            assert (result["probe_http_status_code"], result["probe_success"]) == (code, success)
    expression = f'probe_success{{job="svcnode-health", instance="{monitored.url("/svc/node/health")}"}}'
    wait_until(lambda: monitored.prometheus.value(expression) == 1, expression)


def test_alertmanager_receives_the_alerts_of_the_rules_and_their_end(monitored: MonitoredNode) -> None:
    critical, unhealthy = ("SvcnodeCriticalServiceDown", "ledger"), ("SvcnodeNodeUnhealthy", "")
    is_up = 'svcnode_service_status{service_id="ledger", status="Up"}'
    wait_until(lambda: monitored.prometheus.value(is_up) == 1, "Up")
    monitored.ledger.unlink()
    wait_until(lambda: monitored.alertmanager.alerts().keys() >= {critical, unhealthy}, "both alerts")
    alert = monitored.alertmanager.alerts()[critical]
    assert alert["status"]["state"] == "active"
    assert alert["labels"]["severity"] == "critical"
    assert "Ledger database" in alert["annotations"]["summary"]
    wait_until(lambda: critical in monitored.received("firing"), "received")

    def is_explained() -> bool:
        return bool(monitored.alertmanager.alerts()[unhealthy]["status"]["inhibitedBy"] == [alert["fingerprint"]])

    wait_until(is_explained, "the service explains the health of the node")
    monitored.ledger.touch()
    wait_until(lambda: not {critical, unhealthy} & monitored.alertmanager.alerts().keys(), "resolved")
    wait_until(lambda: critical in monitored.received("resolved"), "received")
