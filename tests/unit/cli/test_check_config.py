from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import main

if TYPE_CHECKING:
    from pathlib import Path

PROBED, FIXED = 'probe = "tcp://127.0.0.1:1"', 'status = "Up"'


@pytest.fixture(autouse=True)
def _bare_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SVCNODE_")]:
        monkeypatch.delenv(name)


def checked(config: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    (folder / "svcnode.toml").write_text(config)
    assert main(["check-config"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out.splitlines()


def service(service_id: str, *keys: str) -> str:
    return "\n".join([f'[[services]]\nid = "{service_id}"', *keys, ""])


def errors_of(config: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    (folder / "svcnode.toml").write_text(config)
    assert main(["check-config"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err.splitlines()


def test_all_errors_are_shown_each_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = """[node]
nam = "a"
[server]
drain = 5
[[services]]
id = "db"
probe = "tpc://127.0.0.1:1"
impact = "critcal"
[[services]]
id = "db"
probe = { url = "http://127.0.0.1/", redirect = 1, method = 2 }
"""
    errors = errors_of(config, tmp_path, capsys)
    assert main(["check-config", "--check"]) == 2
    assert capsys.readouterr().out == "", "no probe of an invalid configuration runs"
    first, second = ["services.db.probe", "services.db.impact"], ["services.db.id", "services.db.probe.method"]
    keys = ["node.nam", "server.drain", *first, *second, "services.db.probe.redirect"]
    assert sorted(error.split(": ")[1] for error in errors) == sorted(keys)
    assert [int(error.rpartition(":")[2].rstrip(")")) for error in errors] == [2, 4, 7, 8, 10, 11, 11]


def test_serve_prints_all_errors_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text('[node]\nname = 5\n[log]\nlevel = "x"\n[server]\ndrain = 5\n')
    assert main(["serve", "--config", str(file)]) == 2
    assert [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()] == [
        "node.name",
        "log.level",
        "server.drain",
    ]


def test_a_service_is_shown_with_its_probe_and_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = 'probe = { url = "http://me:pass-word@h/x", status = 204, bearer = "to-ken-1" }'
    _, line = checked(service("api", probe.replace("me:pass-word@", "")), tmp_path, capsys)
    assert line.endswith(": http://h/x, bearer = ***, status = [204]")
    _, line = checked(service("api", 'probe = "http://me:pass-word@h/x"'), tmp_path, capsys)
    assert line.endswith(": http://me:***@h/x")


def test_each_probe_is_run_once_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spool").write_text("is good")
    good = f'probe = {{ url = "file:{tmp_path}/spool", contains = "good" }}'
    config = service("good", good) + service("set", FIXED)
    (tmp_path / "svcnode.toml").write_text(config)
    assert main(["check-config", "--check"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["good", "ready"]
    (tmp_path / "svcnode.toml").write_text(config + service("other", good.replace('"good"', '"other"')))
    assert main(["check-config", "--check"]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert [row[:2] for row in rows] == [["good", "ready"], ["other", "failed"]]


def test_the_store_of_a_node_that_never_ran_is_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store.db"
    (tmp_path / "svcnode.toml").write_text(f'[store]\npath = "{store}"\n')
    assert main(["check-config", "--check"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Not checked: ")
    assert not store.exists()
    store.write_text("not a database, and long enough to be read as one" * 20)
    assert main(["check-config", "--check"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["store", "failed"]


def test_a_replica_and_its_registry_are_shown_without_the_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sharing = '[sharing]\nregistry = "etcd://me:hidden-1@a/x"\nreplica = "host-a"\n'
    named = service("db", 'name = "good\\u202Elive"', PROBED)
    _, line, service_line = checked(f'[node]\nname = "ledger"\n{sharing}{named}', tmp_path, capsys)
    assert line == "  replica host-a, registry etcd://me:***@a:2379/x"
    assert service_line.startswith("  db: good\\u202elive ("), "control characters are escaped"


@pytest.mark.parametrize(
    ("services", "note"),
    [
        ([], ""),
        ([(PROBED,), (FIXED, 'impact = "none"')], ""),
        ([(PROBED, 'impact = "none"'), (FIXED, 'impact = "none"')], "impact"),
        ([(FIXED,)], "fixed status"),
        ([(FIXED, 'impact = "critical"'), (PROBED, 'impact = "none"')], "fixed status"),
        ([(PROBED, 'stale_after = "600s"')], ""),
        ([(PROBED, 'stale_after = "601s"'), (FIXED,)], "stale_after"),
        ([(PROBED, 'interval = "1h"', 'stale_after = "1d"')], ""),
    ],
)
def test_a_constant_node_health_and_a_stale_after_of_many_intervals_are_noted(
    services: list[tuple[str, ...]], note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = "".join(service(f"s{number}", *keys) for number, keys in enumerate(services))
    found = [line for line in checked(config, tmp_path, capsys) if line.startswith("Note: ")]
    assert len(found) == bool(note)
    assert all(note in line for line in found)
