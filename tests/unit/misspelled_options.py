"""What type checkers find in calls of the public API: mypy as part of `make lint`, pyright in a test.

Each call is wrong, and its comment says how. If the types of an option become too wide, mypy reports the comment as not
needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode import AsyncClient, Client

if TYPE_CHECKING:
    from svcnode import Node
    from svcnode.control import AsyncControlClient, ControlClient
    from svcnode.node.node_state import Handle


def node(node: Node, handle: Handle) -> None:
    node.register("db", impact="crit")  # type: ignore[arg-type]
    node.register("db", tll="5s")  # type: ignore[call-arg]
    node.register("db", maintenance_impact="critical")  # type: ignore[arg-type]
    node.register("db", depends_on=5)  # type: ignore[arg-type]
    node.check("db", intervall="5s")  # type: ignore[call-arg]
    node.check("db", impact="Critical")  # type: ignore[arg-type]
    node.notify(wbhook="https://hooks.example/")  # type: ignore[call-arg]
    node.notify(webhook="https://hooks.example/", services="some")  # type: ignore[arg-type]
    node.record_history("history.db", maxage="7d")  # type: ignore[call-arg]
    node.record_history("history.db", max_age=7)  # type: ignore[arg-type]
    handle.up(cod="x_mine")  # type: ignore[call-arg]
    handle.Up()  # type: ignore[attr-defined]


def clients() -> None:
    Client("node:8420", timeout_s=5)  # type: ignore[call-arg]
    AsyncClient("node:8420", max_response=8)  # type: ignore[arg-type]


def control(client: ControlClient) -> None:
    client.beat("db", "Up")  # type: ignore[arg-type]
    client.register("db", tll="15s")  # type: ignore[call-arg]
    client.register("db", impact="crit")  # type: ignore[arg-type]
    client.register("db", probe="tcp://db:5432", rise="2")  # type: ignore[arg-type]
    client.node()["helth"]  # type: ignore[typeddict-item]
    client.service("db")["state"]  # type: ignore[typeddict-item]
    client.maintain("db", "2h", person="alice")  # type: ignore[call-arg]
    client.register("db", ttl="15s", deregister="1h")  # type: ignore[call-arg]
    client.register("db", ttl="15s", push_token=5)  # type: ignore[arg-type]
    client.register("db", ttl="15s", depends_on=["ledger", 5])  # type: ignore[list-item]
    client.undrain(by="alice")  # type: ignore[call-arg]
    client.ack("db", untill="2026-12-01T22:00:00Z")  # type: ignore[call-arg]
    client.ack("db", until=60)  # type: ignore[arg-type]


async def control_in_a_loop(client: AsyncControlClient) -> None:
    await client.beat("db", "Up")  # type: ignore[arg-type]
    await client.register("db", tll="15s")  # type: ignore[call-arg]
    (await client.node())["helth"]  # type: ignore[typeddict-item]
    await client.ack("db", why="new disk")  # type: ignore[call-arg]
