"""What a command says with sd_notify(3), and what `svcnode run` reports of it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import _notifications
from svcnode.cli._notifications import NotificationSocket, Notified, Phase, Report, passed_on
from svcnode.cli.run import Sent, due_s
from svcnode.core.text import MAX_REASON_CHARS

if TYPE_CHECKING:
    from pathlib import Path

WATCHDOG_S = 30.0


def heard(*messages: bytes, before: Notified | None = None) -> Notified:
    """At the time 0."""
    notified = Notified(phase=Phase.STARTING, watchdog_s=WATCHDOG_S) if before is None else before
    for message in messages:
        notified = notified.after(message, 0.0)
    return notified


@pytest.mark.parametrize(
    ("messages", "status", "code"),
    [
        ([], "initializing", "starting"),
        ([b"STATUS=loading"], "initializing", "starting"),
        ([b"READY=1"], "up", None),
        ([b"READY=1\0"], "up", None),
        ([b"STATUS=x\nREADY=1\nMAINPID=7"], "up", None),
        ([b"READY=1", b"RELOADING=1\nMONOTONIC_USEC=5"], "up", None),
        ([b"RELOADING=1"], "initializing", "starting"),
        ([b"WATCHDOG=1"], "initializing", "starting"),
        ([b"READY=1", b"STOPPING=1"], "down", "shutting_down"),
        ([b"READY=1", b"STOPPING=1", b"WATCHDOG=1"], "down", "shutting_down"),
        ([b"STOPPING=1\nREADY=1"], "down", "shutting_down"),
        ([b"STOPPING=1", b"READY=1"], "up", None),
        ([b"READY=1", b"WATCHDOG=trigger", b"WATCHDOG=1"], "down", "unhealthy"),
        ([b"WATCHDOG=1\nWATCHDOG=trigger", b"READY=1"], "up", None),
    ],
)
def test_a_service_is_what_its_program_says(messages: list[bytes], status: str, code: str | None) -> None:
    report = heard(*messages).report(0.0)
    assert (report.status, report.code) == (status, code)


@pytest.mark.parametrize(
    "message",
    [b"", b"\n", b"=", b"ready=1", b"READY", b"READY=0", b"READY=11", b"\xff\0\n=\xfe", b"STOPPING=2", b"READY =1"],
)
def test_what_is_no_message_changes_nothing(message: bytes) -> None:
    for before in (heard(), heard(b"READY=1")):
        assert before.after(message, 1.0) == before


def test_silence_of_the_watchdog_is_down_until_the_next_sign_of_life() -> None:
    notified = heard().after(b"READY=1", 100.0)
    assert notified.report(100.0 + WATCHDOG_S - 0.1).status == "up"
    assert notified.report(100.0 + WATCHDOG_S).code == "ttl_expired"
    assert notified.report(100.0 + WATCHDOG_S).status == "down"
    assert notified.after(b"STATUS=busy", 129.0).report(130.0).status == "down", "only WATCHDOG=1 is a sign of life"
    assert notified.after(b"WATCHDOG=1", 129.0).report(140.0).status == "up"
    assert notified.after(b"WATCHDOG=1", 150.0).report(150.0).status == "up"
    assert Notified().report(1e9).status == "up", "without --watchdog"


def test_the_reason_is_what_the_program_says_on_one_line() -> None:
    assert heard(b"READY=1\nSTATUS=block 812").report(0.0).reason == "block 812"
    assert heard(b"READY=1\nSTATUS=a", b"STATUS=").report(0.0).reason == ""
    said = heard(b"STATUS=\xff\x1b[2J" + b"x" * 60_000, b"ERRNO=28\nEXIT_STATUS=3").report(0.0).reason
    assert said.startswith("starting; errno 28 (no space left on device); exit status 3: \\xff\\x1b[2J")
    assert len(said) == MAX_REASON_CHARS
    failed = heard(b"ERRNO=28")
    assert "errno" not in failed.after(b"READY=1", 0.0).report(0.0).reason
    for wrong in (b"ERRNO=", b"ERRNO=x", b"ERRNO=-1", b"ERRNO=9999", b"EXIT_STATUS=\xc2\xb2"):
        assert heard(wrong).report(0.0).reason == "starting"


def test_a_new_status_is_reported_at_once_and_a_new_reason_once_a_second() -> None:
    sent = Sent(Report("up", "a"), at_s=100.0, is_received=True)
    assert due_s(Report("up", "a"), None, 20.0) < 0
    assert due_s(Report("up", "a"), sent, 20.0) == 120.0
    assert due_s(Report("up", "b"), sent, 20.0) == 101.0
    assert due_s(Report("down", "a"), sent, 20.0) < 0
    lost = sent._replace(is_received=False)
    assert due_s(Report("up", "a"), lost, 20.0) == 101.0
    assert due_s(Report("down", "a"), lost, 20.0) < 0, "also if the last report has not arrived"


def test_systemd_is_told_what_it_needs_and_nothing_about_other_processes() -> None:
    assert passed_on(b"READY=1\nMAINPID=7\nSTATUS=\xff\nFDSTORE=1") == (b"READY=1\nSTATUS=\xff", True)
    assert passed_on(b"WATCHDOG=1") == (b"WATCHDOG=1", False)
    assert passed_on(b"BARRIER=1") == (b"", False)


def receive(path: Path, *messages: bytes) -> tuple[list[bytes], list[int]]:
    """The messages of a sender, and the users that are strangers."""
    received: list[bytes] = []
    strangers: list[int] = []
    with (
        NotificationSocket(str(path), received.append, strangers.append),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        for message in messages:
            sender.sendto(message, str(path))
    return received, strangers


def test_every_message_is_received_before_the_socket_is_closed(tmp_path: Path) -> None:
    messages = [b"READY=1", b"", b"x" * 200_000, b"STOPPING=1"]
    received, strangers = receive(tmp_path / "notify", *messages)
    assert [len(message) for message in received] == [7, 0, _notifications.MAX_MESSAGE_BYTES, 10]
    assert not strangers


def test_file_descriptors_are_closed_so_that_a_barrier_does_not_wait(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with (
        NotificationSocket(path, lambda _: None, lambda _: None),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.connect(path)
        for _ in range(3):
            read, write = os.pipe()
            socket.send_fds(sender, [b"BARRIER=1"], [write] * 200)
            os.close(write)
            assert os.read(read, 1) == b"", "the end of the file: no other process has it open"
            os.close(read)


def test_messages_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_notifications, "trusted_users", lambda: {os.getuid() + 1})
    assert receive(tmp_path / "notify", b"READY=1", b"READY=1") == ([], [os.getuid()])
