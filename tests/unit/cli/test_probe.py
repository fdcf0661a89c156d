from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.cli import main
from svcnode.cli.probe import _format_full, _format_line, _ProbeResult, _toml_value
from svcnode.core.model import Verdict
from svcnode.net.trace import Step

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
ALLOW_EXEC = (
    "exec probes run programs on this machine; to allow them, set allow_exec = true in [security], or give --allow-exec"
)


def seen(verdict: Verdict, duration_s: float = 0.0, *steps: Step) -> _ProbeResult:
    return _ProbeResult(at=NOON, verdict=verdict, duration_s=duration_s, steps=list(steps))


# ---- what cannot be looked at


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nothing"], "not a URL, which begins with a scheme and a colon, such as tcp://127.0.0.1:5432"),
        ([""], "not a URL, which begins with a scheme and a colon, such as tcp://127.0.0.1:5432"),
        (["htp://127.0.0.1"], 'unknown scheme "htp"; did you mean "http"?'),
        (["tcp://127.0.0.1"], "names no port; write tcp://127.0.0.1:port"),
        (["tcp://${NOT_SET}:1"], "the environment variable NOT_SET is not set"),
        (["http://127.0.0.1", "-o", "redirect=1"], 'redirect: unknown option; did you mean "redirects"?'),
        (
            ["http://127.0.0.1", "-o", "redirects=true"],
            "redirects: must be a whole number from 0 on, not true or false",
        ),
        (["http://127.0.0.1", "-o", "redirects"], '"redirects" is not an option; write its name, =, and its value'),
        (["http://127.0.0.1", "-o", "=1"], '"=1" is not an option; write its name, =, and its value'),
        (["http://127.0.0.1", "-o", "url=tcp:"], "url: stands alone, as the first word, and is no option"),
        (["jsonrpc+http://127.0.0.1"], "method: is missing, and is needed here"),
        (["file:/a", "-o", "max_age=5"], 'max_age: must be a string with a unit, not a whole number; write "5s"'),
        (["tls://127.0.0.1:1", "-o", "ca=/no.pem"], "ca: cannot use /no.pem: no such file or directory"),
        (
            ["http://127.0.0.1", "-o", 'bearer={ file = "/no.txt" }'],
            "bearer: cannot read /no.txt: no such file or directory",
        ),
        (["exec:/bin/true"], ALLOW_EXEC),
        (["file:/", "--timeout", "3"], '--timeout: "3" is not a duration; write a number and a unit, such as "3s"'),
        (["file:/", "--timeout", "0s"], '--timeout: must be more than 0, such as "5s", not "0s"'),
        (["file:/", "--max-latency", "0ms"], '--max-latency: must be more than 0, such as "5s", not "0ms"'),
        (
            ["file:/", "--interval", "soon"],
            '--interval: "soon" is not a duration; write a number and a unit, such as "500ms", "5s" or "2m"',
        ),
    ],
)
@pytest.mark.parametrize("way", [[], ["--watch"], ["--json"]], ids=["once", "watch", "json"])
def test_what_cannot_be_looked_at_is_told_in_one_line_and_is_exit_3(
    way: list[str], arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["probe", *arguments, *way])
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"svcnode: {reason}\n")
    assert code == 3


# ---- options


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("0x1f", 31),
        ("1.5", 1.5),
        ("true", True),
        ("false", False),
        ('"5"', "5"),
        ("'5'", "5"),
        ("[1, [2]]", [1, [2]]),
        ('{ a = 1, "/b" = "c" }', {"a": 1, "/b": "c"}),
        ('{ file = "/run/secret" }', {"file": "/run/secret"}),
        ('{ hex = "00 ff" }', {"hex": "00 ff"}),
        ("5 # a comment", 5),
    ],
)
def test_what_is_toml_is_read_as_toml(text: str, value: object) -> None:
    assert _toml_value(text) == value
    assert type(_toml_value(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "5s",
        "2xx",
        "GET",
        "True",
        "/var/run/app.pid",
        "two words",
        "${TOKEN}",
        "a=b",
        '"open',
        "[1, 2",
        "{ a = 1",
        "#1",
        "",
        "1\nb = 2",
        "1\n[table]",
        "9" * 5000,
        "[" * 5000,
    ],
)
def test_what_is_no_toml_is_a_string_that_lacks_its_quotes(text: str) -> None:
    assert _toml_value(text) == text


def test_options_reach_the_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "state"
    file.write_text("synced=yes")
    assert main(["probe", f"file:{file}", "-o", "contains=synced=yes", "--option", "max_age=1h"]) == 0
    assert main(["probe", f"file:{file}", "-o", "contains=synced=no"]) == 2
    assert f'failed: does not hold "synced=no": {file}\n' in capsys.readouterr().out


# ---- what is shown


def test_a_verdict_is_followed_by_its_steps_and_by_how_long_it_took_in_all() -> None:
    verdict = Verdict.failed("the connection was lost: localhost:443")
    steps = (
        Step("resolve", "localhost", 0.0123, is_done=True),
        Step("connect", "::1", 0.0001, is_done=False),
        Step("connect", "127.0.0.1", 0.0004, is_done=True),
        Step("handshake", "localhost", 2.5, is_done=True),
        Step("exchange", "", 0.1, is_done=False),
    )
    assert _format_full("https://localhost", seen(verdict, 2.6129, *steps)).splitlines() == [
        "failed: the connection was lost: localhost:443",
        "  resolve      12.3 ms  localhost",
        "  connect       0.1 ms  ::1 (not done)",
        "  connect       0.4 ms  127.0.0.1",
        "  handshake  2500.0 ms  localhost",
        "  exchange    100.0 ms  (not done)",
        "  in all     2612.9 ms  https://localhost",
    ]


def test_a_verdict_without_reason_and_steps_is_short() -> None:
    assert _format_full("file:/a", seen(Verdict.ready(), 0.0012)) == "ready\n  in all        1.2 ms  file:/a"


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (Verdict.ready(), "12:00:00  ready         12.3 ms"),
        (Verdict.not_ready("it is starting"), "12:00:00  not ready     12.3 ms  it is starting"),
        (Verdict.failed("refused"), "12:00:00  failed        12.3 ms  refused"),
        (Verdict.unknown("no resolver"), "12:00:00  unknown       12.3 ms  no resolver"),
    ],
)
def test_a_look_among_many_is_one_line(verdict: Verdict, line: str) -> None:
    assert _format_line("tcp://127.0.0.1:1", seen(verdict, 0.0123)) == line


def test_what_a_service_says_cannot_break_the_line_or_steer_the_terminal() -> None:
    verdict = Verdict.failed("exit 1: \x1b[2Jgone\nready")
    shown = "failed: exit 1: \\x1b[2Jgone\\nready"
    assert _format_full("exec:/a", seen(verdict)).splitlines()[0] == shown
    assert _format_line("exec:/a", seen(verdict)).endswith("  exit 1: \\x1b[2Jgone\\nready")


def test_a_program_runs_only_where_that_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "exec:", "-o", 'argv=["/bin/sh", "-c", "exit 75"]', "--allow-exec", "--json"]) == 1
    looked: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (looked["verdict"], looked["reason"]) == ("not_ready", "exit 75")
    assert [step["name"] for step in looked["steps"]] == ["start", "run"]


def test_the_help_says_what_the_exit_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["probe", "--help"])
    assert left.value.code == 0
    words = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "Exit 0 ready, 1 not ready, 2 failed, 3 unknown or not looked at." in words
