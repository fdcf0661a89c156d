"""The ports of the servers that tests start: tests/support/ports.py, and what a server does at a taken one."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import PortBlock, free_port
from tests.support.processes import has_ipv6
from tests.support.servers.base import PortTakenError
from tests.support.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def candidates() -> list[list[int]]:
    """Two small blocks that no other test uses."""
    return [[free_port() for _ in range(10)] for _ in range(2)]


# ---- blocks


def test_two_processes_have_different_blocks(candidates: list[list[int]]) -> None:
    with PortBlock(candidates) as one, PortBlock(candidates) as other:
        assert set(one.ports).isdisjoint(other.ports)
        with pytest.raises(RuntimeError):
            PortBlock(candidates)
    with PortBlock(candidates) as next_one:
        assert next_one.ports == one.ports


# ---- ports


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_port_with_a_listener_is_not_handed_out(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if family == socket.AF_INET6 and not has_ipv6():
        pytest.skip("no IPv6")
    ports = [free_port() for _ in range(3)]
    with PortBlock([ports]) as block, socket.create_server((address, ports[1]), family=family):
        assert [block.next_free(), block.next_free()] == [ports[2]] * 2


# ---- servers


@pytest.fixture
def _taken_while_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.servers.base.is_free", lambda _port: True)


@pytest.mark.usefixtures("_taken_while_starting")
def test_a_server_that_meets_a_taken_port_starts_on_another_one(tmp_path: Path, taken_port: int) -> None:
    server = RedisServer(tmp_path)
    server.own_ports["port"] = taken_port
    with server:
        assert server.port != taken_port
        socket.create_connection((server.host, server.port)).close()


def test_a_port_that_a_test_has_chosen_is_not_replaced(tmp_path: Path, taken_port: int) -> None:
    with ExitStack() as stack, pytest.raises(PortTakenError):
        stack.enter_context(RedisServer(tmp_path, port=taken_port))
