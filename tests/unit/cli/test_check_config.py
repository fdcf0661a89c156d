from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import main

if TYPE_CHECKING:
    from pathlib import Path

PROBED, FIXED = 'probe = "tcp://127.0.0.1:1"', 'status = "Up"'
IMPACT_NOTE, FIXED_NOTE, STALE_AFTER_NOTE = "impact", "fixed status", "stale_after"


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


def notes_in(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("Note: ")]


def service(service_id: str, *keys: str) -> str:
    return "\n".join([f'[[services]]\nid = "{service_id}"', *keys, ""])


def test_control_characters_are_shown_as_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, line = checked(service("db", 'name = "good\\u202Elive"', PROBED), tmp_path, capsys)
    assert line.startswith("  db: good\\u202elive (")


def test_a_replica_and_its_registry_are_shown_without_the_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sharing = '[sharing]\nregistry = "etcd://me:hidden-1@a/x"\nreplica = "host-a"\n'
    _, line = checked(f'[node]\nname = "ledger"\n{sharing}', tmp_path, capsys)
    assert line == "  replica host-a, registry etcd://me:***@a:2379/x"


@pytest.mark.parametrize(
    ("services", "notes"),
    [
        ([], []),
        ([(PROBED,)], []),
        ([(PROBED,), (FIXED,)], []),
        ([(PROBED,), (FIXED, 'impact = "none"')], []),
        ([(PROBED, 'impact = "none"'), (FIXED, 'impact = "none"')], [IMPACT_NOTE]),
        ([(FIXED,)], [FIXED_NOTE]),
        ([(FIXED, 'impact = "critical"'), (PROBED, 'impact = "none"')], [FIXED_NOTE]),
    ],
)
def test_a_constant_node_health_is_noted(
    services: list[tuple[str, ...]], notes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = "".join(service(f"s{number}", *keys) for number, keys in enumerate(services))
    found = notes_in(checked(config, tmp_path, capsys))
    assert len(found) == len(notes)
    assert all(word in line for word, line in zip(notes, found, strict=True))


@pytest.mark.parametrize(
    ("keys", "notes"),
    [
        (('stale_after = "600s"',), []),
        (('stale_after = "601s"',), [STALE_AFTER_NOTE]),
        (('interval = "1h"', 'stale_after = "1d"'), []),
    ],
)
def test_a_stale_after_of_many_intervals_is_noted(
    keys: tuple[str, ...], notes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = checked(service("db", PROBED, *keys) + service("set", FIXED), tmp_path, capsys)
    found = notes_in(lines)
    assert len(found) == len(notes)
    assert all(word in line for word, line in zip(notes, found, strict=True))
