"""Kill a node while clients register, beat, change and deregister services at random: nothing acknowledged is lost.

`python -m tests.stress.control_kills` kills `svcnode serve` 200 times. After each restart, the list, the issues, the
planned maintenance, the acknowledgement and the last heartbeat of each service equal what was acknowledged; the one
request in flight of each client may have been made or not. No service is Up after the ttl of its last heartbeat.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import copy
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svcnode.control import ControlClient
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ControlError, ControlUnreachableError
from svcnode.core.units import iso_time
from tests.stress.campaigns import campaign_folder, campaign_parser
from tests.support.processes import Agent, connect_unix

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.control.types import ReportedStatus

WORKERS = 3  # clients at the same time, each with its own services
SERVICES = 5  # of each worker
TTLS_S = (1, 3, 3600)
ACTIONS = ("register", "beat", "beat", "beat", "beat of file", "deregister", "issue", "plan", "ack")
START_KILL_EVERY = 5  # every 5th node is killed during its start
START_S = 0.5
RUN_S = 0.5
CONFIG = """
[node]
name = "kills"
[server]
listen = "127.0.0.1:0"
[history]
keep = false
[control]
listen = "unix:{folder}/c.sock"
path = "{folder}/c.db"
[[services]]
id = "fixed"
status = "Up"
"""
# Services of the file, one per worker, that send heartbeats.
FILE_TTL_S = 3
PUSH_TOKEN = "kills-0123456789abcdef"
CONFIG += "".join(f'[[services]]\nid = "file-{n}"\nprobe = "heartbeat:{FILE_TTL_S}s"\n' for n in range(WORKERS))


@dataclass
class Beat:
    number: int  # is its reason
    status: str
    sent_s: float
    acknowledged_s: float = 0.0


@dataclass
class Service:
    ttl_s: int
    description: str
    beat: Beat | None = None
    may_have_expired: bool = False  # before its ttl was changed: then it stays expired
    planned: str | None = None  # the end of its planned maintenance
    ack: str | None = None  # the reason of its acknowledgement

    @property
    def is_down(self) -> bool:
        return self.beat is not None and self.beat.status == "down"


@dataclass
class State:
    """What one worker was acknowledged."""

    services: dict[str, Service] = field(default_factory=dict)
    issues: dict[str, str] = field(default_factory=dict)
    of_file: Service = field(default_factory=lambda: Service(FILE_TTL_S, ""))


@dataclass
class KillReport:
    kills: int = 0
    kills_at_start: int = 0
    acknowledged: int = 0
    in_flight: int = 0
    in_flight_made: int = 0
    errors: list[str] = field(default_factory=list)


class Worker:
    """Sends requests until the node is gone. `before` and `after` are its state without and with the last request."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self._ids = [f"w{number}/{index}" for index in range(SERVICES)]
        self._file_id = f"file-{number}"
        self._issue_names = [f"w{number} issue {index}" for index in range(2)]
        self._rng = rng
        self._count = 0
        self.before = State()
        self.after = State()
        self.acknowledged = 0
        self.errors: list[str] = []

    def run(self, path: Path) -> None:
        with ControlClient(path, timeout=30) as client:
            while True:
                self.after = copy.deepcopy(self.before)
                try:
                    self._request(client, self.after)
                except ControlUnreachableError:
                    return
                except ControlError as exc:
                    self.errors.append(f"refused: {exc.status} {exc}")
                    return
                self.before = self.after
                self.acknowledged += 1

    def _request(self, client: ControlClient, state: State) -> None:
        self._count += 1
        service_id = self._rng.choice(self._ids)
        service = state.services.get(service_id)
        action = self._rng.choice(
            ("register", "beat", "beat", "beat", "beat of file", "deregister", "issue", "plan", "ack")
        )
        if action == "issue":
            self._change_issue(client, state)
        elif action == "deregister":
            state.services.pop(service_id, None)
            client.deregister(service_id)
        elif action == "beat" and service is not None:
            self._beat(client, service_id, service)
        elif action == "plan":
            self._plan(client, *((self._file_id, state.of_file) if service is None else (service_id, service)))
        elif action == "ack" and (service or state.of_file).is_down:
            self._ack(client, *((self._file_id, state.of_file) if service is None else (service_id, service)))
        elif action == "beat of file":
            self._beat(client, self._file_id, state.of_file)
        else:
            self._register(client, state, service_id)

    def _beat(self, client: ControlClient, service_id: str, service: Service) -> None:
        # An acknowledgement ends when a problem is worse again: so what is acknowledged does not get better in part.
        statuses: tuple[ReportedStatus, ...] = ("up", "up", "down", "down" if service.ack else "initializing")
        status = self._rng.choice(statuses)
        service.beat, service.may_have_expired = Beat(self._count, status, time.monotonic()), False
        service.ack = None if status == "up" else service.ack
        client.beat(service_id, status, str(self._count))
        service.beat.acknowledged_s = time.monotonic()

    def _plan(self, client: ControlClient, service_id: str, service: Service) -> None:
        """Plan maintenance that begins after the campaign, or cancel it."""
        if service.planned is None:
            now_s = time.time()
            begin, service.planned = iso_time(now_s + 86_400), iso_time(now_s + 90_000 + self._count)
            client.plan_maintenance(service_id, begin, service.planned)
        else:
            service.planned = None
            client.cancel_maintenance(service_id)

    def _ack(self, client: ControlClient, service_id: str, service: Service) -> None:
        """Acknowledge that it is Down, or end that."""
        if service.ack is None:
            service.ack = str(self._count)
            client.ack(service_id, reason=service.ack)
        else:
            service.ack = None
            client.clear_ack(service_id)

    def _register(self, client: ControlClient, state: State, service_id: str) -> None:
        ttl_s, description = self._rng.choice(TTLS_S), f"request {self._count}"
        old = state.services.get(service_id)
        if old is None:
            state.services[service_id] = Service(ttl_s, description)
        else:
            is_old = old.beat is not None and time.monotonic() >= old.beat.sent_s + old.ttl_s / 2
            old.ttl_s, old.description = ttl_s, description
            old.may_have_expired |= is_old
        client.register(
            service_id, ttl=f"{ttl_s}s", description=description, deregister_after="1h", push_token=PUSH_TOKEN
        )

    def _change_issue(self, client: ControlClient, state: State) -> None:
        name = self._rng.choice(self._issue_names)
        if name in state.issues:
            del state.issues[name]
            client.clear_issue(name)
        else:
            state.issues[name] = str(self._count)
            client.set_issue(name, str(self._count))

    # ---- after the restart

    def verify(self, seen: Seen) -> tuple[bool, list[str]]:
        """Whether the request in flight was made, and what is wrong."""
        without, made = self._differences(self.before, seen), self._differences(self.after, seen)
        is_made = bool(without) and not made
        errors = [f"{each}; with the request in flight: {made}" for each in without] if without and made else []
        if is_made:
            self.before = self.after
        now_s = time.monotonic()
        for service in (*self.before.services.values(), self.before.of_file):
            if service.beat is not None and not service.beat.acknowledged_s:
                service.beat.acknowledged_s = now_s
        return is_made, errors

    def _differences(self, state: State, seen: Seen) -> list[str]:
        found = [service for service in seen.services if service["id"] in self._ids]
        listed = [(service["id"], service["options"]) for service in found]
        expected = [
            (
                service_id,
                {"ttl": f"{one.ttl_s}s", "description": one.description, "deregister_after": "1h", "push_token": "***"},
            )
            for service_id, one in state.services.items()
        ]
        issues = {name: reason for name, reason in seen.issues.items() if name in self._issue_names}
        differences = []
        if listed != expected:
            differences.append(f"listed {listed}, acknowledged {expected}")
        if issues != state.issues:
            differences.append(f"issues {issues}, acknowledged {state.issues}")
        planned = {service["id"]: service["planned_maintenance"] for service in seen.services}
        acks = {service["id"]: service["acknowledged"] for service in seen.services}
        for service_id, one in (*state.services.items(), (self._file_id, state.of_file)):
            until = (planned.get(service_id) or {}).get("until")
            if until != one.planned:
                differences.append(f"{service_id}: maintenance until {until}, acknowledged {one.planned}")
            if (ack := (acks.get(service_id) or {}).get("reason")) != one.ack:
                differences.append(f"{service_id}: acknowledged with {ack}, and it was with {one.ack}")
        if not differences:
            for fields in found:
                differences += _beat_differences(state.services[fields["id"]], fields, seen)
            [of_file] = [service for service in seen.services if service["id"] == self._file_id]
            differences += _beat_differences(state.of_file, of_file, seen)
        return differences


