"""`/metrics` with a real Prometheus and the files of deploy/."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families_in_open_metrics
from prometheus_client.parser import text_string_to_metric_families as families_in

from tests.support.processes import Agent
from tests.support.servers.base import wait_until
from tests.support.servers.http_request import http_request
from tests.support.servers.prometheus import DEPLOY, EXAMPLE, RULES, PrometheusServer, promtool

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "the-token-of-the-operator"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
OPEN_METRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}
WAIT_TIMEOUT_S = 60.0
ODD_ID = 'a "b" \\ {c} <ü>'
CONFIG = """
[node]
name = "validator-7"

[server]
listen = "0.0.0.0:0"

[security]
operator_token = "{token}"

[history]
keep = false

[notify]
webhook = "http://127.0.0.1:1/"
group_wait = "50ms"
resolve_delay = "0s"

[defaults]
interval = "6s"
transition_interval = "100ms"
timeout = "5s"
start_period = "0s"

[[services]]
id = "ledger"
name = "Ledger database"
probe = "file:{folder}/ledger"
impact = "critical"

[[services]]
id = "cache"
probe = "file:{folder}/cache"

[[services]]
id = "chain"
probe = "tcp://127.0.0.1:1"
impact = "none"

[[services]]
id = '{odd_id}'
status = "Initializing"
"""
DOCS = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
DASHBOARD = json.loads((DEPLOY / "grafana" / "svcnode.json").read_text())


@dataclass
class ScrapedNode:
    """A node with a token, the files that its probes check, and a Prometheus that scrapes it."""

    agent: Agent
    folder: Path
    prometheus: PrometheusServer

    def metrics(self, headers: dict[str, str] | None = None) -> str:
        code, text = http_request(self.agent.port, "/metrics", headers={**BEARER, **(headers or {})})
        assert code == 200
        return str(text)

    def remove_service(self, service_id: str) -> None:
        (self.folder / service_id).unlink(missing_ok=True)

    def wait_for_value(self, expression: str, value: float) -> None:
        wait_until(lambda: self.prometheus.value(expression) == value, f"{expression} == {value}", WAIT_TIMEOUT_S)

    def wait_for_alert(self, name: str) -> dict[str, Any]:

        def alerts() -> dict[str, dict[str, Any]]:
            return {alert["labels"]["alertname"]: alert for alert in self.prometheus.alerts()}

        wait_until(lambda: name in alerts(), name, WAIT_TIMEOUT_S)
        return alerts()[name]


@pytest.fixture(scope="module")
def scraped_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScrapedNode]:
    folder = tmp_path_factory.mktemp("node")
    for service_id in ("ledger", "cache"):
        (folder / service_id).touch()
    config = CONFIG.format(token=TOKEN, folder=folder, odd_id=ODD_ID)
    with Agent(folder, "--config", "svcnode.toml", config=config) as agent:
        target = f"127.0.0.1:{agent.port}"
        with PrometheusServer(tmp_path_factory.mktemp("prometheus"), target=target, token=TOKEN) as prometheus:
            yield ScrapedNode(agent, folder, prometheus)


# ---- scraping


def test_promtool_and_the_openmetrics_parser_accept_the_metrics(scraped_node: ScrapedNode) -> None:
    assert promtool("check", "metrics", text=scraped_node.metrics()) == (0, "")
    read: Any = families_in_open_metrics  # untyped
    families = {family.name: family for family in read(scraped_node.metrics(OPEN_METRICS))}
    assert families["svcnode_build"].type == "info"
    assert families["svcnode_checks"].type == "counter"
    assert {sample.labels["service_id"] for sample in families["svcnode_service"].samples} == {
        "ledger",
        "cache",
        "chain",
        ODD_ID,
    }


def test_prometheus_scrapes_a_node_with_its_token(scraped_node: ScrapedNode) -> None:
    scraped_node.wait_for_value('up{job="svcnode"}', 1)
    scraped_node.wait_for_value("svcnode_node_info * on (instance) svcnode_build_info", 1)
    names = scraped_node.prometheus.query("svcnode_node_info")[0]["metric"]
    assert (names["name"], names["spec_version"]) == ("validator-7", "v0.0.1")
    ids = {found["metric"]["service_id"] for found in scraped_node.prometheus.query("svcnode_service_info")}
    assert ids == {"ledger", "cache", "chain", ODD_ID}


def test_a_critical_service_that_goes_down_raises_an_alert(scraped_node: ScrapedNode) -> None:
    scraped_node.wait_for_value('svcnode_service_status{service_id="ledger", status="Up"}', 1)
    scraped_node.remove_service("ledger")
    scraped_node.wait_for_value('svcnode_service_status{service_id="ledger", status="Down"}', 1)
    scraped_node.wait_for_value('svcnode_service_status{service_id="ledger", status="Up"}', 0)
    scraped_node.wait_for_value("svcnode_node_health_code", 503)
    scraped_node.wait_for_value('svcnode_node_health{health="unhealthy"}', 1)

    alert = scraped_node.wait_for_alert("SvcnodeCriticalServiceDown")
    scraped_node.wait_for_alert("SvcnodeNodeUnhealthy")
    assert alert["state"] in ("pending", "firing")
    assert (alert["labels"]["service_id"], alert["labels"]["impact"]) == ("ledger", "critical")
    assert "Ledger database" in alert["annotations"]["summary"]
    assert '"ledger"' in alert["annotations"]["description"]


# ---- deploy/


def test_the_rules_are_valid_and_their_tests_pass() -> None:
    code, output = promtool("check", "rules", str(RULES))
    assert code == 0, output
    code, output = promtool("test", "rules", str(RULES.with_name("svcnode-rules-test.yml")))
    assert code == 0, output


def test_every_alert_is_tested_to_fire_and_not_to_fire() -> None:
    tests = RULES.with_name("svcnode-rules-test.yml").read_text()
    cases = re.findall(r"alertname: (\w+)\n\s+eval_time: \w+\n\s+exp_alerts:( \[\])?$", tests, re.MULTILINE)
    for name in re.findall(r"alert: (\w+)", RULES.read_text()):
        assert (name, "") in cases
        assert (name, " []") in cases


def test_prometheus_evaluates_every_rule(scraped_node: ScrapedNode) -> None:
    names = re.findall(r"alert: (\w+)", RULES.read_text())
    assert len(names) > 10

    def rules() -> list[dict[str, Any]]:
        return scraped_node.prometheus.rules()

    wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), "evaluated", WAIT_TIMEOUT_S)
    assert {rule["name"]: (rule["health"], rule.get("lastError", "")) for rule in rules()} == dict.fromkeys(
        names, ("ok", "")
    )


VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"}


def expressions() -> list[Any]:
    """The expressions of the dashboard."""
    return [
        pytest.param(without_variables(target["expr"]), id=f"{panel['title']} {target['refId']}")
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", [])
    ]


def without_variables(expression: str) -> str:
    """With the variables replaced, which the dashboard must define."""
    for name, value in {"__rate_interval": "10s", **dict.fromkeys(VARIABLES, ".*")}.items():
        expression = expression.replace(f"${name}", value)
    assert "$" not in expression, expression
    return expression


@pytest.fixture(scope="module")
def changed(scraped_node: ScrapedNode) -> ScrapedNode:
    """With a change of status that Prometheus has scraped."""
    scraped_node.wait_for_value('svcnode_service_status{service_id="cache", status="Up"}', 1)
    scraped_node.remove_service("cache")
    scraped_node.wait_for_value('svcnode_service_status{service_id="cache", status="Down"}', 1)
    return scraped_node


@pytest.mark.parametrize("expression", expressions())
def test_every_panel_of_the_dashboard_has_data(changed: ScrapedNode, expression: str) -> None:
    wait_until(lambda: bool(changed.prometheus.query(expression)), expression, WAIT_TIMEOUT_S)


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_of_the_dashboard_has_values(scraped_node: ScrapedNode, name: str) -> None:
    (found,) = re.findall(r"^label_values\((.*), (\w+)\)$", VARIABLES[name]["query"]["query"])
    selector, label = without_variables(found[0]), found[1]
    wait_until(lambda: bool(scraped_node.prometheus.query(selector)), selector, WAIT_TIMEOUT_S)
    assert all(series["metric"][label] for series in scraped_node.prometheus.query(selector))


def test_dashboard_and_rules_use_only_exported_metrics(scraped_node: ScrapedNode) -> None:
    exported = {line.partition("{")[0].split(" ")[0] for line in scraped_node.metrics().splitlines() if line[0] != "#"}
    texts = [json.dumps(DASHBOARD["panels"]), json.dumps(DASHBOARD["templating"]), RULES.read_text()]
    used = {name for text in texts for name in re.findall(r"\b(?:svcnode|process)_\w+", text)}
    assert len(used) > 20
    assert {name for name in used if not name.startswith("svcnode_sharing_")} <= exported  # only a replica has these


# ---- docs/metrics.md


def exported_metrics(text: str) -> dict[str, tuple[str, set[str]]]:
    """Their types and labels, by name."""
    exported = {}
    for family in families_in(text):
        if family.name.startswith("process_"):
            continue  # as of every client library
        name = f"{family.name}_total" if family.type == "counter" else family.name
        exported[name] = (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
    return exported


def documented_metrics() -> dict[str, tuple[str, set[str]]]:
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \| (.*?)\| .+ \|$", DOCS, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_the_documentation_lists_every_metric_with_its_type_and_labels(scraped_node: ScrapedNode) -> None:
    """Those of replicas: tests/integration/test_replicas.py."""
    documented = {name: row for name, row in documented_metrics().items() if not name.startswith("svcnode_sharing_")}
    assert documented == exported_metrics(scraped_node.metrics())


def test_the_documentation_lists_every_alert_with_its_severity_and_delay() -> None:
    rules = re.findall(r"alert: (\w+)\n.*?for: (\w+)\n.*?severity: (\w+)", RULES.read_text(), re.DOTALL)
    assert len(rules) > 10
    rows = re.findall(r"^\| (critical|warning) \| (.*) \|$", DOCS, re.MULTILINE)
    listed = [(*alert, severity) for severity, cell in rows for alert in re.findall(r"`(\w+)` (\w+)", cell)]
    assert sorted(listed) == sorted(rules)


def test_the_documentation_shows_the_example_which_is_a_valid_configuration() -> None:
    example = EXAMPLE.read_text().partition("\n")[2]
    assert f"```yaml\n{example}```" in DOCS
    code, output = promtool("check", "config", "--syntax-only", str(EXAMPLE))
    assert code == 0, output
