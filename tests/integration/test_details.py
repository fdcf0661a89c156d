"""`/details` and badges of a running node."""

from __future__ import annotations

import json
import re
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


def get(agent: Agent, path: str) -> RawResponse:
    with agent.connect() as connected:
        return RawClient(connected.sock).request(request(path, host="localhost"))


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


def test_an_id_may_hold_any_character(agent: Agent) -> None:
    for service_id in ODD_IDS:
        segment = quote(service_id, safe="")
        assert agent.request(f"/details/{segment}").json["id"] == service_id
        (found,) = agent.request(f"/details?id={segment}").json["services"]
        assert found["id"] == service_id
        badge = get(agent, f"/badge/{segment}.svg?service")
        assert (badge.code, badge.header("Content-Type")) == (200, "image/svg+xml")
    for path in ("/details/none", "/badge/none.svg", "/details/%2E%2E"):
        response = agent.request(path)
        assert (response.code, response.json) == (404, {"message": "Service not found"})


def test_a_badge_shows_the_current_state(agent: Agent) -> None:
    assert b">Ledger</text>" in get(agent, "/badge/up.svg").body
    assert b">Down</text>" in get(agent, "/badge/down.svg").body
    badge = get(agent, "/badge/node.svg")
    assert b">partial</text>" in badge.body
    assert badge.header("Cache-Control") == "no-store"


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
