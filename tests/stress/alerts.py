"""Compare what Alertmanager shows with the node, every second, while services fail and recover at random.

`python -m tests.stress.alerts` runs `svcnode serve` with four services, and Debian's Alertmanager, for ten minutes. A
sample is right if each alert is there that the node has reported, under the name and the severity of the present, and
no other. A change takes a moment to arrive, so a sample is wrong only if it stays wrong.
"""

# ruff: noqa: T201  for a command-line program

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.stress.campaigns import campaign_folder, campaign_parser, machine
from tests.support.processes import Agent
from tests.support.servers.alertmanager import AlertmanagerServer
from tests.support.tcp_service import TcpService

if TYPE_CHECKING:
    import random
    from pathlib import Path

GROUP_WAIT_S, RESOLVE_DELAY_S = 2.0, 12.0
ARRIVAL_S = 5.0  # of a change at Alertmanager, also on a busy machine
IMPACTS = {"ledger": "critical", "keys": "critical", "cache": "partial", "archive": "partial"}
CONFIG = f"""
[server]
listen = "127.0.0.1:0"
drain = "0s"
[notify]
alertmanager = "URL"
services = "all"
group_wait = "{GROUP_WAIT_S:g}s"
resolve_delay = "{RESOLVE_DELAY_S:g}s"
[defaults]
interval = "1s"
transition_interval = "200ms"
timeout = "900ms"
stale_after = "1m"
start_period = "0s"
"""
NAMES = {
    (206, ""): "SvcnodeNodePartial",
    (503, ""): "SvcnodeNodeUnhealthy",
    (206, "critical"): "SvcnodeServiceNotReady",
    (206, "partial"): "SvcnodeServiceNotReady",
    (503, "critical"): "SvcnodeCriticalServiceDown",
    (503, "partial"): "SvcnodeServiceDown",
}


class Fact(NamedTuple):
    """Of the node, whose id is "", or of a service."""

    health: int  # as last reported, or as it is if that is worse
    state: str  # of its alert: inactive, pending, firing or resolving


@dataclass
class Report:
    samples: int = 0
    open_alerts: int = 0
    faults: int = 0
    problems: list[str] = field(default_factory=list)


class Campaign:
    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._rng = rng
        self._services = {service_id: TcpService() for service_id in IMPACTS}
        (folder / "alertmanager").mkdir(parents=True)
        self._alertmanager = AlertmanagerServer(folder / "alertmanager")
        self._folder = folder
        self.report = Report()

    def run(self, time_s: float) -> None:
        try:
            with self._alertmanager, Agent(self._folder, config=self._config()) as agent:
                agent.wait_until(lambda: agent.health() == 200)
                self._sample_until(agent, time.monotonic() + time_s)
        finally:
            for service in self._services.values():
                service.stop()

    def _config(self) -> str:
        tables = (
            f'[[services]]\nid = "{service_id}"\nimpact = "{IMPACTS[service_id]}"\n'
            f'probe = "tcp://127.0.0.1:{service.port}"\n'
            for service_id, service in self._services.items()
        )
        return CONFIG.replace("URL", self._alertmanager.url) + "".join(tables)

    def _sample_until(self, agent: Agent, end_s: float) -> None:
        next_fault_s, wrong_since_s = 0.0, None
        while (now_s := time.monotonic()) < end_s:
            if now_s >= next_fault_s:
                self._change_a_service()
                next_fault_s = now_s + self._rng.choice((0.3, 1.0, 3.0, 10.0, 30.0))
            difference = self._difference(agent)
            self.report.samples += 1
            if not difference:
                wrong_since_s = None
            elif wrong_since_s is None:
                wrong_since_s = now_s
            elif now_s - wrong_since_s > ARRIVAL_S:
                self.report.problems.append(f"for {now_s - wrong_since_s:.1f} s: {difference}")
            time.sleep(0.3)

    def _change_a_service(self) -> None:
        service = self._rng.choice(list(self._services.values()))
        self.report.faults += service.is_running
        (service.stop if service.is_running else service.start)()

    def _difference(self, agent: Agent) -> str:
        """What Alertmanager shows and the node has not reported, or the other way around; empty if there is none."""
        facts = _facts(agent.request("/details").json)
        expected = {
            (NAMES[fact.health, IMPACTS.get(service_id, "")], service_id)
            for service_id, fact in facts.items()
            if fact.state in ("firing", "resolving")
        }
        found = self._alertmanager.alerts().keys()
        self.report.open_alerts += len(found)
        missing, others = expected - found, found - expected
        return f"missing {sorted(missing)}, not expected {sorted(others)}" if missing or others else ""


def _facts(details: Any) -> dict[str, Fact]:
    rows = {"": (details["node"]["health"], details["node"]["alert"])}
    rows |= {one["id"]: (one["health"], one["alert"]) for one in details["services"]}
    return {
        name: Fact(max(health, alert["notified_health"]) if alert["state"] != "inactive" else health, alert["state"])
        for name, (health, alert) in rows.items()
    }


def main() -> int:
    import random

    arguments = campaign_parser("alerts", __doc__, minutes=10.0).parse_args()
    print(f"seed {arguments.seed}, {machine()}")
    with campaign_folder() as folder:
        campaign = Campaign(folder, random.Random(arguments.seed))
        campaign.run(arguments.minutes * 60)
    report = campaign.report
    print(f"{report.faults} faults, {report.samples} samples with {report.open_alerts} open alerts")
    for problem in report.problems[:10]:
        print(f"  {problem}")
    print(f"samples that stayed wrong: {len(report.problems)}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
