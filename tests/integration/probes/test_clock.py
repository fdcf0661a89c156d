"""clock: against a real chrony, scripted time servers, and states of the kernel."""

from __future__ import annotations

import asyncio
import ctypes
import errno
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ProbeError
from svcnode.probes import clock, make_probe
from svcnode.probes.clock import KernelClock, TimeQuestion
from tests.support.backends import closed_port
from tests.support.datagrams import UdpBackend, sntp_answer
from tests.support.servers.base import module_server
from tests.support.servers.chrony import ChronyServer, UnsynchronizedChronyServer
from tests.support.verdicts import READY, failed, unknown

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.core.model import Verdict
    from tests.support.check_runner import CheckRunner, FakeResolver

UNSYNCHRONIZED = failed(ReasonCode.CLOCK_UNSYNCHRONIZED)
SKEW = failed(ReasonCode.CLOCK_SKEW)


# ---- the kernel


def check_kernel(monkeypatch: pytest.MonkeyPatch, state: KernelClock | OSError, **options: object) -> Verdict:
    def read() -> KernelClock:
        if isinstance(state, OSError):
            raise state
        return state

    monkeypatch.setattr(clock, "read_kernel_clock", read)
    return asyncio.run(make_probe({"url": "clock:", **options}).check())


@pytest.mark.parametrize(
    ("is_synchronized", "max_error_s", "verdict"),
    [
        (True, 0.01, READY),
        (True, 1.1, READY),  # the most of systemd-timesyncd
        (True, 2.1, UNSYNCHRONIZED),
        (False, 0.01, UNSYNCHRONIZED),
        (False, 16.0, UNSYNCHRONIZED),
    ],
)
def test_the_state_of_the_kernel_decides(
    monkeypatch: pytest.MonkeyPatch, is_synchronized: bool, max_error_s: float, verdict: object
) -> None:
    assert check_kernel(monkeypatch, KernelClock(is_synchronized, max_error_s)) == verdict


def test_the_bound_of_the_error_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_kernel(monkeypatch, KernelClock(True, 0.2), max_error="100ms") == UNSYNCHRONIZED
    assert check_kernel(monkeypatch, KernelClock(True, 9.0), max_error="10s") == READY


