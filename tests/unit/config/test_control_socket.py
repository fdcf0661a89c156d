"""Which node the commands of an operator reach: that of the configuration, or that of the systemd unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from svcnode import config
from svcnode.config import find_control_socket


@pytest.fixture
def unit_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the socket of a running unit."""
    path = tmp_path / "unit.sock"
    path.touch()
    monkeypatch.setattr(config, "UNIT_CONTROL_SOCKET", path)
    return path


def own_socket(tmp_path: Path) -> Path:
    """Of a node that this user starts without a file."""
    return tmp_path / "state" / "nodes" / "mine" / "control.sock"


def environ(tmp_path: Path) -> dict[str, str]:
    return {"STATE_DIRECTORY": str(tmp_path / "state"), "SVCNODE_NODE_NAME": "mine"}


def test_without_a_file_and_an_own_node_it_is_the_node_of_the_unit(tmp_path: Path, unit_socket: Path) -> None:
    assert find_control_socket(None, environ(tmp_path)) == unit_socket


def test_an_own_node_comes_before_the_one_of_the_unit(tmp_path: Path, unit_socket: Path) -> None:
    own = own_socket(tmp_path)
    own.parent.mkdir(parents=True)
    own.touch()
    assert find_control_socket(None, environ(tmp_path)) == own


def test_without_a_running_unit_it_is_the_own_node(tmp_path: Path, unit_socket: Path) -> None:
    unit_socket.unlink()
    assert find_control_socket(None, environ(tmp_path)) == own_socket(tmp_path)


def test_a_file_never_names_the_node_of_the_unit(tmp_path: Path, unit_socket: Path) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text("")
    assert find_control_socket(file, environ(tmp_path)) == own_socket(tmp_path)


def test_a_set_path_never_names_the_node_of_the_unit(tmp_path: Path, unit_socket: Path) -> None:
    named = {"SVCNODE_CONTROL_LISTEN": "unix:/tmp/other.sock"}
    assert find_control_socket(None, environ(tmp_path) | named) == Path("/tmp/other.sock")


def test_a_control_socket_that_is_turned_off_is_not_replaced(tmp_path: Path, unit_socket: Path) -> None:
    assert find_control_socket(None, environ(tmp_path) | {"SVCNODE_CONTROL_ENABLED": "false"}) is None
