"""The address and the settings of the demo. tests/wording/test_cli.py has its introduction."""

from __future__ import annotations

import socket

import pytest

from svcnode.cli import main
from svcnode.cli.demo.checks import SERVICES
from svcnode.cli.demo.runner import free_address, settings_for
from svcnode.core.address import Address
from svcnode.core.errors import ListenError
from svcnode.core.model import Impact

LOOPBACK = Address(scheme="http", host="127.0.0.1", port=8420)
PORTS = {service.id: 40_000 + index for index, service in enumerate(SERVICES)}
TOKEN = "0123456789abcdef"


def test_instead_of_a_used_port_the_next_free_one_is_taken_if_there_may_be_more_tries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        used = Address(scheme="http", host="127.0.0.1", port=listener.getsockname()[1])
        found = free_address(used, tries=50)
        assert used.port < found.port <= used.port + 50
        assert found.host == used.host
        with pytest.raises(ListenError, match=str(used)):
            free_address(used, tries=1)


def test_the_demo_writes_no_files_and_its_page_requires_a_token_beyond_loopback() -> None:
    settings = settings_for(LOOPBACK, None, PORTS, 1.0, {})
    assert settings.history.path is None
    assert settings.control is None
    assert not settings.uses_store
    assert (settings.listen, settings.drain_s) == ((LOOPBACK,), 0.0)
    assert settings.operator is not None
    assert settings.operator.token is None
    beyond = settings_for(LOOPBACK, TOKEN, PORTS, 1.0, {}).operator
    assert beyond is not None
    assert beyond.token == TOKEN


def test_variables_override_the_demo_but_make_it_write_no_file() -> None:
    environ = {
        "SVCNODE_NODE_NAME": "validator-8",
        "SVCNODE_SERVER_DRAIN": "3s",
        "SVCNODE_DEFAULTS_INTERVAL": "7s",
        "SVCNODE_LOG_LEVEL": "warning",
        "SVCNODE_HISTORY_KEEP": "true",
        "SVCNODE_CONTROL_ENABLED": "true",
        "SVCNODE_SERVICES": "mine=http://127.0.0.1:9/",
    }
    settings = settings_for(LOOPBACK, None, PORTS, 1.0, environ)
    assert (settings.node_name, settings.drain_s, settings.log_level) == ("validator-8", 3.0, "warning")
    chain, *_, mine = (service.definition for service in settings.services)
    assert (chain.service.id, mine.service.id) == ("chain", "mine")
    assert chain.probe_config is not None
    assert chain.probe_config.schedule.interval_s == 7.0
    assert chain.probe_config.schedule.timeout_s == 0.5
    assert (settings.history.path, settings.control) == (None, None)


@pytest.mark.parametrize("speed", [0.1, 20.0])
def test_the_checks_have_the_speed_of_the_scenario(speed: float) -> None:
    services = {service.id: service.definition for service in settings_for(LOOPBACK, None, PORTS, speed, {}).services}
    assert list(services) == ["chain", "indexer", "storage", "cache", "peer"]
    for definition in services.values():
        assert definition.probe_config is not None
        assert definition.probe_config.schedule.interval_s == pytest.approx(1.0 / speed, rel=0.01)
        assert definition.probe_config.schedule.timeout_s == pytest.approx(0.5 / speed, rel=0.01)
    assert services["chain"].service.impact is Impact.CRITICAL
    cache = services["cache"].probe_config
    assert cache is not None
    assert cache.max_latency_s == pytest.approx(0.2 / speed, rel=0.01)


@pytest.mark.parametrize("speed", ["0", "20.1", "fast", "nan"])
def test_an_invalid_speed_is_refused(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["demo", f"--speed={speed}"])
    assert caught.value.code == 2
    assert "argument --speed: " in capsys.readouterr().err
