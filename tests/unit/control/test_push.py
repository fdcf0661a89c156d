"""Pushes, on a clock that the test sets: what they mean, who may send them, and that no restart makes a job Up."""

from __future__ import annotations

import asyncio
import hmac
import json
from base64 import b64encode
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from svcnode.api.app import Mount
from svcnode.api.spec import NOT_FOUND, Request
from svcnode.control import push as push_module
from svcnode.control import store as store_module
from svcnode.control.changes import run_path
from svcnode.control.push import BURST, NOT_STORED, RATE_PER_S, PushApp
from svcnode.control.service_documents import MAX_RUNS
from svcnode.control.store import ControlStore, Document
from svcnode.core.errors import StoreError
from svcnode.node.definition import MAX_PUSH_BYTES, PushAccess
from tests.support.control_agent import ControlAgent
from tests.unit.control.test_resources import DOWN, INITIALIZING, UP, beat, register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from svcnode.api.spec import Response
    from svcnode.control.changes import ChangeRequest

TOKEN = "0123456789abcdef"
PERIOD_S, GRACE_S = 3600.0, 60.0
JOB = {"url": "heartbeat:", "period": "1h", "grace": "1m"}


def accesses(**tokens: str) -> Callable[[str], PushAccess | None]:
    return {service_id: PushAccess(token) for service_id, token in tokens.items()}.get


class PushAgent(ControlAgent):
    """A node whose file has the services `job`, with a period, and `worker`, with a ttl. Both have a token."""

    def start(self) -> None:
        self.configured = {"job": True, "worker": True}
        super().start()
        self.push_app = PushApp(self.node, accesses(job=TOKEN, worker=TOKEN), self._change)

    def register_configured(self, service_id: str) -> None:
        if service_id == "job":
            self.node.register("job", probe=JOB)
        else:
            super().register_configured(service_id)

    async def _change(self, change: ChangeRequest) -> None:
        await self.resources.change(change)

    def push(self, path: str = "", body: bytes = b"", service_id: str = "job", token: str = TOKEN) -> int:
        return self.respond(f"/push/{service_id}{path}", body, token).code

    def respond(self, target: str, body: bytes = b"", token: str = TOKEN) -> Response:
        headers = {b"authorization": f"Bearer {token}".encode()}
        path, _, query = target.encode().partition(b"?")
        return self.loop.run_until_complete(self.push_app.handle(Request("POST", path, query, headers, body)))

    @property
    def job(self) -> tuple[str, str, str]:
        state = self.node.state("job")
        return state.status.value, state.code, state.reason


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[PushAgent]:
    agent = PushAgent(tmp_path)
    yield agent
    agent.close()


# ---- jobs


def test_a_job_is_up_for_its_period_and_grace_after_a_success_also_over_a_restart(agent: PushAgent) -> None:
    assert agent.push(body=b"12 GB") == 204
    agent.now_s += PERIOD_S
    agent.restart()
    agent.now_s += GRACE_S - 1
    assert agent.job == (UP, "reported", "12 GB")
    agent.now_s += 1
    for _ in range(2):
        assert agent.job == (DOWN, "ttl_expired", "no success within the period and grace of 1 h 1 min")
        agent.restart()


def test_a_job_without_any_success_is_initializing_and_then_down(agent: PushAgent) -> None:
    agent.now_s += PERIOD_S + GRACE_S - 1
    assert agent.statuses()["job"] == INITIALIZING
    agent.now_s += 1
    assert agent.statuses()["job"] == DOWN
    agent.push()
    agent.now_s += PERIOD_S
    beat(agent, "job", "initializing")  # it is no success
    agent.now_s += GRACE_S
    assert agent.statuses()["job"] == DOWN


@pytest.mark.parametrize("is_up", [True, False])
def test_a_run_that_does_not_end_within_grace_is_down(agent: PushAgent, *, is_up: bool) -> None:
    if is_up:
        agent.push()
    assert agent.push("/start") == 204
    agent.now_s += GRACE_S - 1
    agent.push("/start")  # does not extend the time
    assert agent.statuses()["job"] == (UP if is_up else INITIALIZING)
    agent.now_s += 1
    assert agent.job == (DOWN, "ttl_expired", "started, and not ended within the grace of 60 s")
    agent.push("/start")
    assert agent.statuses()["job"] == DOWN
    agent.push("/0")
    agent.now_s += GRACE_S + 1
    assert agent.statuses()["job"] == UP


