"""The address, the introduction and the settings of the demo."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import main
from svcnode.cli.demo.checks import SERVICES
from svcnode.cli.demo.runner import free_address, introduction, settings_for
from svcnode.core.address import Address
from svcnode.core.errors import ListenError
from svcnode.core.model import Impact

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK = Address(scheme="http", host="127.0.0.1", port=8420)
PORTS = {service.id: 40_000 + index for index, service in enumerate(SERVICES)}
TOKEN = "0123456789abcdef"


@pytest.fixture
def used_address() -> Iterator[Address]:
    """An address that another socket listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Address(scheme="http", host="127.0.0.1", port=listener.getsockname()[1])


# ---- address


def test_instead_of_a_used_port_the_next_free_one_is_taken(used_address: Address) -> None:
    found = free_address(used_address, tries=50)
    assert used_address.port < found.port <= used_address.port + 50
    assert found.host == used_address.host


def test_a_given_port_in_use_is_refused(used_address: Address) -> None:
    with pytest.raises(ListenError, match=str(used_address)):
        free_address(used_address, tries=1)


# ---- introduction


def test_the_introduction_has_the_address_and_commands() -> None:
    text = introduction(LOOPBACK, None)
    for part in (
        "http://127.0.0.1:8420/\n",
        "svcnode watch 127.0.0.1:8420\n",
        "svcnode explain 127.0.0.1:8420 --service indexer\n",
        "curl -i http://127.0.0.1:8420/svc/node/health\n",
    ):
        assert part in text
    assert all(len(line) <= 110 for line in text.splitlines())
    assert "token" not in text


def test_beyond_loopback_the_introduction_has_the_token() -> None:
    text = introduction(Address(scheme="http", host="0.0.0.0", port=1), TOKEN)
    assert text.count(TOKEN) == 2
    assert f"svcnode explain 0.0.0.0:1 --service indexer --token {TOKEN}\n" in text


# ---- settings


def test_the_demo_writes_no_files_and_has_the_operator_page() -> None:
    settings = settings_for(LOOPBACK, None, PORTS, 1.0)
    assert settings.history.path is None
    assert not settings.uses_store
    assert settings.listen == (LOOPBACK,)
    assert settings.drain_s == 0.0
    assert settings.operator is not None
    assert settings.operator.token is None


@pytest.mark.parametrize("speed", [0.1, 20.0])
def test_the_checks_have_the_speed_of_the_scenario(speed: float) -> None:
    services = {service.id: service.definition for service in settings_for(LOOPBACK, None, PORTS, speed).services}
    assert list(services) == ["chain", "indexer", "storage", "cache", "peer"]
    for definition in services.values():
        assert definition.probe_config is not None
        assert definition.probe_config.schedule.interval_s == pytest.approx(1.0 / speed, rel=0.01)
        assert definition.probe_config.schedule.timeout_s == pytest.approx(0.5 / speed, rel=0.01)
    assert services["chain"].service.impact is Impact.CRITICAL
    cache = services["cache"].probe_config
    assert cache is not None
    assert cache.max_latency_s == pytest.approx(0.2 / speed, rel=0.01)


# ---- the command


@pytest.mark.parametrize("address", ["8420", "https://127.0.0.1:1", "unix:/run/a.sock"])
def test_an_invalid_address_is_refused_in_one_line(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--listen", address]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert address in output.err


@pytest.mark.parametrize("speed", ["0", "20.1", "fast", "nan"])
def test_an_invalid_speed_is_refused(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["demo", f"--speed={speed}"])
    assert caught.value.code == 2
    assert "argument --speed: " in capsys.readouterr().err


def test_beyond_loopback_the_page_requires_a_token() -> None:
    operator = settings_for(LOOPBACK, TOKEN, PORTS, 1.0).operator
    assert operator is not None
    assert operator.token == TOKEN
