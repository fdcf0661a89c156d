"""`/details` and badges over the wire: of services that are really looked at, whatever their ids, and as they go."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.support.backends import Backend, close, closed_port
from tests.support.http_server import RawClient, RawResponse, request
from tests.support.nginx_proxy import nginx_in_front_of
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

ODD_IDS = ["a/b", "...", ".a", "%2F", "db.svg", "naïve db", "<script>", "a?b#c&id=d", "数据库", "node"]


def service(service_id: str, probe: str, **words: Any) -> str:
    more = "".join(f"{key} = {json.dumps(value)}\n" for key, value in words.items())
    return f"[[services]]\nid = {json.dumps(service_id, ensure_ascii=False)}\nprobe = {json.dumps(probe)}\n{more}"


def config(*services: str) -> str:
    head = '[server]\nlisten = ["127.0.0.1:0"]\ndrain = "0s"\n[history]\nkeep = false\n[defaults]\ninterval = "500ms"\n'
    return f'{head}start_period = "0s"\n' + "\n".join(services)


def fixed(service_id: str, status: str = "Up") -> str:
    return f'[[services]]\nid = {json.dumps(service_id, ensure_ascii=False)}\nstatus = "{status}"\n'


def ask(agent: Agent, path: str, **words: Any) -> RawResponse:
    with agent.connect() as connected:
        return RawClient(connected.sock).request(
            request(path, host="localhost", **words), is_head=words.get("method") == "HEAD"
        )


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("details")
    with Backend(close) as backend, closed_port() as port:
        services = [
            service("up", f"tcp://{backend.address}", name="Ledger", impact="critical"),
            service("down", f"tcp://127.0.0.1:{port}"),
            *map(fixed, ODD_IDS),
        ]
        with Agent(folder, config=config(*services)) as running:
            running.wait_until(lambda: running.statuses()["down"] == "Down" and running.statuses()["up"] == "Up")
            yield running


def test_a_checked_service_has_all_fields(agent: Agent) -> None:
    details = agent.request("/details/down").json
    assert (details["status"], details["health"]) == ("Down", 503)
    assert details["reason"].startswith("connection refused: 127.0.0.1:")
    assert details["probe"].startswith("tcp://127.0.0.1:")
    assert details["counters"]["failures_in_a_row"] >= 3
    assert 0 <= details["next_check_in_s"] <= 0.6
    assert details["evidence"] == {key: details["attempts"][0][key] for key in details["evidence"]}
    assert 3 <= len(details["attempts"]) <= 20
    assert {one["verdict"] for one in details["attempts"]} == {"failed"}
    ages = [one["age_s"] for one in details["attempts"]]
    assert ages == sorted(ages)


def test_the_node_and_its_services_agree_with_the_interface(agent: Agent) -> None:
    told = agent.request("/details").json
    assert {one["id"]: one["status"] for one in told["services"]} == agent.statuses()
    assert told["node"]["health"] == agent.health() == 206
    assert told["node"]["health_reason"] == "down is Down"


def test_nothing_of_it_is_kept_by_anybody_in_between(agent: Agent) -> None:
    for path in ("/details", "/details/up", "/badge/up.svg"):
        answer = ask(agent, path)
        assert answer.code == 200
        assert answer.header("Cache-Control") == "no-store"
        assert answer.header("X-Content-Type-Options") == "nosniff"


@pytest.mark.parametrize("path", ["/details", "/details/up", "/badge/up.svg", "/badge/node.svg"])
def test_head_is_answered_without_a_body(agent: Agent, path: str) -> None:
    answer = ask(agent, path, method="HEAD")
    assert answer.code == 200
    assert answer.body == b""
    assert int(answer.header("Content-Length") or 0) > 100


@pytest.mark.parametrize("service_id", ODD_IDS)
def test_an_id_may_hold_any_character(agent: Agent, service_id: str) -> None:
    segment = quote(service_id, safe="")
    assert agent.request(f"/details/{segment}").json["id"] == service_id
    (found,) = agent.request(f"/details?id={segment}").json["services"]
    assert found["id"] == service_id
    badge = ask(agent, f"/badge/{segment}.svg?service")
    assert (badge.code, badge.header("Content-Type")) == (200, "image/svg+xml")


@pytest.mark.parametrize("path", ["/details/none", "/badge/none.svg", "/details/%2E%2E"])
def test_an_unknown_id_is_not_found(agent: Agent, path: str) -> None:
    answer = agent.request(path)
    assert (answer.code, answer.json) == (404, {"message": "Service not found"})


@pytest.mark.parametrize("path", ["/details/", "/details/up/", "/badge/", "/badge", "/badge/up", "/details/%ff"])
def test_what_is_no_path_is_not_found(agent: Agent, path: str) -> None:
    answer = agent.request(path)
    assert (answer.code, answer.json) == (404, {"message": "Not found"})


def test_a_badge_is_a_picture_of_now(agent: Agent) -> None:
    assert b">Ledger</text>" in ask(agent, "/badge/up.svg").body
    assert b">Down</text>" in ask(agent, "/badge/down.svg").body
    assert b">partial</text>" in ask(agent, "/badge/node.svg").body


def test_those_who_ask_while_services_come_and_go_are_always_answered(tmp_path: Path) -> None:
    many = [fixed(f"s{number}") for number in range(300)]
    few = many[:3]
    with Agent(tmp_path, config=config(*many)) as agent:
        agent.wait_for_event("started")
        is_over, codes = threading.Event(), set[int]()

        def keep_asking() -> None:
            while not is_over.is_set():
                for path in ("/details?attempts=1", "/details?id=s1&id=s299", "/details/s1", "/badge/s1.svg"):
                    codes.add(agent.request(path).code)

        asking = threading.Thread(target=keep_asking)
        asking.start()
        try:
            for number in range(6):
                agent.reload(config(*(few if number % 2 else many)))
        finally:
            is_over.set()
            asking.join()
        assert codes == {200}
        assert not any('"level": "error"' in line for line in agent.lines)


def test_a_proxy_can_add_the_token_for_badges_and_nothing_else(tmp_path: Path) -> None:
    """As the page about badges shows it."""
    token = "the-token-of-the-node"
    page = Path(__file__).parents[2] / "docs" / "explain.md"
    (location,) = re.findall(r"^```nginx\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    security = f'[security]\noperator_token = "{token}"\n'
    everywhere = config(security, fixed("ledger")).replace("127.0.0.1:0", "0.0.0.0:0")
    with Agent(tmp_path, config=everywhere) as agent:
        assert agent.request("/badge/ledger.svg").code == 401
        with nginx_in_front_of(agent, location, "10.0.0.7:8420") as port:
            assert agent.request("/badge/ledger.svg", port).code == 200
            assert agent.request("/details", port).code in (403, 404)  # nginx' own
