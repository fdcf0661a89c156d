from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcnode.cli._args import add_config_option, add_override_options, settings_reader
from svcnode.core.errors import ConfigError
from svcnode.core.url import Url
from svcnode.probes.file import FileProbe
from svcnode.probes.tcp import TcpProbe

if TYPE_CHECKING:
    from svcnode.config import ServiceSettings, Settings

DB = "db=tcp://127.0.0.1:5432"
CONFIG = Path("svcnode.toml")


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_config_option(parser)
    add_override_options(parser)
    return parser.parse_args(arguments)


def settings(*arguments: str) -> Settings:
    return settings_reader(None, parsed(*arguments))()


def with_services(*services: str) -> list[str]:
    return [word for service in services for word in ("--service", service)]


def probe_of(service: ServiceSettings) -> object:
    assert service.definition.probe_config is not None
    return service.definition.probe_config.probe


def error_of(*arguments: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        settings(*arguments)
    return caught.value


def test_services_have_the_order_of_the_options() -> None:
    read = settings(*with_services("z=tcp://127.0.0.1:1", "a=file:/run/app.pid"))
    assert [service.id for service in read.services] == ["z", "a"]
    assert probe_of(read.services[0]) == TcpProbe(Url(scheme="tcp", host="127.0.0.1", port=1))
    assert probe_of(read.services[1]) == FileProbe(Url(scheme="file", path="/run/app.pid"))
    assert not read.uses_store


@pytest.mark.parametrize(
    "service_id", ["db-1", " ", "a/b", "%2F", "☃", "--x", "tcp://x", "a=b", "=", "${x}", "x" * 256]
)
def test_an_id_may_contain_any_character(service_id: str) -> None:
    (service,) = settings(f"--service={service_id}=tcp://127.0.0.1:1").services
    assert service.id == service_id
    assert probe_of(service) == TcpProbe(Url(scheme="tcp", host="127.0.0.1", port=1))


def test_an_id_ends_before_the_first_url() -> None:
    (service,) = settings("--service", "a=file:b=tcp://127.0.0.1:1").services
    assert service.id == "a"
    assert probe_of(service) == FileProbe(Url(scheme="file", path="b=tcp://127.0.0.1:1"))


def test_a_url_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_URL", "tcp://127.0.0.9:5999")  # registered as a secret, so unlike the URLs of other tests
    (service,) = settings("--service", "db=${DB_URL}").services
    assert probe_of(service) == TcpProbe(Url(scheme="tcp", host="127.0.0.9", port=5999))


@pytest.mark.parametrize("text", ["", "db", "db=", "=tcp://127.0.0.1:1", "tcp://127.0.0.1:1", "db=127.0.0.1:1"])
def test_an_option_without_id_and_url_is_refused(text: str) -> None:
    error = error_of("--service", text)
    assert error.key is None
    assert "ID=URL" in str(error)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("db=tpc://127.0.0.1:1", "services.db.probe"),
        ("db=jsonrpc+http://a", "services.db.probe.method"),
        ("db=${NOT_SET}", "services.db.probe"),
        ("a\tb=file:/a", "services.a\tb.id"),
        ("db=exec:/bin/true", "services.db.probe"),
        ("x" * 257 + "=file:/a", f"services.{'x' * 257}.id"),
    ],
)
def test_an_invalid_service_is_refused_at_its_key_and_option(text: str, key: str) -> None:
    error = error_of("--service", text)
    assert (error.key, error.file) == (key, None)
    assert str(error).endswith(f" (--service {text.partition('=')[0]}=…)")


def test_no_error_shows_a_password() -> None:
    for text in ("db=tcp://me:hunter2hunter2@127.0.0.1:1", "tcp://me:hunter2hunter2@127.0.0.1:1"):
        assert "hunter2" not in str(error_of("--service", text))


def test_a_service_of_the_file_gets_another_probe_and_keeps_its_other_values() -> None:
    CONFIG.write_text(
        '[[services]]\nid = "db"\nname = "Ledger"\nimpact = "critical"\ninterval = "4s"\n'
        '[services.probe]\nurl = "http://127.0.0.1"\nredirects = 3\n'
        '[[services]]\nid = "b"\nstatus = "Up"\n'
    )
    first, second = settings("--service", DB).services
    service, probe_config = first.definition.service, first.definition.probe_config
    assert (service.id, service.name, service.impact.value, second.id) == ("db", "Ledger", "critical", "b")
    assert probe_config is not None
    assert probe_config.schedule.interval_s == 4.0
    assert probe_config.probe == TcpProbe(Url(scheme="tcp", host="127.0.0.1", port=5432))


def test_a_probe_replaces_the_fixed_status_of_the_file() -> None:
    CONFIG.write_text('[[services]]\nid = "db"\nstatus = "Up"\n')
    (after,) = settings("--service", DB).services
    assert after.status is None
    assert isinstance(probe_of(after), TcpProbe)


def test_an_error_in_the_file_has_its_line_and_an_error_in_the_option_does_not() -> None:
    CONFIG.write_text('[[services]]\nid = "db"\nstatus = "Up"\ninterval = "x"\n')
    assert error_of("--service", DB).line == 4
    CONFIG.write_text('[[services]]\nid = "db"\nstatus = "Up"\n')
    assert error_of("--service", "db=tcp:").line is None


def test_every_reload_has_the_services_of_the_command_line() -> None:
    read = settings_reader(None, parsed("--service", DB))
    assert [service.id for service in read().services] == ["db"]
    CONFIG.write_text('[[services]]\nid = "a"\nstatus = "Up"\n')
    assert [service.id for service in read().services] == ["a", "db"]
    assert [service.id for service in read().services] == ["a", "db"]


def test_every_option_sets_its_key() -> None:
    arguments = (
        *("--listen", "127.0.0.1:1", "--listen", "unix:/a", "--name", "n", "--node-version", "v2"),
        *("--prefix", "/a", "--prefix", "/b", "--drain", "7s", "--log-level", "debug", "--log-format", "json"),
    )
    read = settings(*arguments)
    assert [str(address) for address in read.listen] == ["http://127.0.0.1:1", "unix:/a"]
    assert (read.node_name, read.node_version, read.prefixes, read.drain_s) == ("n", "v2", ("/a", "/b"), 7.0)
    assert (read.log_level, read.log_format) == ("debug", "json")


@pytest.mark.parametrize("security", ["", "[security]\nallow_exec = false\n"])
def test_allow_exec_overrides_the_file(security: str) -> None:
    CONFIG.write_text(f'{security}[[services]]\nid = "a"\nprobe = "exec:/bin/true"\n')
    assert error_of().key == "services.a.probe"
    assert [service.id for service in settings("--allow-exec").services] == ["a"]
