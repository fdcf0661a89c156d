"""Reasons of the probes of the host: clock, disk, dns, icmp, systemd and Unix sockets."""

from __future__ import annotations

import asyncio
import errno
import re
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import dns.message
import dns.rcode
import dns.rrset

from svcnode.core.url import Url
from svcnode.probes import clock, file_system, make_probe
from svcnode.probes.clock import KernelClock
from svcnode.probes.file_system import Mount, MountMemory
from svcnode.probes.icmp import EchoQuestion
from svcnode.probes.systemd import SystemdProbe
from tests.support.datagrams import UdpBackend, sntp_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from svcnode.core.model import Verdict
    from tests.wording.conftest import Snapshot


def check(url: str, **options: Any) -> Verdict:
    return asyncio.run(make_probe({"url": url, **options}).check())


def line(label: str, verdict: Verdict, *hidden: tuple[str, str]) -> str:
    reason = verdict.reason
    for text, name in hidden:
        reason = reason.replace(text, name)
    return f"{label:<22} {verdict.outcome.value:<9} {verdict.code:<21} {reason}"


def raising(error: OSError) -> Callable[..., Any]:
    def function(*_: object) -> Any:
        raise error

    return function


def answer_once(answer: dict[str, Any], request: bytes) -> list[bytes]:
    return [sntp_answer(request, **answer)]


def test_reasons_of_the_clock(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    for label, state in (("not synchronized", KernelClock(False, 16.0)), ("error", KernelClock(True, 3.21))):
        monkeypatch.setattr(clock, "read_kernel_clock", lambda state=state: state)
        lines.append(line(label, check("clock:")))
    monkeypatch.setattr(clock, "read_kernel_clock", raising(PermissionError(errno.EPERM, "Operation not permitted")))
    lines.append(line("refused", check("clock:")))
    answers: dict[str, dict[str, Any]] = {
        "behind": {"ahead_s": 5},
        "ahead": {"ahead_s": -5},
        "server not synced": {"leap": 3},
        "kiss-o'-death": {"stratum": 0, "reference": b"RATE"},
        "other request": {"origin": bytes(8)},
    }
    for label, answer in answers.items():
        with UdpBackend(partial(answer_once, answer)) as backend:
            verdict = check("clock:", server=backend.address)
            lines.append(re.sub(r"[45]\.\d{3} s", "5.000 s", line(label, verdict, (backend.address, "ADDRESS"))))
    snapshot("clock", "\n".join(lines))


def test_reasons_of_dns(snapshot: Snapshot) -> None:
    def answering(rcode: str, *records: str) -> Callable[[bytes], list[bytes]]:
        def answer(data: bytes) -> list[bytes]:
            response = dns.message.make_response(dns.message.from_wire(data))
            response.set_rcode(dns.rcode.from_text(rcode))
            response.answer += [dns.rrset.from_text("one.example.", 60, "IN", "A", record) for record in records]
            return [response.to_wire()]

        return answer

    cases: dict[str, tuple[Callable[[bytes], list[bytes]], dict[str, Any]]] = {
        "missing": (answering("NXDOMAIN"), {}),
        "failure": (answering("SERVFAIL"), {}),
        "refused": (answering("REFUSED"), {}),
        "empty": (answering("NOERROR"), {"type": "TXT"}),
        "wrong": (answering("NOERROR", "10.0.0.1"), {"expect": ["10.0.0.2", "10.0.0.3"]}),
        "lame": (answering("NOERROR", "10.0.0.1"), {"authoritative": True}),
        "other question": (lambda data: [data], {}),
        "garbage": (lambda _: [b"x"], {}),
    }
    lines = []
    for label, (answer, options) in cases.items():
        with UdpBackend(answer) as backend:
            verdict = check(f"dns://{backend.address}/one.example", **options)
        lines.append(line(label, verdict, (backend.address, "ADDRESS")))
    snapshot("dns", "\n".join(lines))


def test_the_reason_of_a_refused_ping(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    error = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr("svcnode.probes.icmp.socket.socket", raising(error))
    try:
        EchoQuestion().open_socket(2)  # type: ignore[arg-type]  # AF_INET
    except OSError as exc:
        snapshot("icmp", str(exc))


def test_reasons_of_systemd(snapshot: Snapshot) -> None:
    probe = SystemdProbe(url=Url.parse("systemd:validator"))
    states = {
        "starting": {"ActiveState": "activating", "SubState": "start"},
        "restarting": {"ActiveState": "activating", "SubState": "auto-restart", "Result": "exit-code"},
        "stopping": {"ActiveState": "deactivating", "SubState": "stop"},
        "failed": {"ActiveState": "failed", "SubState": "failed", "Result": "oom-kill"},
        "inactive": {"ActiveState": "inactive", "SubState": "dead"},
        **{
            load: {"LoadState": load, "ActiveState": "inactive", "SubState": "dead"} for load in ("not-found", "masked")
        },
        **{
            load: {"LoadState": load, "ActiveState": "inactive", "SubState": "dead"}
            for load in ("bad-setting", "error")
        },
    }
    lines = [line(label, probe._verdict({"LoadState": "loaded", **state})) for label, state in states.items()]
    for counter in (0, 4):
        running = {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "NRestarts": counter}
        verdict = probe._verdict(running)
    lines.append(line("restarted", verdict))
    with TemporaryDirectory() as folder:
        verdict = check("systemd:validator", bus=f"{folder}/bus")
    lines.append(line("no bus", verdict, (folder, "DIR")))
    snapshot("systemd", "\n".join(lines))


def test_reasons_of_volumes_that_are_not_mounted(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mounts = [Mount("8:1", "/", "/dev/sda1", ["rw"])]
    memory = MountMemory()
    memory.missing_point("/srv/data", "", [*mounts, Mount("8:2", "/srv/data", "/dev/sdb1", [])], [])
    lines = [
        memory.missing_point("/srv/data", "", mounts, []),
        memory.missing_point("/srv/data", "", mounts, ["UUID=6a22 /srv xfs"]),
        line("mount", check(f"disk:{tmp_path}", mount=True), (str(tmp_path), "DIR")),
    ]
    monkeypatch.setattr(file_system, "_BY_UUID", tmp_path / "missing")
    monkeypatch.setattr(file_system, "_UDEV_DATA", tmp_path / "missing")
    lines.append(line("uuid not known", check(f"disk:{tmp_path}", uuid="6a22-13f4"), (str(tmp_path), "DIR")))
    monkeypatch.setattr(file_system, "_BY_UUID", tmp_path)
    lines.append(line("other uuid", check(f"disk:{tmp_path}", uuid="6a22-13f4"), (str(tmp_path), "DIR")))
    snapshot("disk", "\n".join(lines))


def test_reasons_of_sockets(snapshot: Snapshot) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "file").touch()
        lines = [
            line("missing", check(f"http+unix://{folder}/a.sock:/health?key=x"), (folder, "/DIR")),
            line("not a socket", check(f"ethereum+unix://{folder}/file"), (folder, "/DIR")),
        ]
    snapshot("sockets", "\n".join(lines))
