"""SessionProbe and LoginProbe, tested with a probe that records the calls."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Verdict
from svcnode.core.url import Url
from svcnode.net.connect import REUSE_STEP_DETAIL
from svcnode.net.trace import record_steps
from svcnode.probes.base import CheckError
from svcnode.probes.session import LoginProbe, driver_error_text
from tests.support.verdicts import (
    CONNECTION_CLOSED,
    CONNECTION_REFUSED,
    NO_DESCRIPTORS,
    ExpectedVerdict,
    failed,
    not_ready,
    unknown,
)

if TYPE_CHECKING:
    from collections.abc import Callable

READY = Verdict.ready()
NOT_READY = Verdict.not_ready("loading")
FAILED = Verdict.failed("broken")
UNKNOWN = Verdict.unknown("not known")
DRIVER_ERROR = failed(ReasonCode.OTHER)


class DriverError(Exception):
    """The error of a driver."""


def wrapped(*layers: BaseException) -> Exception:
    """The first error, raised from the second, and so on."""
    for outer, inner in pairwise(layers):
        outer.__cause__ = inner
    assert isinstance(layers[0], Exception)
    return layers[0]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecordingProbe(LoginProbe[str]):
    """Records its calls. Its connections have the names a, b, c and so on.

    `opens`, `checks` and `disconnects` are scripts: a verdict to return, an error to raise, or "hang". The last entry
    is repeated.
    """

    opens: list[Any] = field(default_factory=lambda: ["ok"])
    checks: list[Any] = field(default_factory=lambda: [READY])
    disconnects: Any = "ok"
    calls: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: list("zyxwvutsrqponmlkjihgfedcba"))

    async def open(self) -> str:
        self.calls.append("open")
        await _play(_next(self.opens))
        return self.names.pop()

    async def check_connection(self, connection: str) -> Verdict:
        self.calls.append(f"check {connection}")
        verdict = await _play(_next(self.checks))
        assert isinstance(verdict, Verdict)
        return verdict

    async def disconnect(self, connection: str) -> None:
        self.calls.append(f"disconnect {connection}")
        await _play(self.disconnects)

    def abort(self, connection: str) -> None:
        self.calls.append(f"abort {connection}")

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        if "starting" in str(exc):
            return Verdict.not_ready(driver_error_text(exc), code=ReasonCode.STARTING)
        return super(RecordingProbe, self).verdict_for_driver_error(exc)


def _next(script: list[Any]) -> object:
    return script.pop(0) if len(script) > 1 else script[0]


async def _play(entry: object) -> object:
    await asyncio.sleep(0)
    if isinstance(entry, BaseException):
        raise entry
    if entry == "hang":
        await asyncio.Event().wait()
    return entry


def make(url: str = "db://127.0.0.1:1/ledger", **options: Any) -> RecordingProbe:
    return RecordingProbe(Url.parse(url), **options)


def failing(method: str, error: Exception) -> RecordingProbe:
    return make(opens=[error]) if method == "opens" else make(checks=[error])


def run_checks(probe: RecordingProbe, times: int = 1) -> list[Verdict]:
    async def scenario() -> list[Verdict]:
        return [await probe.check() for _ in range(times)]

    return asyncio.run(scenario())


def run_one(probe: RecordingProbe) -> Verdict:
    (verdict,) = run_checks(probe)
    return verdict


RESET = ConnectionResetError()
REUSE = {"reuse": True}
FULL = ["open", "check a", "disconnect a", "abort a"]
SEQUENCES: list[tuple[dict[str, Any], list[Verdict | ExpectedVerdict], list[str]]] = [
    ({}, [READY, READY], [*FULL, "open", "check b", "disconnect b", "abort b"]),
    ({"checks": [NOT_READY]}, [NOT_READY], FULL),
    ({"checks": [FAILED]}, [FAILED], ["open", "check a", "abort a"]),
    ({"checks": [UNKNOWN]}, [UNKNOWN], ["open", "check a", "abort a"]),
    ({"checks": [DriverError("gone")]}, [DRIVER_ERROR], ["open", "check a", "abort a"]),
    ({"opens": [DriverError("no such user")]}, [DRIVER_ERROR], ["open"]),
    # An error while disconnecting does not change the verdict.
    ({"disconnects": DriverError("gone")}, [READY], FULL),
    ({"disconnects": EOFError()}, [READY], FULL),
    # With reuse, a connection is used again, but only after a success.
    (REUSE, [READY] * 3, ["open", "check a", "check a", "check a"]),
    (REUSE | {"checks": [NOT_READY, READY]}, [NOT_READY, READY, READY], [*FULL, "open", "check b", "check b"]),
    (REUSE | {"checks": [UNKNOWN, READY]}, [UNKNOWN, READY], ["open", "check a", "abort a", "open", "check b"]),
    # A verdict on a reused connection is final; after an error there is one retry on a new connection.
    (REUSE | {"checks": [READY, FAILED, READY]}, [READY, FAILED], ["open", "check a", "check a", "abort a"]),
    (
        REUSE | {"checks": [READY, RESET, READY]},
        [READY] * 3,
        ["open", "check a", "check a", "abort a", "open", "check b", "check b"],
    ),
    (
        REUSE | {"checks": [READY, EOFError(), DriverError("gone")]},
        [READY, DRIVER_ERROR],
        ["open", "check a", "check a", "abort a", "open", "check b", "abort b"],
    ),
    (
        REUSE | {"checks": [READY, EOFError()], "opens": ["ok", DriverError("too many clients")]},
        [READY, DRIVER_ERROR],
        ["open", "check a", "check a", "abort a", "open"],
    ),
]


@pytest.mark.parametrize(("options", "verdicts", "calls"), SEQUENCES)
def test_the_verdicts_and_the_calls_of_checks_in_a_row(
    options: dict[str, Any], verdicts: list[Verdict | ExpectedVerdict], calls: list[str]
) -> None:
    probe = make(**deepcopy(options))
    assert run_checks(probe, len(verdicts)) == verdicts
    assert probe.calls == calls


def test_a_reused_connection_is_a_step() -> None:
    with record_steps() as steps:
        run_checks(make(reuse=True), 2)
    assert [(step.name, step.detail) for step in steps] == [
        ("exchange", ""),
        ("reuse", REUSE_STEP_DETAIL),
        ("exchange", ""),
    ]
    assert all(step.is_done for step in steps)


def test_close_aborts_the_cached_connection() -> None:
    async def scenario() -> None:
        await probe.check()
        probe.close()
        probe.close()
        await probe.check()

    probe = make(reuse=True)
    asyncio.run(scenario())
    assert probe.calls == ["open", "check a", "abort a", "open", "check b"]


def test_a_connection_of_another_event_loop_is_not_used() -> None:
    probe = make(reuse=True)
    assert run_checks(probe, 2) == run_checks(probe, 2) == [READY, READY]
    assert probe.calls == ["open", "check a", "check a", "open", "check b", "check b"]


def test_concurrent_checks_do_not_share_a_connection_and_only_one_is_kept() -> None:
    async def scenario() -> None:
        await probe.check()
        await asyncio.gather(probe.check(), probe.check())
        await probe.check()

    probe = make(reuse=True)
    asyncio.run(scenario())
    aborted = [line for line in probe.calls if line.startswith("abort")]
    assert (probe.calls.count("open"), len(aborted)) == (2, 1)
    assert aborted[0].replace("abort", "check") != probe.calls[-1]


async def cancel(probe: RecordingProbe) -> None:
    task = asyncio.ensure_future(probe.check())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


def test_a_check_that_is_cancelled_on_a_reused_connection_aborts_it_and_does_not_retry() -> None:
    async def scenario() -> None:
        await probe.check()
        await cancel(probe)
        probe.checks[:] = [READY]
        await probe.check()

    probe = make(reuse=True, checks=[READY, "hang"])
    asyncio.run(scenario())
    assert probe.calls == ["open", "check a", "check a", "abort a", "open", "check b"]


def test_a_check_that_is_cancelled_while_it_disconnects_aborts_its_connection() -> None:
    probe = make(disconnects="hang")
    asyncio.run(cancel(probe))
    assert probe.calls == ["open", "check a", "disconnect a", "abort a"]


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
NO_FILES = OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("method", ["opens", "checks"])
@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (lambda: REFUSED, CONNECTION_REFUSED),
        (lambda: NO_FILES, NO_DESCRIPTORS),
        (lambda: socket.gaierror(socket.EAI_AGAIN, "x"), unknown(ReasonCode.RESOLVER_FAILED)),
        (EOFError, CONNECTION_CLOSED),
        (lambda: asyncio.IncompleteReadError(b"x", 5), CONNECTION_CLOSED),
        (lambda: DriverError("no such user"), DRIVER_ERROR),
        (lambda: DriverError("still starting"), not_ready(ReasonCode.STARTING)),
        (lambda: CheckError("no leader", ReasonCode.NO_LEADER), failed(ReasonCode.NO_LEADER)),
        (lambda: KeyError("role"), DRIVER_ERROR),
    ],
    ids=["refused", "no files", "resolver", "end", "incomplete", "driver", "starting", "check error", "other"],
)
def test_an_error_becomes_a_verdict(method: str, error: Callable[[], Exception], verdict: ExpectedVerdict) -> None:
    assert run_one(failing(method, error())) == verdict


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    ("inner", "verdict"),
    [(REFUSED, CONNECTION_REFUSED), (NO_FILES, NO_DESCRIPTORS), (EOFError(), CONNECTION_CLOSED)],
    ids=["refused", "no files", "end"],
)
def test_the_error_of_the_system_is_found_behind_that_of_the_driver(
    depth: int, inner: BaseException, verdict: ExpectedVerdict
) -> None:
    error = wrapped(*(DriverError("cannot connect") for _ in range(depth)), inner)
    assert run_one(make(opens=[error])) == verdict


@pytest.mark.parametrize("method", ["opens", "checks"])
@pytest.mark.parametrize("error", [MemoryError(), OptionError("ca", "cannot read ca.pem")])
def test_a_fault_of_this_machine_is_raised(method: str, error: Exception) -> None:
    """The caller turns it into `unknown`."""
    with pytest.raises(type(error)):
        run_one(failing(method, error))


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no such user", "no such user"),
        ("  FATAL:\n  no such\tuser\r\n", "FATAL: no such user"),
        ("\x1b[31mno\x07such user", r"\x1b[31mno\x07such user"),
        ("", "DriverError"),
        ("\n ", "DriverError"),
        ("x" * 300, "x" * 300),
        ("x" * 301, "x" * 299 + "…"),
    ],
)
def test_the_message_of_a_driver_is_one_line_of_limited_length(message: str, shown: str) -> None:
    assert driver_error_text(DriverError(message)) == shown


@pytest.mark.parametrize(
    ("url", "options", "credentials"),
    [
        ("db://127.0.0.1", {}, ("", "")),
        ("db://me:hunter22@127.0.0.1", {}, ("me", "hunter22")),
        ("db://127.0.0.1", {"username": "me", "password": "hunter22"}, ("me", "hunter22")),
        ("db://me@127.0.0.1", {"password": "hunter22"}, ("me", "hunter22")),
        ("db://:hunter22@127.0.0.1", {"username": "me"}, ("me", "hunter22")),
    ],
)
def test_credentials_are_in_the_url_or_in_the_options(
    url: str, options: dict[str, str], credentials: tuple[str, str]
) -> None:
    assert make(url, **options).credentials() == credentials