def test_a_failed_job_stays_down_until_it_succeeds_and_the_body_of_a_failure_may_be_anything(agent: PushAgent) -> None:
    agent.push()
    agent.push("/start")
    agent.push("/1", b"tar: disk full")
    agent.push("/start")
    agent.now_s += 10 * PERIOD_S
    assert agent.job == (DOWN, "exit_status", "exit status 1: tar: disk full")
    agent.push()
    assert agent.statuses()["job"] == UP
    assert agent.push("/fail", b"\xff\x00\x1b\xed\xa0\x80" + b"x" * 9000) == 204
    assert agent.job[0] == DOWN
    assert agent.job[2].isprintable()


@pytest.mark.parametrize("end", ["/fail/", "/FAIL", "/256", "/-1", "/3221225786"])
def test_a_failure_is_one_however_its_path_is_written(agent: PushAgent, end: str) -> None:
    agent.push()
    assert agent.push(end) == 204
    assert agent.job[0] == DOWN


def test_a_push_that_waited_while_the_node_stood_still_is_to_be_repeated_if_a_failure_may_be_newer(
    agent: PushAgent,
) -> None:
    agent.push()
    agent.stand_still(60.0)
    agent.push("/fail")
    response = agent.respond("/push/job")
    assert (response.code, "Retry-After" in dict(response.headers), agent.job[0]) == (503, True, DOWN)


def test_a_start_changes_nothing_for_a_service_with_a_ttl(agent: PushAgent) -> None:
    agent.push(service_id="worker")
    agent.now_s += 10
    assert agent.push("/start", service_id="worker") == 204
    agent.now_s += 4.9
    assert agent.statuses()["worker"] == UP
    agent.now_s += 0.2
    assert agent.statuses()["worker"] == DOWN


# ---- runs with an id

RIDS = [f"0aa5b4a6-0000-4000-8000-{number:012d}" for number in range(20)]


def test_runs_that_overlap_are_told_apart_by_their_ids_also_over_a_restart(agent: PushAgent) -> None:
    durations_s: list[float] = []
    agent.node.subscribe(on_evidence=lambda _id, evidence, _state: durations_s.append(evidence.duration_s))
    agent.push(f"/start?rid={RIDS[0]}")
    agent.now_s += 20
    agent.push(f"/start?rid={RIDS[1]}")
    agent.now_s += 20
    agent.push(f"/start?rid={RIDS[1]}")  # a retry
    agent.push(f"/0?rid={RIDS[1].upper()}", b"the second")
    assert durations_s == [20.0]
    assert agent.job == (UP, "reported", "the second")
    agent.restart()
    agent.now_s += GRACE_S - 40 - 1
    assert agent.statuses()["job"] == UP
    agent.now_s += 1
    assert agent.job == (DOWN, "ttl_expired", "started, and not ended within the grace of 60 s")
    agent.restart()
    assert agent.statuses()["job"] == DOWN


def test_a_run_that_never_ends_is_down_once_and_later_runs_count(agent: PushAgent) -> None:
    agent.push(f"/start?rid={RIDS[0]}")
    agent.now_s += GRACE_S
    assert agent.statuses()["job"] == DOWN
    agent.push(f"/start?rid={RIDS[1]}")
    agent.restart()
    assert agent.statuses()["job"] == DOWN
    agent.push(f"?rid={RIDS[1]}")
    agent.now_s += GRACE_S + 1
    assert agent.statuses()["job"] == UP


@pytest.mark.parametrize("end", ["", "/fail", "?rid=not-a-uuid", "/fail?rid=%ff%00"])
def test_a_report_without_a_valid_run_id_counts_and_ends_all_runs(agent: PushAgent, end: str) -> None:
    agent.push(f"/start?rid={RIDS[0]}")
    agent.push("/start?rid=")
    assert agent.push(end) == 204
    assert agent.statuses()["job"] == (DOWN if "fail" in end else UP)
    assert agent.resources.get("services/job/run") is None


def test_a_failure_ends_its_own_run_and_the_number_of_runs_is_bounded(agent: PushAgent) -> None:
    agent.push()
    for rid in RIDS:
        agent.push(f"/start?rid={rid}")
        agent.now_s += 1
    run = agent.resources.get("services/job/run")
    assert run is not None
    assert len(run.value["runs"]) == MAX_RUNS
    agent.push(f"/1?rid={RIDS[1]}")
    assert agent.statuses()["job"] == DOWN
    agent.push(f"?rid={RIDS[-1]}")
    agent.now_s += GRACE_S - len(RIDS) - 1
    assert agent.statuses()["job"] == UP
    agent.now_s += 1
    assert agent.statuses()["job"] == DOWN, "the first run has not ended"


