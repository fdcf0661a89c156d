"""Where the demo listens, what it says of itself, and how its node is set up."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import demo as command
from svcnode.cli import main
from svcnode.config.settings import DEFAULT_LISTEN
from svcnode.core.address import Address
from svcnode.core.errors import ListenError
from svcnode.core.model import Impact
from svcnode.demo.runner import free_address, introduction, settings_for
from svcnode.demo.services import SERVICES

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Address(scheme="http", host="127.0.0.1", port=8420)
PORTS = {role.id: 40_000 + place for place, role in enumerate(SERVICES)}
TOKEN = "0123456789abcdef"


@pytest.fixture
def taken() -> Iterator[Address]:
    """Where somebody listens already."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Address(scheme="http", host="127.0.0.1", port=listener.getsockname()[1])


# ---- where


def test_a_port_that_is_taken_gives_way_to_the_next_that_is_free(taken: Address) -> None:
    found = free_address(taken, tries=50)
    assert taken.port < found.port <= taken.port + 50
    assert found.host == taken.host


def test_a_port_that_was_asked_for_is_the_only_one_that_will_do(taken: Address) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on {taken}: something listens there already"):
        free_address(taken, tries=1)


def test_a_port_that_is_free_is_taken_and_left_as_it_was() -> None:
    any_port = Address(scheme="http", host="127.0.0.1", port=0)
    found = free_address(any_port, tries=1)
    assert found.port
    assert free_address(found, tries=1) == found


def test_by_default_it_listens_where_a_node_does() -> None:
    assert command.DEFAULT_LISTEN == DEFAULT_LISTEN


# ---- what it says


def test_it_says_where_to_look_and_what_to_try() -> None:
    said = introduction(HERE, None)
    for text in (
        "http://127.0.0.1:8420/\n",
        "svcnode watch 127.0.0.1:8420\n",
        "svcnode explain indexer --url 127.0.0.1:8420\n",
        "curl -i http://127.0.0.1:8420/svc/node/health\n",
        "Ctrl-C",
    ):
        assert text in said
    assert all(len(line) <= 100 for line in said.splitlines())
    assert "token" not in said


def test_beyond_loopback_it_says_how_to_come_in() -> None:
    said = introduction(Address(scheme="http", host="0.0.0.0", port=1), TOKEN)
    assert f"the password is {TOKEN})" in said
    assert f"svcnode explain indexer --url 0.0.0.0:1 --token {TOKEN}\n" in said


# ---- how


def test_nothing_of_it_is_kept_on_the_disk_and_the_page_is_on() -> None:
    settings = settings_for(HERE, None, PORTS, 1.0)
    assert settings.history is None
    assert not settings.uses_store
    assert settings.listen == (HERE,)
    assert settings.drain_s == 0.0
    assert settings.operator is not None
    assert settings.operator.token is None


def test_beyond_loopback_its_page_asks_for_a_token() -> None:
    operator = settings_for(HERE, TOKEN, PORTS, 1.0).operator
    assert operator is not None
    assert operator.token == TOKEN


def test_the_environment_has_no_say_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVCNODE_DEFAULTS_INTERVAL", "1h")
    monkeypatch.setenv("SVCNODE_SERVER_OPERATOR", "false")
    assert settings_for(HERE, None, PORTS, 1.0).operator is not None


@pytest.mark.parametrize("speed", [0.1, 1.0, 3.0, 20.0])
def test_its_services_are_looked_at_as_fast_as_the_script_is_played(speed: float) -> None:
    services = {service.id: service.definition for service in settings_for(HERE, None, PORTS, speed).services}
    assert list(services) == ["chain", "indexer", "storage", "cache", "peer"]
    for definition in services.values():
        assert definition.probe_config is not None
        assert definition.probe_config.schedule.interval_s == pytest.approx(1.0 / speed, rel=0.01)
        assert definition.probe_config.schedule.timeout_s == pytest.approx(0.5 / speed, rel=0.01)
    assert services["chain"].service.impact is Impact.CRITICAL
    cache = services["cache"].probe_config
    assert cache is not None
    assert cache.max_latency_s == pytest.approx(0.2 / speed, rel=0.01)


def test_each_is_looked_at_by_another_kind_of_probe() -> None:
    urls = [str(role.config_table(1, 1.0)["probe"]["url"]) for role in SERVICES]
    assert [url.partition(":")[0] for url in urls] == ["ethereum+http", "http", "ipfs+http", "memcached", "svc+http"]


# ---- the command


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--listen", "8420"), '"8420" is not an address to listen on'),
        (("--listen", "https://127.0.0.1:1"), "needs a certificate"),
        (
            ("--listen", "unix:/run/a.sock"),
            "--listen: a browser cannot open unix:/run/a.sock; write an address such as",
        ),
    ],
)
def test_a_wrong_address_is_refused_in_one_line(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert why in said.err


@pytest.mark.parametrize("speed", ["0", "-1", "21", "fast", "nan", "inf", ""])
def test_a_speed_that_makes_no_sense_is_refused(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["demo", f"--speed={speed}"])
    assert refused.value.code == 2
    assert f"argument --speed: a number from 0.1 to 20, not '{speed}'" in capsys.readouterr().err