def test_a_kernel_that_does_not_tell_is_unknown_unless_a_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container or a sandbox that denies the call."""
    refused = PermissionError(errno.EPERM, "Operation not permitted")
    assert check_kernel(monkeypatch, refused) == unknown(ReasonCode.PERMISSION_DENIED)
    with UdpBackend(lambda request: [sntp_answer(request)]) as server:
        assert check_kernel(monkeypatch, refused, server=server.address) == READY


def test_a_system_without_the_call_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    assert asyncio.run(make_probe("clock:").check()) == unknown(ReasonCode.NOT_SUPPORTED)


def test_this_kernel_is_asked() -> None:
    """The machine of the tests may be synchronized or not."""
    state = clock.read_kernel_clock()
    assert 0 <= state.max_error_s <= 16  # NTP_PHASE_LIMIT of Linux
    expected = READY if state.is_synchronized and state.max_error_s < 2 else UNSYNCHRONIZED
    assert asyncio.run(make_probe("clock:").check()) == expected


def test_a_clock_that_is_not_synchronized_is_failed_whatever_the_server_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with UdpBackend(lambda request: [sntp_answer(request)]) as server:
        state = KernelClock(False, 16.0)
        assert check_kernel(monkeypatch, state, server=server.address) == UNSYNCHRONIZED
        assert check_kernel(monkeypatch, state, server=server.address, kernel=False) == READY


# ---- a time server


server = module_server(ChronyServer)


def test_a_real_server_is_asked(check: CheckRunner, server: ChronyServer) -> None:
    options: dict[str, Any] = {"server": f"127.0.0.1:{server.port}", "kernel": False}
    assert check.leaks_nothing("clock:", **options) == READY
    assert check.steps("clock:", **options) == [("ask time server", "127.0.0.1", True)]
    assert check("clock:", **{**options, "server": f"localhost:{server.port}"}) == READY


def test_a_real_server_that_is_not_synchronized_itself_is_unknown(check: CheckRunner, tmp_path: Path) -> None:
    with UnsynchronizedChronyServer(tmp_path) as unsynchronized:
        verdict = check("clock:", server=f"127.0.0.1:{unsynchronized.port}", kernel=False)
    assert verdict == unknown(ReasonCode.UNHEALTHY)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ({}, READY),
        ({"ahead_s": 0.3}, READY),
        ({"ahead_s": 5}, SKEW),
        ({"ahead_s": -5}, SKEW),
        ({"ahead_s": 86_400 * 365}, SKEW),
        ({"leap": 3}, unknown(ReasonCode.UNHEALTHY)),
        ({"stratum": 16}, unknown(ReasonCode.UNHEALTHY)),
        ({"stratum": 0, "reference": b"RATE"}, unknown(ReasonCode.RATE_LIMITED)),
        ({"stratum": 0, "reference": b"DENY"}, unknown(ReasonCode.CLIENT_NOT_ALLOWED)),
        ({"stratum": 0, "reference": b"\n\xff"}, unknown(ReasonCode.UNHEALTHY)),
        ({"origin": bytes(8)}, unknown(ReasonCode.PROTOCOL_ERROR)),
        ({"mode": 3}, unknown(ReasonCode.PROTOCOL_ERROR)),
    ],
)
def test_the_answer_decides(check: CheckRunner, answer: dict[str, Any], verdict: object) -> None:
    with UdpBackend(lambda request: [sntp_answer(request, **answer)]) as backend:
        assert check("clock:", server=backend.address, kernel=False) == verdict


def test_garbage_is_unknown_but_does_not_hide_the_answer_that_follows_it(check: CheckRunner) -> None:
    with UdpBackend(lambda _: [b"", b"SSH-2.0", bytes(48)]) as backend:
        assert check("clock:", server=backend.address, kernel=False) == unknown(ReasonCode.PROTOCOL_ERROR)
    with UdpBackend(lambda request: [bytes(48), sntp_answer(request)]) as backend:
        assert check("clock:", server=backend.address, kernel=False) == READY


def test_a_server_that_does_not_answer_is_unknown(check: CheckRunner) -> None:
    """Nothing is learned about the clock of this machine."""
    with UdpBackend(lambda _: []) as backend:
        verdict = check.times_out("clock:", "ask time server", server=backend.address, kernel=False)
        assert verdict == unknown(ReasonCode.TIMEOUT)
    with closed_port() as port:
        verdict = check("clock:", server=f"127.0.0.1:{port}", kernel=False)
        assert verdict == unknown(ReasonCode.CONNECTION_REFUSED)


def test_a_lost_datagram_is_sent_again(check: CheckRunner) -> None:
    with UdpBackend(lambda request: [sntp_answer(request)] if backend.request_count > 1 else []) as backend:
        assert check("clock:", server=backend.address, kernel=False) == READY


def test_the_next_address_of_a_name_is_asked(check: CheckRunner, resolver: FakeResolver) -> None:
    resolver.addresses["ntp.example"] = ["127.0.0.2", "127.0.0.1"]
    with UdpBackend(lambda request: [sntp_answer(request)]) as backend:
        assert check("clock:", server=f"ntp.example:{backend.port}", kernel=False) == READY
    resolver.addresses.clear()
    assert check("clock:", server="ntp.example", kernel=False) == unknown(ReasonCode.HOST_NOT_FOUND)


def test_an_answer_that_took_longer_than_the_bound_measures_nothing(
    check: CheckRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = TimeQuestion.encode

    def encode_early(question: TimeQuestion) -> bytes:
        data = encode(question)
        question._sent_at_s = {number: sent_s - 1.2 for number, sent_s in question._sent_at_s.items()}
        return data

    monkeypatch.setattr(TimeQuestion, "encode", encode_early)
    with UdpBackend(lambda request: [sntp_answer(request)]) as backend:
        assert check("clock:", server=backend.address, kernel=False) == unknown(ReasonCode.SLOW)
        assert check("clock:", server=backend.address, kernel=False, max_offset="2s") == READY
    with UdpBackend(lambda request: [sntp_answer(request, ahead_s=9)]) as backend:
        assert check("clock:", server=backend.address, kernel=False) == SKEW


def test_timestamps_after_2036_are_understood() -> None:
    for year_s in (2_000_000_000.0, 2_100_000_000.0, 4_200_000_000.0):  # 2033, 2036, 2103
        timestamp = int((year_s + 2_208_988_800) * 2**32) & (2**64 - 1)
        assert clock._unix_time_s(timestamp, year_s + 1000) == pytest.approx(year_s, abs=0.001)


@pytest.mark.parametrize(
    "config",
    [
        "clock://ntp.example",
        "clock:/x",
        {"url": "clock:", "kernel": False},
        {"url": "clock:", "server": "a/b"},
        {"url": "clock:", "server": "a:b"},
        {"url": "clock:", "server": "user@a"},
        {"url": "clock:", "max_offset": "0s"},
    ],
)
def test_an_invalid_configuration_is_rejected(config: Any) -> None:
    with pytest.raises(ProbeError):
        make_probe(config)
