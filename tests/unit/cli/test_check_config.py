"""`svcnode check-config`: what it says of a configuration that can be used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import main

if TYPE_CHECKING:
    from pathlib import Path

UNCOUNTED = (
    'Note: no service counts, since all have impact = "none", so the node will be healthy (200) whatever happens to '
    'them; give impact = "partial" or "critical" to those that matter'
)
FIXED = (
    "Note: every service that counts has a fixed status, so the health of the node will never change; give a probe to "
    "those that can be looked at"
)
PATIENT = (
    'Note: the evidence of "db" counts for 601 s (stale_after), more than 60 intervals, so it may long be Up while no '
    "look can be made; without stale_after it would be 33 s"
)
LOOKED_AT, SET = 'probe = "tcp://127.0.0.1:1"', 'status = "Up"'


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SVCNODE_")]:
        monkeypatch.delenv(name)


def checked(config: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    (folder / "svcnode.toml").write_text(config)
    assert main(["check-config"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out.splitlines()


def service(service_id: str, *words: str) -> str:
    return "\n".join([f'[[services]]\nid = "{service_id}"', *words, ""])


def test_what_would_steer_a_terminal_is_shown_instead_of_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = checked(service("db", 'name = "good\\u202Elive"', LOOKED_AT), tmp_path, capsys)
    assert first.startswith("The configuration is fine (svcnode.toml): ")
    assert second == "  db: good\\u202elive (looked at every 10 s, impact partial)"


@pytest.mark.parametrize(
    ("services", "notes"),
    [
        ([], []),
        ([(LOOKED_AT,)], []),
        ([(LOOKED_AT,), (SET,)], []),
        ([(LOOKED_AT,), (SET, 'impact = "none"')], []),
        ([(LOOKED_AT, 'impact = "none"'), (SET, 'impact = "none"')], [UNCOUNTED]),
        ([(SET,)], [FIXED]),
        ([(SET, 'impact = "critical"'), (LOOKED_AT, 'impact = "none"')], [FIXED]),
    ],
)
def test_a_health_that_can_never_change_is_noted(
    services: list[tuple[str, ...]], notes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = "".join(service(f"s{number}", *words) for number, words in enumerate(services))
    assert [line for line in checked(config, tmp_path, capsys) if line.startswith("Note: ")] == notes


@pytest.mark.parametrize(
    ("words", "notes"),
    [
        (('stale_after = "600s"',), []),
        (
            ('stale_after = "601s"',),
            [PATIENT],
        ),
        (('interval = "1h"', 'stale_after = "1d"'), []),
    ],
)
def test_evidence_that_counts_for_very_many_intervals_is_noted(
    words: tuple[str, ...], notes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = checked(service("db", LOOKED_AT, *words) + service("set", SET), tmp_path, capsys)
    assert [line for line in lines if line.startswith("Note: ")] == notes
