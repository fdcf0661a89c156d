from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from svcnode.cli._args import add_config_option, add_override_options, settings_reader
from svcnode.core.errors import ConfigError
from svcnode.core.model import Status
from svcnode.net.url import Url
from svcnode.probes.file import FileProbe
from svcnode.probes.tcp import TcpProbe

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.config import ServiceSettings, Settings

DB = "db=tcp://127.0.0.1:5432"


@pytest.fixture(autouse=True)
def bare_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a file, and an environment that says nothing."""
    monkeypatch.chdir(tmp_path)
    for name in ("SVCNODE_CONFIG", "SVCNODE_SECURITY_ALLOW_EXEC"):
        monkeypatch.delenv(name, raising=False)


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_config_option(parser)
    add_override_options(parser)
    return parser.parse_args(arguments)


def settings(*arguments: str) -> Settings:
    return settings_reader(None, parsed(*arguments))()


def naming(*services: str) -> list[str]:
    return [word for service in services for word in ("--service", service)]


def probe_of(service: ServiceSettings) -> object:
    assert service.definition.probe_config is not None
    return service.definition.probe_config.probe


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as refused:
        settings(*arguments)
    return str(refused.value)


# ---- services


def test_services_are_named_one_by_one_and_keep_their_order() -> None:
    read = settings(*naming("z=tcp://127.0.0.1:1", "a=file:/run/app.pid"))
    assert [service.id for service in read.services] == ["z", "a"]
    assert probe_of(read.services[0]) == TcpProbe(Url(scheme="tcp", host="127.0.0.1", port=1))
    assert probe_of(read.services[1]) == FileProbe(Url(scheme="file", path="/run/app.pid"))
    assert not read.uses_store


@pytest.mark.parametrize(
    "service_id",
    [
        "db-1",
        "a b",
        " ",
        "a/b",
        "%2F",
        "ä",
        "☃",
        "--x",
        "a:b",
        "tcp://x",
        "a=b",
        "=",
        "==",
        "${x}",
        '"',
        "x" * 256,
    ],
)
def test_an_id_may_hold_any_character(service_id: str) -> None:
    (service,) = settings(f"--service={service_id}=tcp://127.0.0.1:1").services
    assert service.id == service_id
    assert probe_of(service) == TcpProbe(Url(scheme="tcp", host="127.0.0.1", port=1))


def test_an_id_ends_where_the_first_url_begins() -> None:
    (service,) = settings("--service", "a=file:b=tcp://127.0.0.1:1").services
    assert service.id == "a"
    assert probe_of(service) == FileProbe(Url(scheme="file", path="b=tcp://127.0.0.1:1"))


def test_a_url_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_URL", "tcp://127.0.0.9:5999")  # a secret from here on, so that no other test may show it
    (service,) = settings("--service", "db=${DB_URL}").services
    assert probe_of(service) == TcpProbe(Url(scheme="tcp", host="127.0.0.9", port=5999))


ALLOW_EXEC = (
    "exec probes run programs on this machine; to allow them, set allow_exec = true in [security], or give --allow-exec"
)
FORM = "--service: write an id, =, and a probe URL, such as db=tcp://127.0.0.1:5432"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", FORM),
        ("db", FORM),
        ("=", FORM),
        ("db=", FORM),
        ("=tcp://127.0.0.1:1", FORM),
        ("tcp://127.0.0.1:1", FORM),
        ("db=127.0.0.1:1", FORM),
        ("db=Up", FORM),
        ("db=tcp://127.0.0.1", "services.db.probe: names no port; write tcp://127.0.0.1:port (--service db=…)"),
        ("db=tpc://127.0.0.1:1", 'services.db.probe: unknown scheme "tpc"; did you mean "tcp"? (--service db=…)'),
        ("db=jsonrpc+http://a", "services.db.probe.method: is missing, and is needed here (--service db=…)"),
        ("db=${NOT_SET}", "services.db.probe: the environment variable NOT_SET is not set (--service db=…)"),
        ("a\tb=file:/a", "services.a\tb.id: service id 'a\\tb' must not hold control characters (--service a\tb=…)"),
        (
            "db=exec:/bin/true",
            f"services.db.probe: {ALLOW_EXEC} (--service db=…)",
        ),
    ],
)
def test_a_service_that_cannot_be_had_is_refused_in_words_that_name_the_option(text: str, reason: str) -> None:
    assert refusal("--service", text) == reason


def test_an_id_that_is_too_long_is_refused() -> None:
    assert refusal("--service", "x" * 257 + "=file:/a").endswith(
        f"a service id has at most 256 characters, not 257 (--service {'x' * 257}=…)"
    )


def test_a_service_is_named_once() -> None:
    assert refusal(*naming(DB, "a=file:/a", DB)) == '--service: "db" is named twice; ids are unique'


def test_no_refusal_shows_a_password() -> None:
    for text in ("db=tcp://me:hunter2hunter2@127.0.0.1:1", "tcp://me:hunter2hunter2@127.0.0.1:1"):
        assert "hunter2" not in refusal("--service", text)


def test_a_program_may_be_named_where_it_may_run() -> None:
    (service,) = settings("--allow-exec", "--service", "db=exec:/bin/true -v").services
    assert repr(probe_of(service)) == "<ExecProbe exec:/bin/true -v>"


# ---- beside a file


def test_a_service_stands_behind_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text('[[services]]\nid = "a"\nstatus = "Up"\n')
    assert [service.id for service in settings("--service", DB).services] == ["a", "db"]


def test_a_service_of_the_file_gets_another_probe_and_keeps_all_else(tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text(
        '[[services]]\nid = "db"\nname = "Ledger"\nimpact = "critical"\ninterval = "4s"\n'
        '[services.probe]\nurl = "http://127.0.0.1"\nredirects = 3\n'
        '[[services]]\nid = "b"\nstatus = "Up"\n'
    )
    first, second = settings("--service", DB).services
    about, watch = first.definition.service, first.definition.probe_config
    assert (about.id, about.name, about.impact.value, second.id) == ("db", "Ledger", "critical", "b")
    assert watch is not None
    assert watch.schedule.interval_s == 4.0
    assert watch.probe == TcpProbe(Url(scheme="tcp", host="127.0.0.1", port=5432))


def test_a_status_that_the_file_fixes_gives_way_to_a_probe(tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text('[[services]]\nid = "db"\nstatus = "Up"\n')
    (before,) = settings().services
    (after,) = settings("--service", DB).services
    assert (before.status, before.definition.probe_config) == (Status.UP, None)
    assert after.status is None
    assert isinstance(probe_of(after), TcpProbe)


def test_a_wrong_word_of_the_file_is_blamed_on_the_file_and_a_wrong_probe_is_not(tmp_path: Path) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text('[[services]]\nid = "db"\nstatus = "Up"\ninterval = "x"\n')
    assert refusal("--service", DB).endswith(" (svcnode.toml:4)")
    file.write_text('[[services]]\nid = "db"\nstatus = "Up"\n')
    assert refusal("--service", "db=tcp:").endswith(" (--service db=…)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('services = "db"\n', "services: must be a list, not a string (svcnode.toml:1)"),
        ('services = ["db"]\n', "services.0 (the 1st): must be a table, not a string (svcnode.toml:1)"),
    ],
)
def test_a_service_does_not_hide_that_the_file_has_something_else_there(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text(text)
    assert refusal("--service", DB) == reason


def test_each_reading_has_the_services_of_the_command_line(tmp_path: Path) -> None:
    read = settings_reader(None, parsed("--service", DB))
    assert [service.id for service in read().services] == ["db"]
    (tmp_path / "svcnode.toml").write_text('[[services]]\nid = "a"\nstatus = "Up"\n')
    assert [service.id for service in read().services] == ["a", "db"]
    assert [service.id for service in read().services] == ["a", "db"]


# ---- the other options


def test_every_option_has_its_place_in_the_file() -> None:
    arguments = (
        *("--listen", "127.0.0.1:1", "--listen", "unix:/a", "--name", "n", "--node-version", "v2"),
        *("--prefix", "/a", "--prefix", "/b", "--drain", "7s", "--log-level", "debug", "--log-format", "json"),
    )
    read = settings(*arguments)
    assert [str(address) for address in read.listen] == ["http://127.0.0.1:1", "unix:/a"]
    assert (read.node_name, read.node_version, read.prefixes, read.drain_s) == ("n", "v2", ("/a", "/b"), 7.0)
    assert (read.log_level, read.log_format) == ("debug", "json")


@pytest.mark.parametrize("said", ["", "[security]\nallow_exec = false\n"])
def test_allow_exec_wins_over_a_file_that_says_no(said: str, tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text(f'{said}[[services]]\nid = "a"\nprobe = "exec:/bin/true"\n')
    assert "allow_exec = true" in refusal()
    assert [service.id for service in settings("--allow-exec").services] == ["a"]


def test_a_wrong_option_is_named() -> None:
    assert refusal("--drain", "5") == (
        'server.drain: "5" is not a duration; write a number and a unit, such as "5s" (--drain)'
    )