@dataclass
class Seen:
    """What the node says after its restart, and when it was asked."""

    services: list[dict[str, Any]]
    beats: dict[str, dict[str, Any]]
    issues: dict[str, str]
    asked_s: float
    answered_s: float


def _beat_differences(  # noqa: PLR0911  one per rule
    service: Service, fields: dict[str, Any], seen: Seen
) -> list[str]:
    status, stored, beat = fields["status"], seen.beats.get(fields["id"]), service.beat
    name = f"{fields['id']}, {service}: {status}, stored {stored}"
    if beat is None:
        return [f"a heartbeat that was not sent: {name}"] if stored is not None or status == "Up" else []
    if stored is None and service.may_have_expired:
        return [f"Up without a heartbeat: {name}"] if status == "Up" else []
    if stored is not None and stored.get("code") == ReasonCode.TTL_EXPIRED:
        has_expired = service.may_have_expired or seen.answered_s >= beat.sent_s + service.ttl_s
        return [] if has_expired and status == "Down" else [f"expired within its ttl: {name}"]
    if stored is None or (stored["status"], stored["reason"]) != (beat.status, str(beat.number)):
        return [f"the last heartbeat is lost: {name}"]
    latest_s = (beat.acknowledged_s or seen.asked_s) + service.ttl_s
    if status == "Up" and (beat.status != "up" or seen.asked_s > latest_s):
        return [f"Up without a heartbeat within the ttl: {name}"]
    is_valid = beat.status == "up" and seen.answered_s < beat.sent_s + service.ttl_s and not service.may_have_expired
    if is_valid and status != "Up":
        return [f"not Up with a valid heartbeat: {name}"]
    if beat.status == "down" and status != "Down":
        return [f"reported down: {name}"]
    return []


