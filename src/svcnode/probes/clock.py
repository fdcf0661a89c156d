"""`clock:`: the clock of this machine is synchronized, by the kernel and, with `server`, compared with an NTP server.

ready    the kernel says that the clock is synchronized and at most `max_error` wrong, and, with `server`, it differs by
         at most `max_offset` from that of the server
failed   it is not synchronized, or may be more than `max_error` wrong, or differs by more than `max_offset`
unknown  the kernel does not tell, as in some containers, and there is no server; the server cannot be reached, does not
         answer, is not synchronized itself, or its answer took so long that the difference cannot be measured

The kernel adds 500 parts per million to its maximum error until a program that synchronizes the clock resets it. So a
program that has ended shows in the maximum error long before the kernel gives up, at 16 s, after nine hours.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.option_types import option_type, public_text
from svcnode.core.text import one_line, os_error_text
from svcnode.core.url import NO_PATH, Url, UrlError, UrlForm
from svcnode.net.datagram import InvalidAnswerError, UdpQuestion, addresses_of, ask
from svcnode.net.os_errors import (
    CodedOSError,
    InconclusiveError,
    code_for_os_error,
    connection_error_text,
    verdict_for_os_error,
)
from svcnode.net.trace import TIME_SERVER_STEP
from svcnode.probes.base import UrlProbe
from svcnode.probes.options import PositiveSeconds

READY = Verdict.ready()
NTP_PORT = 123


@option_type({"type": "string", "pattern": r"^[^/?#@\s]+$"}, show=str)
def time_server(value: object) -> str:
    """A host, with or without a port."""
    text = public_text(value)
    try:
        _parse_server(text)
    except ProbeError as exc:
        text = f'must be a host with or without a port, such as "ntp.example:123", not "{text}"'
        raise InvalidValueError(text) from exc
    return text


def _parse_server(text: str) -> tuple[str, int]:
    url = Url.parse(f"ntp://{text}", register_secrets=False)
    url.reject_parts(UrlForm(has_credentials=False, path=NO_PATH))
    return url.require_host(), url.port or NTP_PORT


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClockProbe(UrlProbe):
    server: Annotated[str, time_server] = ""
    kernel: bool = True  # False: only the server is asked
    # systemd-timesyncd sets the error to 0 every 2,048 s at the latest; it grows to 1.02 s until then.
    max_error: PositiveSeconds = 2.0
    # Ethereum's consensus specification: messages from more than 500 ms in the future are not forwarded.
    max_offset: PositiveSeconds = 0.5
    _server: tuple[str, int] = field(init=False, compare=False)
    url_form: ClassVar = UrlForm(host="none", path="")

    def __post_init__(self) -> None:
        if self.url.host or self.url.path or self.url.query:
            raise UrlError("path", 'the URL is "clock:"; a server is named by the option server')
        if not (self.kernel or self.server):
            raise OptionError("kernel", "needs server, because otherwise there is nothing to ask")
        object.__setattr__(self, "_server", _parse_server(self.server) if self.server else ("", 0))

    async def check(self) -> Verdict:
        verdict = self._kernel_verdict() if self.kernel else READY
        if verdict.outcome is Outcome.FAILED or not self.server:
            return verdict
        return await self._server_verdict()  # evidence of its own, also if the kernel does not tell

    def _kernel_verdict(self) -> Verdict:
        try:
            state = read_kernel_clock()
        except OSError as exc:
            text = f"the kernel does not tell the state of the clock ({os_error_text(exc)}); set server"
            return Verdict.unknown(text, code=code_for_os_error(exc))
        if not state.is_synchronized:
            return Verdict.failed(
                "the kernel says that the clock is not synchronized", code=ReasonCode.CLOCK_UNSYNCHRONIZED
            )
        if state.max_error_s > self.max_error:
            return Verdict.failed(
                f"the clock may be {state.max_error_s:.3g} s wrong, but max_error is {self.max_error:g} s: it was not "
                "synchronized for some time",
                code=ReasonCode.CLOCK_UNSYNCHRONIZED,
            )
        return READY

    async def _server_verdict(self) -> Verdict:
        try:
            reading, _ = await ask(TimeQuestion(), await addresses_of(*self._server), TIME_SERVER_STEP)
        except OSError as exc:
            return _unknown_verdict(exc, self.server)
        if abs(reading.offset_s) > self.max_offset + reading.error_s:
            side = "behind" if reading.offset_s > 0 else "ahead of"
            return Verdict.failed(
                f"the clock is {abs(reading.offset_s):.3f} s {side} that of {self.server}, but max_offset is "
                f"{self.max_offset:g} s",
                code=ReasonCode.CLOCK_SKEW,
            )
        if abs(reading.offset_s) + reading.error_s > self.max_offset:
            return Verdict.unknown(
                f"the answer of {self.server} took too long: the clock differs by {reading.offset_s:+.3f} s with an "
                f"error of up to {reading.error_s:.3f} s, but max_offset is {self.max_offset:g} s",
                code=ReasonCode.SLOW,
            )
        return READY


def _unknown_verdict(exc: OSError, server: str) -> Verdict:
    """Nothing is learned about the clock of this machine from a server that does not tell the time."""
    if isinstance(exc, InconclusiveError) or code_for_os_error(exc) is ReasonCode.RESOURCE_EXHAUSTED:
        return verdict_for_os_error(exc, server)
    return Verdict.unknown(f"time server {server}: {connection_error_text(exc)}", code=code_for_os_error(exc))


# ---- the kernel

_TIME_ERROR = 5  # the clock is not synchronized
_STA_UNSYNC = 0x0040
_US_PER_S = 1_000_000


class _Timex(ctypes.Structure):
    """`struct timex` of adjtimex(2), up to the fields that are read; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),  # 0: only read
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("others", ctypes.c_char * 512),
    )