# ---- what a push says, in the words of other tools

SAYS = [
    # Uptime Kuma
    ("?status=up&msg=OK&ping=", b"", UP, "reported", "OK"),
    ("?status=down&msg=disk+full&ping=12", b"", DOWN, "reported", "disk full"),
    ("?status=DOWN", b"", DOWN, "reported", "the job has failed"),
    ("?msg=OK&ping=3", b"", UP, "reported", "OK"),
    # Gatus
    ("?success=true&error=&duration=10s", b"", UP, "reported", ""),
    ("?success=false&error=disk%20full", b"", DOWN, "reported", "disk full"),
    ("?success=false", b'{"error": "disk full"}', DOWN, "reported", "disk full"),
    ("?error=disk+full", b"", DOWN, "reported", "disk full"),
    ("", b'{"success": true, "error": null}', UP, "reported", ""),
    ("", b'{"success": false, "error": "disk full", "job": 7}', DOWN, "reported", "disk full"),
    ("", b'{"error": "disk full", "job": 7}', DOWN, "reported", "disk full"),
    # The control socket
    ("", b'{"status": "up", "reason": "12 GB", "code": "x_done"}', UP, "x_done", "12 GB"),
    ("", b'{"status": "initializing", "reason": "half"}', INITIALIZING, "reported", "half"),
    ("", b'{"status": "down", "reason": "disk full", "code": "timeout"}', DOWN, "timeout", "disk full"),
    ("", b'{"status": "Down", "reason": ["disk", "full"], "code": "?", "job": 7}', DOWN, "other", '["disk","full"]'),
    ("", '{"status": "down"}'.encode("utf-16"), DOWN, "reported", "the job has failed"),
    ("", b"{'status': 'down', }", DOWN, "reported", "{'status': 'down', }"),
    ("", b"{'success': False}", DOWN, "reported", "{'success': False}"),
    # A form
    ("", b"status=down&msg=disk+full", DOWN, "reported", "disk full"),
    ("", b"msg=disk full&success=false\n", DOWN, "reported", "disk full"),
    # Bad news counts, whatever else there is.
    ("?status=down&stat=1&success=perhaps&ping=?", b"log", DOWN, "reported", "log"),
    ("/fail?job=7&msg=disk+full", b"log", DOWN, "reported", "disk full; log"),
    ("/3?success=false&code=x_disk", b'{"status": "up"}', DOWN, "x_disk", 'exit status 3: {"status": "up"}'),
    # A log says nothing.
    ("", b'{"copied": 3, "error": 0}', UP, "reported", '{"copied": 3, "error": 0}'),
    ("", b"the old status=down", UP, "reported", "the old status=down"),
    ("/0", b'{"status": "done"}', UP, "reported", '{"status": "done"}'),
    ("/0", b'{"status": "down"}\n{"status": "up"}', UP, "reported", '{"status": "down"} {"status": "up"}'),
    ("/0?status=up&create=1", b"x" * MAX_PUSH_BYTES, UP, "reported", "x" * 999 + "…"),
]


@pytest.mark.parametrize(("target", "body", "expected"), [(*row[:2], row[2:]) for row in SAYS])
def test_a_push_in_the_words_of_another_tool_means_what_it_says(
    agent: PushAgent, target: str, body: bytes, expected: tuple[str, str, str]
) -> None:
    agent.push("/fail" if expected[0] == UP else "")
    assert agent.push(target, body) == 204
    assert agent.job == expected


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("?stat=down", b""),
        ("?x=1", b""),
        ("?y", b""),
        ("?status=up&x=1", b""),
        ("?status=", b""),
        ("?status=failed", b""),
        ("?status=true", b""),
        ("?success=0", b""),
        ("?code=unheard-of", b""),
        ("", b'{"status": "failed"}'),
        ("", b'{"status": null}'),
        ("", b'{"success": "perhaps"}'),
        ("", b'{"status": "up", "job": 7}'),
        ("", b'{"status": "failed", }'),
        ("", b"status=failed"),
        ("", b'{"reason": "' + b"x" * MAX_PUSH_BYTES),
        ("?status=up&status=down", b""),
        ("?status=up&success=false", b""),
        ("?success=true&error=disk+full", b""),
        ("?status=up", b'{"status": "down"}'),
        ("?status=down", b'{"status": "up"}'),
        ("", b'{"status": "down"}\n{"status": "up"}'),
        ("/0?status=down", b""),
        ("/0", b'{"status": "down"}'),
        ("/fail?status=up", b""),
        ("/1?success=true", b""),
        ("/start?status=down", b""),
        ("/start?x=1", b""),
        ("/log?success=false", b""),
    ],
)
def test_a_push_that_is_not_clear_changes_nothing_and_says_what_is_known(
    agent: PushAgent, target: str, body: bytes
) -> None:
    for earlier in ("/fail", "/0"):
        agent.push(earlier)
        before = agent.node.state("job")
        response = agent.respond(f"/push/job{target}", body)
        assert (response.code, agent.node.state("job")) == (400, before)
        assert json.loads(response.body)["message"]
        assert agent.resources.get("services/job/run") is None


