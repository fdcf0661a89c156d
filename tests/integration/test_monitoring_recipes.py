"""blackbox_exporter with the modules of deploy/prometheus, and the job in docs/recipes.md.

The rules are tested in test_metrics.py, Alertmanager in test_notify.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.processes import Agent
from tests.support.servers.blackbox_exporter import BlackboxExporter
from tests.support.servers.prometheus import promtool

pytestmark = pytest.mark.wide

RECIPES = Path(__file__).parents[2] / "docs" / "recipes.md"
SERVICES = "".join(
    f'[[services]]\nid = "{status.lower()}"\nstatus = "{status}"\n' for status in ("Up", "Initializing", "Down")
)


def test_the_modules_of_blackbox_exporter_read_206_as_good_or_as_bad(tmp_path: Path) -> None:
    with (
        Agent(tmp_path, "--listen", "127.0.0.1:0", config=SERVICES) as agent,
        BlackboxExporter(tmp_path / "blackbox") as blackbox,
    ):
        for path, code, is_good, is_good_if_strict in (
            ("/svc/node/services/up/health", 200, True, True),
            ("/svc/node/services/down/health", 503, False, False),
            ("/svc/node/health", 206, True, False),
            ("/svc/node/services/other/health", 404, False, False),
        ):
            for module, success in (("svcnode", is_good), ("svcnode_strict", is_good_if_strict)):
                result = blackbox.probe(f"http://127.0.0.1:{agent.port}{path}", module)
                assert (result["probe_http_status_code"], result["probe_success"]) == (code, success)


def test_prometheus_accepts_the_job_of_the_page(tmp_path: Path) -> None:
    (job,) = re.findall(r"(?ms)^```yaml\n(scrape_configs:\n  - job_name: svcnode-health.*?)^```$", RECIPES.read_text())
    (tmp_path / "prometheus.yml").write_text(job)
    code, output = promtool("check", "config", "--syntax-only", str(tmp_path / "prometheus.yml"))
    assert code == 0, output