def read(path: Path) -> Seen:
    """Reads until no heartbeat expires between the list and the statuses: one that expired is Down in both."""
    with connect_unix(path) as client:
        while True:
            asked_s = time.monotonic()
            services = client.request("/v1/services").json["services"]
            found = {one["id"]: client.request(f"/v1/services/{quote(one['id'], safe='')}/status") for one in services}
            again = client.request("/v1/services").json["services"]
            answered_s = time.monotonic()
            if again == services:
                break
        beats = {service_id: response.json for service_id, response in found.items() if response.code == 200}
        issues = {issue["name"]: issue["reason"] for issue in client.request("/v1/issues").json["issues"]}
    return Seen(services, beats, issues, asked_s, answered_s)


def run_campaign(folder: Path, kills: int, rng: random.Random) -> KillReport:
    report, path = KillReport(), folder / "c.sock"
    workers = [Worker(number, random.Random(rng.random())) for number in range(WORKERS)]
    while report.kills < kills and not report.errors:
        with Agent(folder, config=CONFIG.format(folder=folder)) as agent:
            if report.kills % START_KILL_EVERY == START_KILL_EVERY - 1:
                time.sleep(rng.uniform(0, START_S))
                report.kills_at_start += 1
            else:
                agent.wait_for_log("control socket: ")
                _verify(workers, path, report)
                threads = [threading.Thread(target=worker.run, args=(path,)) for worker in workers]
                for thread in threads:
                    thread.start()
                time.sleep(rng.uniform(0, RUN_S))
                agent.signal(signal.SIGKILL)
                for thread in threads:
                    thread.join()
            agent.signal(signal.SIGKILL)
            report.kills += 1
    with Agent(folder, config=CONFIG.format(folder=folder)) as agent:
        agent.wait_for_log("control socket: ")
        _verify(workers, path, report)
    report.acknowledged = sum(worker.acknowledged for worker in workers)
    return report


def _verify(workers: list[Worker], path: Path, report: KillReport) -> None:
    seen = read(path)
    for worker in workers:
        report.in_flight += worker.after is not worker.before
        is_made, errors = worker.verify(seen)
        worker.after = worker.before
        report.in_flight_made += is_made
        report.errors += [f"after kill {report.kills}: {error}" for error in (*worker.errors, *errors)]


def main() -> int:
    arguments = campaign_parser("control_kills", __doc__, kills=200).parse_args()
    started_s = time.monotonic()
    with campaign_folder() as folder:
        report = run_campaign(folder, arguments.kills, random.Random(arguments.seed))
    for error in report.errors:
        print(error)
    print(f"kills: {report.kills}, {report.kills_at_start} of them during the start (seed {arguments.seed})")
    print(f"control requests acknowledged: {report.acknowledged}, in {time.monotonic() - started_s:.0f} s")
    print(f"in flight at a kill: {report.in_flight}, of which made: {report.in_flight_made}")
    print(f"acknowledged and lost, or beyond their ttl: {len(report.errors)}")
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
