"""Help, errors and output of the commands."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import COMMANDS, build_parser, load_command, main
from svcnode.cli._args import CommandParser
from svcnode.cli.check_config import format_checks
from svcnode.cli.demo.runner import introduction
from svcnode.cli.demo.scenario import LOOP_STEPS, STARTUP_STEPS
from svcnode.cli.explain import _unknown_service_text
from svcnode.cli.history import text_lines
from svcnode.cli.init import format_report
from svcnode.cli.init.catalog import CATALOG, EmptyResponseError
from svcnode.cli.init.scan import FoundService, ScanResult, UnconfirmedPort, _failure, _mismatch
from svcnode.cli.init.select import SelectedProbe, select_probe
from svcnode.cli.init.template import render_config
from svcnode.cli.inspection.subject import OnceChecked
from svcnode.cli.operator_requests import response_error
from svcnode.cli.operator_url import OperatorUrl
from svcnode.cli.probe import _format_full, _format_line, _ProbeResult
from svcnode.core.address import parse_address
from svcnode.core.model import Verdict
from svcnode.net.connect import TcpEndpoint
from svcnode.net.trace import Step
from tests.unit.cli.test_history import NOON, item

if TYPE_CHECKING:
    from tests.wording.conftest import Snapshot


BY_KIND = {entry.kind: entry for entry in CATALOG}


@pytest.fixture(autouse=True)
def _bare_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SVCNODE_")]:
        monkeypatch.delenv(name)


# ---- help


def help_text(parser: argparse.ArgumentParser) -> str:
    """The texts of --help, without the layout of argparse, which differs between Python versions."""
    lines = [parser.prog, "", parser.description or "", ""]
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        if isinstance(action, argparse._SubParsersAction):
            lines += [f"{choice.dest}: {choice.help}" for choice in action._choices_actions]
            lines += ["", *map(help_text, action.choices.values())]
            continue
        name = ", ".join(action.option_strings) or str(action.metavar)
        value = f" {action.metavar}" if action.option_strings and action.nargs != 0 and action.metavar else ""
        lines.append(f"{name}{value}: {action.help}")
    return "\n".join([*lines, "", parser.epilog or ""]).rstrip()


def test_help_of_the_program(snapshot: Snapshot) -> None:
    parser = build_parser()
    commands = [f"{command.name}: {command.help}" for command in COMMANDS]
    snapshot("help", "\n".join([parser.description or "", "", *commands, "", parser.epilog or ""]))


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_help_of_a_command(command: str, snapshot: Snapshot) -> None:
    parser = CommandParser(prog=f"svcnode {command}")
    load_command(command, parser)
    text = help_text(parser)
    assert re.search("exit codes?:", text, re.IGNORECASE)
    snapshot(f"help_{command}", text)


# ---- errors


AT_REGISTRY = "--registry etcd://127.0.0.1:1 --node n"
ERRORS = {
    "serve": [
        *("-c /no/such.toml", "-c .", "--service db", "--service a=file:/a --service a=file:/b"),
        *("--service db=tpc://127.0.0.1:1", "--service db=exec:/bin/true", "--listen 8420", "--drain 5"),
        "--frobnicate",
    ],
    "demo": ["--listen unix:/run/a.sock", "--speed 21", "--speed fast"],
    "init": ["--port postgre=5433", "--port 5433", "--port redis=0", "--stdout a.toml", "''", "-", "exists.toml"],
    "notify-test": ["", "-c notify.toml --to 7"],
    "probe": [
        *("file:/ --interval 5s", "nothing", "htp://127.0.0.1", "http://127.0.0.1 -o redirects"),
        *("http://127.0.0.1 -o redirect=1", "http://127.0.0.1 -o url=tcp:", "file:/ --timeout 3"),
        *("file:/ --timeout 0s", "file:/ --max-latency 0ms", "file:/ --interval 0s --watch"),
        *("http://127.0.0.1 -o =1", "jsonrpc+http://127.0.0.1", "'tcp://${NOT_SET}:1'", "exec:/bin/true"),
    ],
    "status": [
        *("-c broken.toml", "-c random.toml", "--from exists.toml", "h:x", "h --ca /no/such.pem"),
        *("--from /no/such/file", "--from /dev/zero", "--from bytes", "--from nodes"),
        *("--registry http://127.0.0.1:2379", "--registry etcd://127.0.0.1:1"),
    ],
    "watch": ["h", "h --interval soon", "--registry etcd://127.0.0.1:1"],
    "explain": [
        *("ftp://node", "https://node --ca /no/such.pem", "https://node --ca notify.toml", "--token @/no/such"),
        *("--token 'a b'", "--token ''", "unix:", "127.0.0.1:1 --service ''", "127.0.0.1:1 --service '\udce9'"),
        *("ledger", "ledger --url 127.0.0.1:1", "-c off.toml", "-c random.toml", "-c none.toml"),
        "-c broken.toml",
    ],
    "register": [
        *("", "a", "a --ttl 15s --probe tcp://127.0.0.1:1", "a --ttl 15s --set fall --socket no.sock"),
        *("a --ttl 15s --socket no.sock", "a --ttl 15s -c no-control.toml", "a --ttl 15s --node n"),
        "a --ttl 15s --registry etcd://127.0.0.1:1 --socket no.sock",
        "a --ttl 15s --registry etcd://127.0.0.1:1",
        "a --ttl 15s --registry 'etcd://u:${NOT_SET}@127.0.0.1:1' --node n",
        *("a --ttl 15s --registry 'etcd://127.0.0.1:1?a=b' --node n", f"{AT_REGISTRY} a --ttl 15s"),
        *(f"{AT_REGISTRY} a --ttl 15s --owner replica:a", f"{AT_REGISTRY} a --ttl 15s --tls"),
        *(f"{AT_REGISTRY} a --ttl 15s --ownr b", f"{AT_REGISTRY} a --ttl 15s --set intervall=5s"),
        f"{AT_REGISTRY} a --probe disk:/",
    ],
    "deregister": ["a --socket exists.toml", f"{AT_REGISTRY} a"],
    "beat": ["a --socket unix:no.sock", f"{AT_REGISTRY} a"],
    "run": [
        *("--service a", "-- true", "--service a --ttl 15 --socket no.sock -- true"),
        *("--service a --socket no.sock -- true", f"{AT_REGISTRY} --service a -- true"),
    ],
    "registry": [
        *("", "shw", "check", "show", "forget a --registry etcd://127.0.0.1:1", f"forget {AT_REGISTRY}"),
        *("accept --registry etcd://127.0.0.1:1", f"accept {AT_REGISTRY}"),
        *(f"forget a {AT_REGISTRY}", "check --registry etcd://127.0.0.1:1 --node ''"),
    ],
    "issue": [""],
    "drain": ["now", "--socket no.sock"],
    "ack": ["db --clear --until +1h", "db --until tomorrow --socket no.sock", "--clear --socket no.sock"],
    "maintain": ["", "--from +1h --end --socket no.sock", "--from tomorrow --for 1h --socket no.sock"],
    "reload": ["--socket no.sock"],
    "conform": ["http://127.0.0.1 --json --junit -", "http://127.0.0.1 --ca ''", "ftp://127.0.0.1"],
}
FILES = {
    "exists.toml": b"",
    "notify.toml": b'[notify]\nwebhook = "https://hooks.example.com/a"\n',
    "no-control.toml": b"[control]\nenabled = false\n",
    "bytes": b"\xff\xfe",
    "nodes": b"a\n\nftp://b\n",
    "off.toml": b"[server]\noperator = false\n",
    "random.toml": b'[server]\nlisten = "127.0.0.1:0"\n',
    "none.toml": b"[server]\nlisten = []\n",
    "broken.toml": b"[server]\nlisten = 9000\n",
}


@pytest.mark.parametrize("command", ERRORS)
def test_errors_of_a_command(command: str, snapshot: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in FILES.items():
        Path(name).write_bytes(content)
    lines = []
    for arguments in map(shlex.split, ERRORS[command]):
        with suppress(SystemExit):
            main([command, *arguments])
        output = capsys.readouterr()
        assert output.out == ""
        error = output.err.splitlines()[-1]
        lines += [ascii(" ".join(["svcnode", command, *arguments])), f"    {error}"]
    snapshot(f"errors_{command}", "\n".join(lines))


def test_errors_of_responses_to_explain(snapshot: Snapshot) -> None:
    with_token = OperatorUrl(origin="http://node:8420", display="http://node:8420", authorization="Bearer x")
    without = OperatorUrl(origin="http://node:8420", display="http://node:8420")
    responses: list[tuple[int, object, OperatorUrl]] = [
        (404, {"message": "Service not found"}, without),
        (401, None, with_token),
        (401, None, without),
        (403, None, without),
        (404, None, without),
        (500, {"message": "Internal server error"}, without),
        (200, [], without),
    ]
    lines = [f"{code}: {response_error(code, document, url)}" for code, document, url in responses]
    details = {"services": [{"id": "db-1"}, {"id": "cache"}]}
    lines += [_unknown_service_text(service_id, details, without) for service_id in ("db1", "zzzz")]
    lines.append(_unknown_service_text("db-1", {"services": []}, without))
    snapshot("errors_of_responses_to_explain", "\n".join(lines))


# ---- output


CONFIGURATION = """
[node]
name = "validator-7"
version = "v1.4.2"
[control]
enabled = false
[public]
services = ["db", "gone", "lost"]
groups = ["Edge", "Far"]
listen = "127.0.0.1:8080"
[[services]]
id = "db"
name = "Ledger"
probe = "tcp://127.0.0.1:5432"
impact = "critical"
stale_after = "601s"
[[services]]
id = "indexer"
probe = "heartbeat:30s"
[[services]]
id = "set"
group = "Edge"
status = "Up"
"""
INVALID = """
[defaults]
interval = 5
[[services]]
id = "db"
probe = "tpc://127.0.0.1:5432"
impact = "critcal"
[[services]]
id = "api"
probe = { url = "http://127.0.0.1/", redirect = 1, method = 2 }
"""
NEVER_CHANGES = ['status = "Up"', 'probe = "tcp://127.0.0.1:1"\nimpact = "none"']


def test_output_of_check_config(snapshot: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    for service in NEVER_CHANGES:
        Path("svcnode.toml").write_text(f'[node]\nname = "a"\n[[services]]\nid = "db"\n{service}\n')
        assert main(["check-config"]) == 0
    Path("svcnode.toml").write_text(CONFIGURATION)
    assert main(["check-config"]) == 0
    Path("svcnode.toml").write_text(INVALID)
    assert main(["check-config"]) == 2
    output = capsys.readouterr()
    results = [
        OnceChecked("db", Verdict.ready(), 0.0012),
        OnceChecked("indexer-2", Verdict.not_ready("syncing"), 0.4),
    ]
    snapshot("output_of_check_config", output.out + output.err + "\n".join(format_checks(results, 1)))


def test_output_of_probe(snapshot: Snapshot) -> None:
    steps = [
        Step("resolve", "localhost", 0.0123, is_done=True),
        Step("connect", "::1", 0.0001, is_done=False),
        Step("connect", "127.0.0.1", 0.0004, is_done=True),
        Step("exchange", "", 0.1, is_done=False),
    ]
    noon_s = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC).timestamp()
    verdicts = [
        Verdict.ready(),
        Verdict.not_ready("starting"),
        Verdict.failed("refused"),
        Verdict.unknown("no resolver"),
    ]
    results = [_ProbeResult(at_s=noon_s, verdict=verdict, duration_s=0.1129, steps=steps) for verdict in verdicts]
    url = "https://localhost"
    snapshot(
        "output_of_probe",
        "\n".join([*(_format_full(url, result) for result in results[::2]), *(_format_line(url, r) for r in results)]),
    )


def selected(kind: str, verdict: Verdict) -> SelectedProbe:
    entry = BY_KIND[kind]
    return select_probe(FoundService(entry, TcpEndpoint.of("127.0.0.1", entry.ports[0])), verdict)


def selected_probes() -> list[SelectedProbe]:
    redis = FoundService(BY_KIND["redis"], TcpEndpoint.of("127.0.0.1", 6379))
    without_driver = SelectedProbe(
        found=redis,
        probe="tcp://127.0.0.1:6379",
        unavailable_reason='kind "redis" needs its driver: pip install "redis<9,>=8"',
        preferred_probe="redis://:${REDIS_PASSWORD}@127.0.0.1:6379",
    )
    return [
        selected("postgresql", Verdict.failed("no password supplied")),
        without_driver,
        selected("memcached", Verdict.ready()),
        selected("mysql", Verdict.not_ready("starting")),
        selected("ethereum", Verdict.not_ready("syncing")),
    ]


def test_report_of_init(snapshot: Snapshot) -> None:
    probes = selected_probes()
    nats, endpoint = BY_KIND["nats"], TcpEndpoint.of("127.0.0.1", 4222)
    failures = [
        _failure(TimeoutError(), nats, 1.0),
        _failure(EmptyResponseError(), nats, 1.0),
        _failure(ConnectionResetError(), nats, 1.0),
        _failure(PermissionError(13, "permission denied"), nats, 1.0),
        _mismatch(nats),
        _mismatch(BY_KIND["ipfs"]),
    ]
    unconfirmed = tuple(UnconfirmedPort(nats, endpoint, reason, code) for reason, code in failures)
    result = ScanResult(tuple(probe.found for probe in probes), unconfirmed)
    snapshot("report_of_init", "\n".join([*format_report(result, probes), "", *format_report(ScanResult(), [])]))


def test_file_of_init(snapshot: Snapshot) -> None:
    snapshot("file_of_init", render_config("validator-7", 8421, selected_probes()))
    snapshot("file_of_init_without_services", render_config("validator-7", 8420, []))


def test_output_of_demo(snapshot: Snapshot) -> None:
    texts = [
        introduction(parse_address(f"{host}:8420", has_tls=False), token, "svcnode")
        for host, token in (("127.0.0.1", None), ("0.0.0.0", "x"))
    ]
    steps = [f"{step.at_s:4g} s  {step.text}" for step in (*STARTUP_STEPS, *LOOP_STEPS)]
    snapshot("output_of_demo", "\n".join([*texts, *steps]))


def test_history(snapshot: Snapshot) -> None:
    kinds = [
        item(0, type="event", kind="started", service=None, duration_s=None, reason="svcnode 0.1.0"),
        item(0, type="health", kind="started", service=None, status=None, health=206, reason=""),
        item(1, open=False, duration_s=1563.0),
        item(1, type="health", health=503, open=False),
        item(2, type="event", kind="note", duration_s=None, reason="deployed v1.4.3 (by ops)"),
        item(3, type="event", kind="node", service=None, duration_s=None, reason="draining: kernel update"),
        item(4, type="event", kind="maintenance_ended", duration_s=None, reason=""),
        item(5, type="health", kind="node", service=None, status=None, health=503, reason="draining: kernel update"),
        item(6, type="health", kind="stopped", service=None, status=None, health=None, reason=""),
    ]
    period = (NOON, NOON + 3600)
    lines = [*text_lines(kinds, period), "", *text_lines([], period, "/var/lib/svcnode/history.db")]
    snapshot("history", "\n".join(lines))