def test_a_refusal_shows_neither_the_token_nor_any_value(agent: PushAgent, caplog: pytest.LogCaptureFixture) -> None:
    for query in (f"status={TOKEN}", f"tokn={TOKEN}", f"token={TOKEN}&x={TOKEN}", f"code={TOKEN}"):
        response = agent.respond(f"/push/job?{query}")
        assert response.code == 400
        assert TOKEN not in f"{response.body!r}{caplog.text}"


# ---- schedules


def test_a_job_with_a_schedule_is_registered_by_a_program_and_survives_a_restart(agent: PushAgent) -> None:
    job = {"url": "heartbeat:", "schedule": "0 3 * * *", "timezone": "Europe/Berlin", "grace": "10m"}
    assert register(agent, "cron", probe={**job, "schedule": "0 0 30 2 *"}).code == 400
    assert register(agent, "cron", probe=job).code == 201
    agent.wall_offset_s = datetime(2026, 3, 28, 1, tzinfo=UTC).timestamp() - agent.now_s
    beat(agent, "cron")  # at 2:00
    agent.restart()
    agent.now_s += 3600 + 599
    assert agent.statuses()["cron"] == UP
    beat(agent, "cron")
    agent.now_s += 22 * 3600  # the next run is at 3:00 of summer time, 23 hours after the one before
    agent.restart()
    agent.now_s += 3600
    assert agent.statuses()["cron"] == UP
    agent.now_s += 1
    agent.restart()
    state = agent.node.state("cron")
    assert (state.status.value, state.code) == (DOWN, "ttl_expired")
    assert "2026-03-29 01:00:00 UTC" in state.reason
    agent.wall_offset_s -= 7200  # a clock that is set back makes no evidence valid again
    agent.restart()
    assert agent.statuses()["cron"] == DOWN


# ---- restarts


def test_a_run_goes_on_over_a_restart(agent: PushAgent) -> None:
    agent.push()
    agent.now_s += 10
    agent.push("/start")
    agent.now_s += GRACE_S - 1
    agent.restart()
    assert agent.statuses()["job"] == UP
    agent.now_s += 1
    assert agent.statuses()["job"] == DOWN
    agent.restart()
    assert agent.job[2] == "started, and not ended within the grace of 60 s"
    agent.push()
    agent.restart()
    assert agent.statuses()["job"] == UP