class KernelClock(NamedTuple):
    is_synchronized: bool
    max_error_s: float


def read_kernel_clock() -> KernelClock:
    """Raises `OSError` if the system does not allow it, or has no such call."""
    timex = _Timex()
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except AttributeError:
        raise CodedOSError("the system has no adjtimex", ReasonCode.NOT_SUPPORTED) from None
    state = adjtimex(ctypes.byref(timex))
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    is_synchronized = state != _TIME_ERROR and not timex.status & _STA_UNSYNC
    return KernelClock(is_synchronized, timex.maxerror / _US_PER_S)


# ---- SNTP (RFC 5905, RFC 4330)

_PACKET = struct.Struct("!BBBbII4sQQQQ")  # the last four: reference, origin, receive and transmit timestamp
_VERSION, _CLIENT_MODE, _SERVER_MODE = 4, 3, 4
_NOT_SYNCHRONISED = 3  # leap indicator
_MAX_STRATUM = 15
_UNIX_EPOCH_S = 2_208_988_800  # in seconds since 1900
_ERA_S = 1 << 32
_KISS_CODES = {
    "RATE": ReasonCode.RATE_LIMITED,
    "DENY": ReasonCode.CLIENT_NOT_ALLOWED,
    "RSTR": ReasonCode.CLIENT_NOT_ALLOWED,
}


class Reading(NamedTuple):
    offset_s: float  # how much the clock of this machine is behind
    error_s: float  # the most that the offset is wrong: half of the time on the way


class TimeQuestion(UdpQuestion):
    """Each request carries a random number instead of the time, which the server must send back."""

    def __init__(self) -> None:
        self._sent_at_s: dict[int, float] = {}  # by the number

    def encode(self) -> bytes:
        number = int.from_bytes(os.urandom(8)) or 1
        self._sent_at_s[number] = time.time()
        return _PACKET.pack(_VERSION << 3 | _CLIENT_MODE, 0, 0, 0, 0, 0, b"", 0, 0, 0, number)

    def decode(self, data: bytes) -> Reading:
        received_at_s = time.time()
        if len(data) < _PACKET.size:
            raise InvalidAnswerError("the answer is not NTP")
        first, stratum, *_, reference, _, origin, receive, transmit = _PACKET.unpack_from(data)
        if first & 7 != _SERVER_MODE or origin not in self._sent_at_s:
            raise InvalidAnswerError("the answer is not NTP, or answers another request")
        if stratum == 0:
            kiss = one_line(reference.decode("ascii", "replace").rstrip("\0"))
            raise CodedOSError(f'it refuses to answer ("{kiss}")', _KISS_CODES.get(kiss, ReasonCode.UNHEALTHY))
        if first >> 6 == _NOT_SYNCHRONISED or stratum > _MAX_STRATUM or not transmit:
            raise CodedOSError("it is not synchronized itself", ReasonCode.UNHEALTHY)
        to_server_s = _unix_time_s(receive, received_at_s) - self._sent_at_s[origin]
        from_server_s = received_at_s - _unix_time_s(transmit, received_at_s)
        return Reading((to_server_s - from_server_s) / 2, max(0.0, to_server_s + from_server_s) / 2)


def _unix_time_s(timestamp: int, near_s: float) -> float:
    """The seconds of a timestamp have 32 bits and start again in 2036: the time that is nearest is meant."""
    time_s = timestamp / _ERA_S - _UNIX_EPOCH_S
    return time_s + round((near_s - time_s) / _ERA_S) * _ERA_S
