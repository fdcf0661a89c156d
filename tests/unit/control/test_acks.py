"""Acknowledgements by the control socket: they are stored, and deleted when they have ended."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from svcnode.api.spec import Request
from svcnode.control.changes import ack_path
from svcnode.control.documents import RETRY_S, UNKNOWN_AFTER_S
from svcnode.core.errors import StoreError
from svcnode.core.model import Change, ChangeKind, Health
from svcnode.core.units import iso_time
from tests.support.control_agent import ControlAgent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from svcnode.api.spec import Response

SERVICE = "/v1/services/db"
NODE = "/v1"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ControlAgent]:
    """Its service db is Down, and so is the node."""
    agent = ControlAgent(tmp_path)
    agent.send("PUT", SERVICE, {"ttl": "1h", "impact": "critical"})
    beat(agent, "down")
    yield agent
    agent.close()


def beat(agent: ControlAgent, status: str) -> None:
    agent.send("PUT", f"{SERVICE}/status", {"status": status})
    settle(agent)


def ack(agent: ControlAgent, path: str = SERVICE, **fields: object) -> Response:
    return agent.send("PUT", f"{path}/ack", fields)


def settle(agent: ControlAgent) -> None:
    """Until what the node has ended is deleted."""

    async def wait() -> None:
        for _ in range(3):
            await asyncio.sleep(0.01)

    agent.loop.run_until_complete(wait())


def body_of(response: Response) -> Any:
    return json.loads(response.body)


def stored(agent: ControlAgent) -> set[str]:
    agent.restart()
    return {path for path in ("ack", ack_path("db")) if agent.resources.get(path) is not None}


def in_hours(agent: ControlAgent, hours: float) -> str:
    return iso_time(agent.now_s + agent.wall_offset_s + hours * 3600)


@pytest.mark.parametrize(("path", "service_id"), [(SERVICE, "db"), (NODE, None)])
def test_it_survives_restarts_and_ends_when_the_problem_has_cleared(
    agent: ControlAgent, path: str, service_id: str | None
) -> None:
    assert ack(agent, path, by="ops", reason="disk ordered").code == 201
    agent.now_s += 60
    agent.restart()
    made = agent.node.acknowledgements.find(service_id)
    assert made is not None
    assert (made.by, made.reason, made.made_s, made.until_s) == ("ops", "disk ordered", 1e9 + 1000.0, None)
    assert body_of(agent.send("GET", f"{path}/ack"))["health"] == 503
    beat(agent, "initializing")
    assert agent.node.acknowledgements.find(service_id) == made._replace(health=Health.PARTIAL)
    beat(agent, "up")
    assert agent.send("GET", f"{path}/ack").code == 404
    beat(agent, "down")
    assert stored(agent) == set()


@pytest.mark.parametrize(("path", "service_id"), [(SERVICE, "db"), (NODE, None)])
def test_what_got_better_and_is_worse_again_after_a_restart_is_no_longer_acknowledged(
    agent: ControlAgent, path: str, service_id: str | None
) -> None:
    ack(agent, path)
    beat(agent, "initializing")
    agent.restart()
    assert body_of(agent.send("GET", f"{path}/ack"))["health"] == 206
    beat(agent, "down")
    assert agent.node.acknowledgements.find(service_id) is None


def test_it_is_listed_with_the_service_and_with_the_node(agent: ControlAgent) -> None:
    assert body_of(agent.send("GET", SERVICE))["acknowledged"] is None
    document = body_of(ack(agent, by="ops"))
    assert document.keys() == {"at", "by", "health", "revision"}
    expected = {"at": document["at"], "until": None, "by": "ops", "reason": ""}
    assert body_of(agent.send("GET", SERVICE))["acknowledged"] == expected
    assert body_of(agent.send("GET", NODE))["acknowledged"] is None
    until = in_hours(agent, 2)
    ack(agent, NODE, until=until)
    assert body_of(agent.send("GET", NODE))["acknowledged"]["until"] == until


def test_without_a_problem_there_is_nothing_to_acknowledge(agent: ControlAgent) -> None:
    beat(agent, "up")
    assert ack(agent).code == ack(agent, NODE).code == 409
    agent.send("PUT", "/v1/drain", {})
    assert ack(agent, NODE).code == 409
    assert ack(agent, "/v1/services/cache").code == 404
    assert stored(agent) == set()


def test_a_report_of_up_and_the_end_of_the_acknowledgement_are_stored_together(agent: ControlAgent) -> None:
    """A node that is killed right after the report, and starts when that has expired, is Down with another problem."""
    ack(agent)
    agent.send("PUT", f"{SERVICE}/status", {"status": "up"})
    assert agent.resources._documents.keys() == {"services/db", "services/db/status"}


def test_a_problem_that_gets_worse_ends_it(agent: ControlAgent) -> None:
    beat(agent, "initializing")
    assert ack(agent).code == ack(agent, NODE).code == 201
    beat(agent, "down")
    assert stored(agent) == set()


def test_it_ends_at_its_time_also_while_the_node_does_not_run(agent: ControlAgent) -> None:
    ack(agent, until=in_hours(agent, 2))
    ack(agent, NODE, until=in_hours(agent, 4))
    agent.now_s += 2 * 3600
    agent.node.expire_stale()
    settle(agent)
    assert agent.send("GET", f"{SERVICE}/ack").code == 404
    agent.now_s += 2 * 3600
    assert stored(agent) == set()
    assert agent.node.acknowledgements.find() is None


@pytest.mark.parametrize(("hours", "code"), [(-1, 422), (24 * 367, 422), (24 * 365, 201)])
def test_its_end_is_in_the_future_and_within_a_year(agent: ControlAgent, hours: float, code: int) -> None:
    assert ack(agent, until=in_hours(agent, hours)).code == code


@pytest.mark.parametrize(
    "fields", [{"until": "tomorrow"}, {"until": 5}, {"untill": ""}, {"by": "x" * 101}, {"reason": "\x1b[2J"}]
)
def test_a_wrong_field_is_refused(agent: ControlAgent, fields: dict[str, object]) -> None:
    response = ack(agent, SERVICE, **fields)
    assert (response.code, body_of(response)["pointer"]) == (400, f"/{next(iter(fields))}")


def test_it_is_cleared_by_a_person_and_repeating_that_changes_nothing(agent: ControlAgent) -> None:
    changes: list[Change] = []
    ack(agent)
    agent.node.subscribe(changes.append)
    for _ in range(2):
        request = Request("DELETE", f"{SERVICE}/ack".encode(), b"by=alice&reason=wrong+service", {}, b"")
        assert agent.send_all([request])[0].code == 204
    assert [(change.kind, change.by) for change in changes] == [
        (ChangeKind.ACKNOWLEDGEMENT_ENDED, "alice: wrong service")
    ]
    assert stored(agent) == set()


def test_it_ends_with_the_registration_of_its_service(agent: ControlAgent) -> None:
    ack(agent)
    agent.send("DELETE", SERVICE)
    agent.send("PUT", SERVICE, {"ttl": "1h"})
    assert agent.node.acknowledgements.find("db") is None
    assert stored(agent) == set()


def test_one_of_a_service_that_the_file_no_longer_has_is_forgotten(tmp_path: Path) -> None:
    agent = ControlAgent(tmp_path, {"db": True})
    beat(agent, "down")
    assert ack(agent).code == 201
    agent.configured = {}
    timers: dict[float, tuple[Any, ...]] = {}
    with mock.patch.object(agent.loop, "call_later", lambda after_s, *call: timers.update({after_s: call})):
        agent.restart()
    assert agent.node.acknowledgements.find("db") is not None  # it may be found in a registry
    forget, name = timers[UNKNOWN_AFTER_S]
    agent.loop.call_soon(forget, name)
    settle(agent)
    assert stored(agent) == set()
    agent.close()


def test_one_that_cannot_be_deleted_is_not_shown_and_deleted_later(agent: ControlAgent) -> None:
    ack(agent)
    timers: dict[float, tuple[Any, ...]] = {}
    fails = mock.patch.object(agent.resources._store, "write", side_effect=StoreError("disk full"))
    later = mock.patch.object(agent.loop, "call_later", lambda after_s, *call: timers.update({after_s: call}))
    with fails:
        agent.node.acknowledgements.end("db", "the problem has cleared")
        with later:
            agent.loop.run_until_complete(asyncio.sleep(0))
        settle(agent)
    assert agent.send("GET", f"{SERVICE}/ack").code == 404
    agent.loop.call_soon(*timers[RETRY_S])
    settle(agent)
    assert stored(agent) == set()
