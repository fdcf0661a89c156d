"""The monitors of deploy/recipes and docs/recipes.md: the real programs with these files, and real nodes."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import Agent, run_command
from tests.support.recipes import NODE_PORT, Machine, read_recipe
from tests.support.servers.base import RealServer, wait_until
from tests.support.servers.blackbox_exporter import BlackboxExporter
from tests.support.servers.prometheus import promtool
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.wide

PLUGINS = "/usr/lib/nagios/plugins"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machines") / "1", "127.0.1.3") as running:
        yield running


# ---- monit


class Monit(RealServer):
    """Checks every second. A script instead of systemctl writes its arguments into a file."""

    def __init__(self, folder: Path, machine: Machine, *, strict: bool = False) -> None:
        super().__init__(folder)
        self._machine = machine
        self._strict = strict

    @property
    def url(self) -> str:
        return ""

    def command(self) -> Sequence[str]:
        return [program("monit", "monit"), "-I", "-c", "monitrc"]

    def prepare(self) -> None:
        systemctl = self.folder / "systemctl"
        systemctl.write_text(f'#!/bin/sh\necho "$@" >>{self.folder}/started\n')
        systemctl.chmod(0o755)
        replaced = {
            "127.0.0.1": self._machine.address,
            "8420": str(NODE_PORT),
            "/bin/systemctl": str(systemctl),
            "for 3 cycles": "for 1 cycles",
        }
        recipe = read_recipe("monit.conf", replaced, strict=self._strict)
        files = "".join(f"set {name} {self.folder / name}\n" for name in ("log", "pidfile", "statefile", "idfile"))
        control_file = self.folder / "monitrc"
        control_file.write_text(f"set daemon 1\n{files}{recipe}")
        control_file.chmod(0o600)  # monit requires it

    def is_ready(self) -> bool:
        return self.has_logged("Monit .* started")

    def has_logged(self, pattern: str) -> bool:
        return re.search(pattern, (self.folder / "log").read_text()) is not None

    def wait_for_log(self, pattern: str) -> None:
        wait_until(lambda: self.has_logged(pattern), pattern)

    @property
    def commands(self) -> list[str]:
        file = self.folder / "started"
        return file.read_text().splitlines() if file.exists() else []


ALERT = r"error +: 'node-health' failed protocol test"  # a warning is a failure before the last cycle
RECOVERY = r"info +: 'node-health' connection succeeded"


def test_monit_alerts_about_the_health_of_the_node_and_restarts_only_a_node_that_does_not_answer(
    machine: Machine, tmp_path: Path
) -> None:
    machine.set_health(206)
    with Monit(tmp_path / "1", machine) as monit, Monit(tmp_path / "2", machine, strict=True) as strict:
        strict.wait_for_log(ALERT)
        machine.set_health(503)
        monit.wait_for_log(ALERT)
        machine.set_health(206)
        monit.wait_for_log(RECOVERY)
        machine.set_health(200)
        strict.wait_for_log(RECOVERY)
        assert monit.commands == []
        machine.kill_node()
        wait_until(lambda: monit.commands[:2] == ["stop svcnode", "start svcnode"], "restart")


# ---- Nagios


def nagios_commands() -> dict[str, str]:
    text = read_recipe(
        "nagios.cfg", {"8420": str(NODE_PORT), "/opt/svcnode/bin/svcnode": f"{sys.executable} -m svcnode"}
    )
    return dict(re.findall(r"define command \{\n +command_name (\S+)\n +command_line (.*)\n\}", text))


# OK, WARNING, CRITICAL and UNKNOWN are 0, 1, 2 and 3.
@pytest.mark.parametrize(("name", "unreachable"), [("check_svcnode", 2), ("check_svcnode_services", 3)])
def test_the_exit_code_of_a_nagios_command_is_the_health_of_the_node(
    name: str, unreachable: int, machine: Machine, tmp_path: Path
) -> None:
    program("check_http", "monitoring-plugins-basic", also_in=PLUGINS)
    command = shlex.split(nagios_commands()[name].replace("$HOSTADDRESS$", machine.address).replace("$$", "$"))

    def exit_code() -> int:
        return run_command(command, tmp_path).returncode

    for health, code in {200: 0, 206: 1, 503: 2}.items():
        machine.set_health(health)
        assert exit_code() == code
    machine.kill_node()
    assert exit_code() == unreachable


# ---- Prometheus: the rules are tested in test_metrics.py, Alertmanager in test_notify.py

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
