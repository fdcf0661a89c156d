"""The reasons and errors of the basic probe kinds and of the network code below all kinds."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import sqlite3
import ssl
import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import SvcnodeError
from svcnode.core.model import Outcome, Status
from svcnode.net.os_errors import InconclusiveError, ThreadStartError, verdict_for_os_error
from svcnode.net.streams import ResponseTooLargeError
from svcnode.probes import KINDS, make_probe
from svcnode.probes import disk as disk_probe
from svcnode.probes.file_system import error_state, parse_mounts
from svcnode.probes.function import FunctionProbe
from svcnode.probes.run import run_check
from tests.support.backends import (
    Backend,
    HttpBackend,
    close,
    closed_port,
    http_response,
    reissued,
    sending,
    server_tls,
)
from tests.support.certificates import make_certificate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from svcnode.core.model import Verdict
    from tests.wording.conftest import Snapshot


def line(label: str, verdict: Verdict, *hidden: tuple[str, str]) -> str:
    """One line per case, without ports and temporary paths."""
    text = f"{label:<28} {verdict.outcome.value:<9} {verdict.code:<20} {verdict.reason}".rstrip()
    for found, placeholder in hidden:
        text = text.replace(found, placeholder)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)


def check(url: str, **options: Any) -> Verdict:
    probe = make_probe({"url": url, **options}, allowed={"allow_exec"})
    return asyncio.run(run_check(probe, 60.0))[0]


def test_reasons_of_system_errors(snapshot: Snapshot) -> None:
    numbers = [
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT),
        *(errno.EMFILE, errno.EACCES, errno.ENOENT),
    ]
    expired = ssl.SSLCertVerificationError(1, "")
    expired.verify_code, expired.verify_message = 10, "certificate has expired"
    not_tls = ssl.SSLError(1, "")
    not_tls.reason = "WRONG_VERSION_NUMBER"
    errors: dict[str, OSError] = {
        **{errno.errorcode[number]: OSError(number, os.strerror(number)) for number in numbers},
        "host not found": socket.gaierror(socket.EAI_NONAME, ""),
        "resolver failed": socket.gaierror(socket.EAI_AGAIN, ""),
        "certificate expired": expired,
        "not TLS": not_tls,
        "no thread": ThreadStartError(),
        "no message": ConnectionAbortedError(),
        "too large": ResponseTooLargeError(),
        "inconclusive": InconclusiveError("proxy 10.0.0.1:3128: connection refused", ReasonCode.PROXY_FAILED),
    }
    lines = [line(label, verdict_for_os_error(exc, "db.example:5432")) for label, exc in errors.items()]
    snapshot("system_errors", "\n".join(lines))


def test_reasons_of_http(snapshot: Snapshot) -> None:
    cases: dict[str, tuple[bytes, dict[str, Any]]] = {
        "status 500": (http_response(500), {}),
        "status 401": (http_response(401), {}),
        "status 401, bearer": (http_response(401), {"bearer": "swordfish"}),
        "status 403": (http_response(403), {}),
        "status 404": (http_response(404), {}),
        "status 429": (http_response(429), {}),
        "redirect": (http_response(302, Location="https://login.example/in?x=y"), {}),
        "redirect, limit": (http_response(302, Location="/"), {"redirects": 2}),
        "redirect, no location": (http_response(302), {}),
        "redirect, invalid": (http_response(302, Location="mailto:me"), {}),
        "redirect, invalid, followed": (http_response(302, Location="mailto:me"), {"redirects": 1}),
        "starting status": (http_response(503), {"starting_status": 503}),
        "starting json": (http_response(200, '{"s": 1}'), {"starting_json": {"/s": 1}}),
        "contains": (http_response(200, "text"), {"contains": "ready"}),
        "matches": (http_response(200, "text"), {"matches": "^ready$"}),
        "slow pattern": (http_response(200, "a" * 40), {"matches": "(a|a)*b|(a|a)*c"}),
        "json": (http_response(200, '{"status": "bad"}'), {"json": {"/status": "ok"}}),
        "json, missing": (http_response(200, "{}"), {"json": {"/status": "ok"}}),
        "json, whole": (http_response(200, "[]"), {"json": {"": {}}}),
        "json, invalid": (http_response(200, "{"), {"json": {"/status": "ok"}}),
        "json, html": (http_response(200, "<html>"), {"json": {"/status": "ok"}}),
        "not HTTP": (b"220 mail.example ESMTP\r\n", {}),
        "incomplete": (b"HTTP/1.1 200 OK\r\nConte", {}),
        "large headers": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, {}),
        "large body": (http_response(200, b"x" * 2_000_000), {"contains": "y"}),
    }
    lines = []
    for label, (response, options) in cases.items():
        with HttpBackend(response) as backend:
            lines.append(line(label, check(f"http://{backend.address}/", **options)))
    snapshot("http", "\n".join(lines))


def test_reasons_of_tls(snapshot: Snapshot, tmp_path: Path) -> None:
    valid = make_certificate(tmp_path, "valid")
    expired = reissued(valid, tmp_path, days_left=-1)
    soon = reissued(valid, tmp_path, days_left=10.5)
    with ExitStack() as stack:
        backends = {
            pair: stack.enter_context(HttpBackend(http_response(200), tls=server_tls(pair)))
            for pair in (valid, expired, soon)
        }
        ca = {"ca": str(valid.certificate)}
        lines = [
            line("untrusted", check(f"https://{backends[valid].address}/")),
            line("wrong name", check(f"https://{backends[valid].address}/", server_name="other.example", **ca)),
            line("expired", check(f"https://{backends[expired].address}/", ca=str(expired.certificate))),
            line(
                "expires soon", check(f"https://{backends[soon].address}/", ca=str(soon.certificate), min_cert_days=30)
            ),
        ]
    snapshot("tls", "\n".join(lines))


def test_reasons_of_tcp_and_proxies(snapshot: Snapshot) -> None:
    with (
        Backend(sending(b"-ERR starting up\r\n")) as other,
        Backend(close) as closing_,
        HttpBackend(http_response(407)) as proxy,
        closed_port() as closed,
    ):
        lines = [
            line("other bytes", check(f"tcp://{other.address}", expect="+OK")),
            line("closed", check(f"tcp://{closing_.address}", expect="+OK")),
            line("refused", check(f"tcp://127.0.0.1:{closed}")),
            line("proxy refused", check("http://nothing.invalid/", proxy=f"127.0.0.1:{closed}")),
            line("proxy rejects CONNECT", check("https://nothing.invalid/", proxy=proxy.address)),
        ]
    snapshot("tcp_and_proxies", "\n".join(lines))


def test_reasons_of_svc_and_jsonrpc(snapshot: Snapshot) -> None:
    lines = []
    for status in (206, 503, 404, 401, 500):
        with HttpBackend(http_response(status)) as backend:
            lines.append(line(f"svc node {status}", check(f"svc+http://{backend.address}")))
            lines.append(line(f"svc service {status}", check(f"svc+http://{backend.address}", service="db")))
    bodies = {
        "error": '{"id": 1, "error": {"code": -32005, "message": "Node is behind by 42 slots", "data": '
        '{"numSlotsBehind": 42}}}',
        "limit": '{"id": 1, "error": {"code": -32005, "message": "daily request count exceeded"}}',
        "result": '{"id": 1, "result": "bad"}',
        "not JSON-RPC": "{}",
        "invalid JSON": '{"id": 1, "id": 1}',
    }
    for label, body in bodies.items():
        with HttpBackend(http_response(200, body)) as backend:
            verdict = check(f"jsonrpc+http://{backend.address}", method="getHealth", result={"": "ok"})
            lines.append(line(f"jsonrpc {label}", verdict))
    snapshot("svc_and_jsonrpc", "\n".join(lines))


def test_reasons_of_files_and_programs(snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, ledger, text = tmp_path / "heartbeat", tmp_path / "ledger.db", tmp_path / "text.db"
    file.write_text("state=ok")
    text.write_text("x" * 1000)
    with closing(sqlite3.connect(ledger)) as database, database:
        database.execute("CREATE TABLE t (x)")
    old, future = tmp_path / "old", tmp_path / "future"
    for path, at_s in ((old, 0.0), (future, 1e11)):
        path.touch()
        os.utime(path, (at_s, at_s))
    hidden = (str(tmp_path), "DIR")

    def shown(label: str, verdict: Verdict) -> str:
        return re.sub(r"\d+ s (old|in the future)", r"N s \1", line(label, verdict, hidden))

    disk = os.statvfs_result((4096, 4096, 100 * 2**18, 3 * 2**18, 3 * 2**18, 0, 0, 0, 0, 255))
    lines = [
        shown("file missing", check(f"file:{tmp_path}/missing")),
        shown("file old", check(f"file:{old}", max_age="60s")),
        shown("file in the future", check(f"file:{future}", max_age="60s")),
        shown("file text", check(f"file:{file}", contains="state=bad")),
        shown("file directory", check(f"file:{tmp_path}")),
        shown("sqlite missing", check(f"sqlite:{tmp_path}/missing.db")),
        shown("sqlite text file", check(f"sqlite:{text}")),
        shown("sqlite application_id", check(f"sqlite:{ledger}", application_id=7)),
        shown("sqlite write", check(f"sqlite:{ledger}", write=True)),
    ]
    with closing(sqlite3.connect(ledger)) as database:
        database.execute("BEGIN EXCLUSIVE")
        lines.append(shown("sqlite locked", check(f"sqlite:{ledger}")))
    probe = make_probe({"url": f"sqlite:{ledger}"})
    asyncio.run(probe.check())
    (tmp_path / "copy.db").write_bytes(ledger.read_bytes())
    (tmp_path / "copy.db").replace(ledger)
    lines.append(shown("sqlite replaced", asyncio.run(probe.check())))
    os.truncate(ledger, ledger.stat().st_size - 1)
    lines.append(shown("sqlite truncated", check(f"sqlite:{ledger}")))
    lines.append(shown("disk without blocks", check("disk:/proc")))
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    lines.append(shown("disk min_free", check("disk:/usr")))
    lines.append(shown("disk warn_free", check("disk:/usr", min_free="1GiB", warn_free="5GiB")))
    full = OSError(errno.ENOSPC, "")
    lines.append(shown("disk write", disk_probe._verdict_for_write_error(full, "/usr/.svcnode_write.1000.tmp")))
    no_inodes = os.statvfs_result((4096, 4096, 100, 50, 50, 6400, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: no_inodes)
    lines.append(shown("disk inodes", check("disk:/usr")))
    read_only = os.statvfs_result((4096, 4096, 100, 50, 50, 0, 0, 0, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)
    lines.append(shown("disk read-only", check("disk:/usr")))
    monkeypatch.undo()
    for state in ("emergency_ro", "shutdown"):
        mount = f"42 27 7:0 / / rw - ext4 /dev/loop0 rw,{state}"
        lines.append(f"disk after an error: {error_state(os.makedev(7, 0), parse_mounts([mount]))}")
    lines.append(shown("exec missing", check("exec:/no/such/program")))
    scripts = {
        "exec 1": "exit 1",
        "exec 1, output": "echo no peers; exit 1",
        "exec 75": "echo block 12 of 40; exit 75",
        "exec signal": "kill -TERM $$",
    }
    lines += [shown(label, check("exec:", argv=["/bin/sh", "-c", script])) for label, script in scripts.items()]
    lines.append(shown("heartbeat", check("heartbeat:30s")))
    snapshot("files_and_programs", "\n".join(lines))


def generator() -> Iterable[None]:
    yield


async def cancelled() -> None:
    raise asyncio.CancelledError


def test_reasons_of_functions(snapshot: Snapshot) -> None:
    functions: dict[str, Callable[[], Any]] = {
        "False": lambda: False,
        "error": lambda: 1 / 0,
        "generator": lambda: generator(),  # noqa: PLW0108  the call runs nothing
        "map": lambda: map(int, []),
        "function": lambda: print,
        "outcome": lambda: Outcome.NOT_READY,
        "status": lambda: Status.DOWN,
        "tuple": lambda: (False, "no connection"),
        "exception": lambda: ValueError("no connection"),
        "cancelled": cancelled,
    }
    lines = [line(label, asyncio.run(FunctionProbe(function).check())) for label, function in functions.items()]
    lines.append(line("still running", asyncio.run(_still_running())))
    for value in (5, generator):
        with pytest.raises(SvcnodeError) as caught:
            FunctionProbe(value)  # type: ignore[arg-type]
        lines.append(str(caught.value))
    text = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"<function \1>", "\n".join(lines))
    snapshot("functions", text)


async def _still_running() -> Verdict:
    started, may_end = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        may_end.wait(60.0)

    probe = FunctionProbe(hang)
    first = asyncio.create_task(probe.check())
    await asyncio.to_thread(started.wait, 60.0)
    verdict = await probe.check()
    may_end.set()
    await first
    return verdict


def test_errors_of_entry_points(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svcnode.version.checkout_folder", lambda: None)
    targets = {
        "invalid": "module.Class",
        "missing module": "no_such_module:Kind",
        "missing driver": "no_such_module:Kind [redis]",
        "missing class": "svcnode.probes.tcp:NoSuchProbe",
        "not a kind": "svcnode.probes:make_probe",
    }
    lines = []
    for label, target in targets.items():
        monkeypatch.setitem(KINDS, "moon", target)
        with pytest.raises(SvcnodeError) as caught:
            make_probe("moon:x")
        lines.append(f"{label:<16} {caught.value}")
    snapshot("entry_point_errors", "\n".join(lines))