def test_after_a_restart_of_the_machine_a_success_does_not_count_and_a_run_must_still_end(
    agent: PushAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.push()
    agent.push("/start")
    agent.now_s = 5.0  # the clock starts with the machine
    monkeypatch.setattr(store_module, "_boot_id", lambda: "another")
    agent.restart()
    assert agent.statuses()["job"] == INITIALIZING
    agent.now_s += GRACE_S
    assert agent.statuses()["job"] == DOWN


def test_every_wrong_request_is_compared_once_and_gets_the_same_response(
    agent: PushAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for path, token in (
        ("/push/job", "wrong"),
        ("/push/job", ""),
        ("/push/job", "x" * 10_000),
        ("/push/unknown", TOKEN),
        ("/push/", TOKEN),
        ("/push/%ff", TOKEN),
        ("/push/job/stop", TOKEN),
        ("/push/job/0x1", TOKEN),
        ("/push/job/0/0", TOKEN),
    ):
        compared.clear()
        assert agent.respond(path, token=token) is NOT_FOUND
        assert compared == [(32, 32)]
    assert agent.statuses()["job"] == INITIALIZING


@pytest.mark.parametrize(
    "query", ["token=a%2Bb%2F0123456789abc", "rid=1&token=a+b/0123456789abc", "token=a+b/0123456789abc&create"]
)
def test_the_token_may_be_in_the_query(agent: PushAgent, query: str) -> None:
    app = PushApp(agent.node, accesses(job="a+b/0123456789abc"), agent._change)
    request = Request("POST", b"/push/job", query.encode())
    assert agent.loop.run_until_complete(app.handle(request)).code == 204


@pytest.mark.parametrize(("scheme", "code"), [(b"Basic " + b64encode(b"me:" + TOKEN.encode()), 204), (b"Basic ?", 404)])
def test_the_token_may_be_the_password_of_the_url(agent: PushAgent, scheme: bytes, code: int) -> None:
    request = Request("POST", b"/push/job", b"", {b"authorization": scheme})
    assert agent.loop.run_until_complete(agent.push_app.handle(request)).code == code


def test_the_rate_is_limited_per_service(agent: PushAgent) -> None:
    codes = [agent.push() for _ in range(int(BURST) + 5)]
    assert codes == [204] * int(BURST) + [429] * 5
    assert agent.push(token="wrong") == 404
    assert agent.push(service_id="worker") == 204
    agent.now_s += 1 / RATE_PER_S
    assert [agent.push(), agent.push()] == [204, 429]


def test_a_failure_that_is_news_passes_the_limit(agent: PushAgent) -> None:
    for signal in ("/fail", "/1"):
        agent.now_s += 10
        assert [agent.push() for _ in range(int(BURST))] == [204] * int(BURST)
        assert [agent.push(signal), agent.push(signal, b"again"), agent.push()] == [204, 429, 429]
        assert agent.statuses()["job"] == DOWN
        beat(agent, "job")  # not by a push
        assert agent.push(signal) == 204
        assert agent.statuses()["job"] == DOWN


def test_a_failure_passes_the_limit_while_a_success_is_being_stored(agent: PushAgent) -> None:
    agent.push("/fail")
    for _ in range(int(BURST) - 2):
        agent.push(service_id="job")
    agent.push("/fail")
    agent.now_s += 1 / RATE_PER_S  # for the success
    requests = [Request("POST", path, b"token=" + TOKEN.encode()) for path in (b"/push/job", b"/push/job/fail")]

    async def push() -> list[int]:
        return [response.code for response in await asyncio.gather(*map(agent.push_app.handle, requests))]

    assert agent.loop.run_until_complete(push()) == [204, 204]
    assert agent.statuses()["job"] == DOWN


def test_a_service_that_allows_it_is_pushed_by_get_and_others_only_by_post(agent: PushAgent) -> None:
    accesses = {"job": PushAccess(TOKEN, by_get=True), "worker": PushAccess(TOKEN)}
    app = PushApp(agent.node, accesses.get, agent._change)

    def code(method: str, path: str) -> int:
        request = Request(method, path.encode(), b"rid=1&token=" + TOKEN.encode())
        return agent.loop.run_until_complete(app.handle(request)).code

    assert [code(method, "/push/job/fail") for method in ("GET", "HEAD")] == [204, 204]
    assert agent.statuses()["job"] == "Down"
    assert [code(method, "/push/worker") for method in ("GET", "HEAD", "POST")] == [404, 404, 204]
    assert (code("GET", "/push/job"), agent.statuses()["job"]) == (204, "Up")


def test_a_log_changes_nothing_and_is_logged(agent: PushAgent, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    agent.push()
    before = agent.node.state("job")
    assert agent.push("/log", b"half\nway") == 204
    assert agent.node.state("job") == before
    [line] = [record.getMessage() for record in caplog.records if vars(record).get("event") == "push_log"]
    assert "half" in line
    assert "\n" not in line


def test_refused_pushes_are_counted_and_logged_with_their_cause(
    agent: PushAgent, caplog: pytest.LogCaptureFixture
) -> None:
    refused = Counter[str]()
    agent.push_app = PushApp(agent.node, accesses(job=TOKEN, gone=TOKEN), agent._change, refused)
    agent.push(token="another-token-of-this-length")
    agent.push(service_id="unknown")
    agent.push("/nonsense")
    agent.push("?nonsense=1")
    agent.push(service_id="gone")
    while agent.push() == 204:
        pass
    assert refused == {"token": 2, "path": 1, "content": 1, "service": 1, "rate": 1}
    logged = [vars(record) for record in caplog.records if vars(record).get("event") == "push_refused"]
    assert [record["cause"] for record in logged] == ["token", "token", "path", "content", "service", "rate"]
    assert not any(secret in record["message"] for record in logged for secret in (TOKEN, "another-token"))


def test_only_requests_to_its_paths_reach_pushes(agent: PushAgent) -> None:
    mount = Mount(push=agent.push_app)
    for method in ("GET", "HEAD", "POST"):
        assert mount.app_for(Request(method, b"/push/job")) is agent.push_app
    for method, path in (("PUT", b"/push/job"), ("POST", b"/push"), ("GET", b"/push"), ("POST", b"/svc/node")):
        assert mount.app_for(Request(method, path)) is None
    assert Mount().app_for(Request("POST", b"/push/job")) is None


def test_a_service_with_a_probe_cannot_be_pushed(agent: PushAgent) -> None:
    """The configuration refuses it; a reload may have changed the service just now."""
    register(agent, "db", probe="tcp://127.0.0.1:9")
    app = PushApp(agent.node, accesses(db=TOKEN, gone=TOKEN), agent._change)
    for path in (b"/push/db", b"/push/db/start", b"/push/gone"):
        request = Request("POST", path, b"token=" + TOKEN.encode())
        assert agent.loop.run_until_complete(app.handle(request)) is NOT_FOUND
    assert agent.statuses()["db"] == INITIALIZING


@pytest.mark.parametrize("error", [StoreError("the disk is full"), RuntimeError("a disk error")])
def test_a_push_that_cannot_be_stored_changes_nothing(
    agent: PushAgent, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(agent.resources._store, "write", fail)
    response = agent.respond("/push/job")
    assert response is NOT_STORED
    assert b"disk" not in response.body
    assert agent.statuses()["job"] == INITIALIZING


def test_the_documents_of_a_service_are_deleted_with_it(agent: PushAgent) -> None:
    register(agent, "remote", probe=JOB)
    app = PushApp(agent.node, accesses(remote=TOKEN), agent._change)
    agent.loop.run_until_complete(app.handle(Request("POST", b"/push/remote/start", b"token=" + TOKEN.encode())))
    assert agent.resources.get("services/remote/run") is not None
    agent.send("DELETE", "/v1/services/remote")
    assert agent.resources.get("services/remote/run") is None


# ---- services that a program has registered


def test_a_registered_service_is_pushed_with_its_token_until_it_is_removed(agent: PushAgent) -> None:
    app = PushApp(agent.node, agent.resources.services_by_program.push_access, agent._change)
    agent.push_app = app
    assert register(agent, "batch", ttl="1h", push_token="first-0123456789").code == 201
    assert "first" not in agent.send("GET", "/v1/services/batch").body.decode()
    assert agent.push(service_id="batch", token="first-0123456789") == 204
    assert agent.statuses()["batch"] == UP
    assert register(agent, "batch", ttl="1h", push_token="other-0123456789").code == 200
    for service_id, token in (("batch", "first-0123456789"), ("other", "other-0123456789")):
        assert agent.push("/fail", service_id=service_id, token=token) == 404
    agent.restart()
    agent.push_app = PushApp(agent.node, agent.resources.services_by_program.push_access, agent._change)
    assert agent.push("/fail", service_id="batch", token="other-0123456789") == 204
    assert agent.statuses()["batch"] == DOWN
    agent.send("DELETE", "/v1/services/batch")
    assert agent.push(service_id="batch", token="other-0123456789") == 404


def test_the_limits_of_services_at_rest_are_forgotten(agent: PushAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_module, "MAX_LIMITS", 3)
    for number in range(10):
        register(agent, f"w{number}", ttl="1h")
    app = agent.push_app = PushApp(agent.node, lambda _: PushAccess(TOKEN), agent._change)
    for _ in range(30):
        agent.push(service_id="w0")
    for number in range(1, 10):
        agent.now_s += 0.1
        assert agent.push(service_id=f"w{number}") == 204
    assert len(app._limits) <= 4
    assert "w0" in app._limits, "it is not at rest"


def test_a_run_that_an_earlier_version_has_stored_goes_on(agent: PushAgent) -> None:
    agent.stop()
    store = ControlStore(agent.path)
    stored = store.load()
    store.write({run_path("job"): Document({"at_s": agent.now_s}, stored.revision + 1)}, stored.revision + 1)
    store.close()
    agent.start()
    agent.now_s += GRACE_S + 1.0
    assert agent.job[0] == DOWN
