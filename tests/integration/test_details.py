"""`/details` and badges of a running node."""

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


HEAD = """
[server]
listen = ["127.0.0.1:0"]
drain = "0s"
[history]
keep = false
[defaults]
interval = "10s"
transition_interval = "100ms"
timeout = "5s"
start_period = "0s"
"""


def service(service_id: str, probe: str, **options: Any) -> str:
    more = "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
    return f"[[services]]\nid = {json.dumps(service_id, ensure_ascii=False)}\nprobe = {json.dumps(probe)}\n{more}"


def config(*services: str) -> str:
    return HEAD + "\n".join(services)


def fixed(service_id: str, status: str = "Up") -> str:
    return f'[[services]]\nid = {json.dumps(service_id, ensure_ascii=False)}\nstatus = "{status}"\n'


def get(agent: Agent, path: str, **options: Any) -> RawResponse:
    with agent.connect() as connected:
        return RawClient(connected.sock).request(
            request(path, host="localhost", **options), is_head=options.get("method") == "HEAD"
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
    assert details["code"] == "connection_refused"
    assert details["probe"].startswith("tcp://127.0.0.1:")
    assert details["counters"]["failures_in_a_row"] >= 3
    assert 0 <= details["next_check_in_s"] <= 10 * 1.05, "with jitter"
    assert details["evidence"] == {key: details["recent_checks"][0][key] for key in details["evidence"]}
    assert 3 <= len(details["recent_checks"]) <= 20
    assert {(one["outcome"], one["code"]) for one in details["recent_checks"]} == {("failed", "connection_refused")}
    ages = [one["age_s"] for one in details["recent_checks"]]
    assert ages == sorted(ages)


def test_the_node_and_its_services_agree_with_the_interface(agent: Agent) -> None:
    document = agent.request("/details").json
    assert {one["id"]: one["status"] for one in document["services"]} == agent.statuses()
    assert document["node"]["health"] == agent.health() == 206
    assert "down" in document["node"]["health_reason"]


def test_responses_are_not_cached(agent: Agent) -> None:
    for path in ("/details", "/details/up", "/badge/up.svg"):
        response = get(agent, path)
        assert response.code == 200
        assert response.header("Cache-Control") == "no-store"
        assert response.header("X-Content-Type-Options") == "nosniff"


@pytest.mark.parametrize("path", ["/details", "/details/up", "/badge/up.svg", "/badge/node.svg"])
def test_head_has_no_body(agent: Agent, path: str) -> None:
    response = get(agent, path, method="HEAD")
    assert response.code == 200
    assert response.body == b""
    assert int(response.header("Content-Length") or 0) > 100


@pytest.mark.parametrize("service_id", ODD_IDS)
def test_an_id_may_hold_any_character(agent: Agent, service_id: str) -> None:
    segment = quote(service_id, safe="")
    assert agent.request(f"/details/{segment}").json["id"] == service_id
    (found,) = agent.request(f"/details?id={segment}").json["services"]
    assert found["id"] == service_id
    badge = get(agent, f"/badge/{segment}.svg?service")
    assert (badge.code, badge.header("Content-Type")) == (200, "image/svg+xml")


@pytest.mark.parametrize("path", ["/details/none", "/badge/none.svg", "/details/%2E%2E"])
def test_an_unknown_id_is_not_found(agent: Agent, path: str) -> None:
    response = agent.request(path)
    assert (response.code, response.json) == (404, {"message": "Service not found"})


@pytest.mark.parametrize("path", ["/details/", "/details/up/", "/badge/", "/badge", "/badge/up", "/details/%ff"])
def test_an_invalid_path_is_not_found(agent: Agent, path: str) -> None:
    response = agent.request(path)
    assert (response.code, response.json) == (404, {"message": "Not found"})


def test_a_badge_shows_the_current_state(agent: Agent) -> None:
    assert b">Ledger</text>" in get(agent, "/badge/up.svg").body
    assert b">Down</text>" in get(agent, "/badge/down.svg").body
    assert b">partial</text>" in get(agent, "/badge/node.svg").body


def test_requests_succeed_while_reloads_add_and_remove_services(tmp_path: Path) -> None:
    many = [fixed(f"s{number}") for number in range(300)]
    few = many[:3]
    with Agent(tmp_path, config=config(*many)) as agent:
        agent.wait_for_event("started")
        is_done, codes = threading.Event(), set[int]()

        def request_repeatedly() -> None:
            while not is_done.is_set():
                for path in ("/details?recent_checks=1", "/details?id=s1&id=s299", "/details/s1", "/badge/s1.svg"):
                    codes.add(agent.request(path).code)

        thread = threading.Thread(target=request_repeatedly)
        thread.start()
        try:
            for number in range(6):
                agent.reload(config(*(few if number % 2 else many)))
        finally:
            is_done.set()
            thread.join()
        assert codes == {200}
        assert not any('"level": "error"' in line for line in agent.lines)


def test_a_proxy_can_add_the_token_for_badges_and_nothing_else(tmp_path: Path) -> None:
    """The example of docs/see.md."""
    token = "the-token-of-the-node"
    page = Path(__file__).parents[2] / "docs" / "see.md"
    (location,) = re.findall(r"^```nginx\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    security = f'[security]\noperator_token = "{token}"\n'
    everywhere = config(security, fixed("ledger")).replace("127.0.0.1:0", "0.0.0.0:0")
    with Agent(tmp_path, config=everywhere) as agent:
        assert agent.request("/badge/ledger.svg").code == 401
        with nginx_in_front_of(agent, location, "10.0.0.7:8420") as port:
            assert agent.request("/badge/ledger.svg", port).code == 200
            assert agent.request("/details", port).code in (403, 404)  # from nginx
