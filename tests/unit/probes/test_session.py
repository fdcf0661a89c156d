"""SessionProbe and LoginProbe, tested with a probe that records the calls."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome, Verdict
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


# ---- a new connection for each check


def test_every_check_opens_checks_disconnects_and_aborts() -> None:
    probe = make()
    assert run_checks(probe, 2) == [READY, READY]
    assert probe.calls == ["open", "check a", "disconnect a", "abort a", "open", "check b", "disconnect b", "abort b"]


def test_a_connection_that_is_not_ready_is_disconnected_too() -> None:
    probe = make(checks=[NOT_READY])
    assert run_one(probe) == NOT_READY
    assert probe.calls == ["open", "check a", "disconnect a", "abort a"]


@pytest.mark.parametrize("verdict", [FAILED, UNKNOWN])
def test_a_failed_connection_is_aborted_without_disconnecting(verdict: Verdict) -> None:
    probe = make(checks=[verdict])
    assert run_one(probe) == verdict
    assert probe.calls == ["open", "check a", "abort a"]


@pytest.mark.parametrize("error", [DriverError("gone"), ConnectionResetError(), EOFError()])
def test_an_error_while_disconnecting_does_not_change_the_verdict(error: Exception) -> None:
    probe = make(disconnects=error)
    assert run_one(probe) == READY
    assert probe.calls == ["open", "check a", "disconnect a", "abort a"]


def test_a_connection_is_aborted_if_the_check_fails() -> None:
    probe = make(checks=[DriverError("gone")])
    assert run_one(probe) == DRIVER_ERROR
    assert probe.calls == ["open", "check a", "abort a"]


def test_a_connection_that_could_not_be_opened_is_not_aborted() -> None:
    probe = make(opens=[DriverError("no such user")])
    assert run_one(probe) == DRIVER_ERROR
    assert probe.calls == ["open"]


# ---- reused connections


def test_with_reuse_one_connection_is_used_for_all_checks() -> None:
    probe = make(reuse=True)
    assert run_checks(probe, 3) == [READY] * 3
    assert probe.calls == ["open", "check a", "check a", "check a"]


@pytest.mark.parametrize("verdict", [NOT_READY, FAILED, UNKNOWN])
def test_a_connection_is_reused_only_after_a_success(verdict: Verdict) -> None:
    probe = make(reuse=True, checks=[verdict, READY])
    assert run_checks(probe, 3) == [verdict, READY, READY]
    assert [line for line in probe.calls if "disconnect" not in line] == [
        "open",
        "check a",
        "abort a",
        "open",
        "check b",
        "check b",
    ]


def test_a_verdict_on_a_reused_connection_is_final() -> None:
    probe = make(reuse=True, checks=[READY, FAILED, READY])
    assert run_checks(probe, 2) == [READY, FAILED]
    assert probe.calls == ["open", "check a", "check a", "abort a"]


@pytest.mark.parametrize("error", [DriverError("gone"), ConnectionResetError(), EOFError()])
def test_an_error_on_a_reused_connection_is_retried_on_a_new_one(error: Exception) -> None:
    probe = make(reuse=True, checks=[READY, error, READY])
    assert run_checks(probe, 3) == [READY] * 3
    assert probe.calls == ["open", "check a", "check a", "abort a", "open", "check b", "check b"]


def test_the_verdict_of_the_retry_is_used() -> None:
    probe = make(reuse=True, checks=[READY, EOFError(), NOT_READY])
    assert run_checks(probe, 2) == [READY, NOT_READY]
    probe = make(reuse=True, checks=[READY, EOFError()], opens=["ok", DriverError("too many clients")])
    assert run_checks(probe, 2) == [READY, DRIVER_ERROR]
    assert probe.calls == ["open", "check a", "check a", "abort a", "open"]


def test_there_is_only_one_retry() -> None:
    probe = make(reuse=True, checks=[READY, EOFError(), DriverError("gone")])
    assert run_checks(probe, 2)[1] == DRIVER_ERROR
    assert probe.calls == ["open", "check a", "check a", "abort a", "open", "check b", "abort b"]


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


# ---- cancelled checks


async def cancel(probe: RecordingProbe) -> None:
    task = asyncio.ensure_future(probe.check())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


def test_a_check_that_is_cancelled_aborts_its_connection() -> None:
    probe = make(checks=["hang"])
    asyncio.run(cancel(probe))
    assert probe.calls == ["open", "check a", "abort a"]


def test_a_check_that_is_cancelled_on_a_reused_connection_aborts_it_and_does_not_retry() -> None:
    async def scenario() -> None:
        await probe.check()
        await cancel(probe)
        probe.checks[:] = [READY]
        await probe.check()

    probe = make(reuse=True, checks=[READY, "hang"])
    asyncio.run(scenario())
    assert probe.calls == ["open", "check a", "check a", "abort a", "open", "check b"]


def test_a_check_that_is_cancelled_while_it_opens_aborts_nothing() -> None:
    probe = make(opens=["hang"])
    asyncio.run(cancel(probe))
    assert probe.calls == ["open"]


def test_a_check_that_is_cancelled_while_it_disconnects_aborts_its_connection() -> None:
    probe = make(disconnects="hang")
    asyncio.run(cancel(probe))
    assert probe.calls == ["open", "check a", "disconnect a", "abort a"]


# ---- errors

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
    [
        (REFUSED, CONNECTION_REFUSED),
        (NO_FILES, NO_DESCRIPTORS),
        (EOFError(), CONNECTION_CLOSED),
    ],
    ids=["refused", "no files", "end"],
)
def test_the_error_of_the_system_is_found_behind_that_of_the_driver(
    depth: int, inner: BaseException, verdict: ExpectedVerdict
) -> None:
    error = wrapped(*(DriverError("cannot connect") for _ in range(depth)), inner)
    assert run_one(make(opens=[error])) == verdict


def test_the_context_of_an_error_is_not_its_cause() -> None:
    error = DriverError("no such user")
    error.__context__ = REFUSED
    assert run_one(make(opens=[error])) == DRIVER_ERROR


@pytest.mark.parametrize("method", ["opens", "checks"])
@pytest.mark.parametrize("error", [MemoryError(), OptionError("ca", "cannot read ca.pem")])
def test_a_fault_of_this_machine_is_raised(method: str, error: Exception) -> None:
    """The caller turns it into `unknown`."""
    with pytest.raises(type(error)):
        run_one(failing(method, error))


def test_a_fault_of_this_machine_on_a_reused_connection_is_raised_by_the_retry() -> None:
    probe = make(reuse=True, checks=[READY, MemoryError()])
    with pytest.raises(MemoryError):
        run_checks(probe, 2)
    assert probe.calls == ["open", "check a", "check a", "abort a", "open", "check b", "abort b"]


# ---- messages of a driver


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


def test_the_message_of_a_driver_has_no_password() -> None:
    probe = make("db://me:hunter22@127.0.0.1", opens=[DriverError("no such password: hunter22")])
    probe.credentials()
    reason = run_one(probe).reason
    assert "hunter22" not in reason
    assert reason.count("***") == 2


# ---- credentials


@pytest.mark.parametrize(
    ("url", "options", "credentials"),
    [
        ("db://127.0.0.1", {}, ("", "")),
        ("db://me:hunter22@127.0.0.1", {}, ("me", "hunter22")),
        ("db://127.0.0.1", {"username": "me", "password": "hunter22"}, ("me", "hunter22")),
        ("db://me@127.0.0.1", {"password": "hunter22"}, ("me", "hunter22")),
        ("db://:hunter22@127.0.0.1", {"username": "me"}, ("me", "hunter22")),
        ("db://m%40e:hunter%2F2@127.0.0.1", {}, ("m@e", "hunter/2")),
    ],
)
def test_credentials_are_in_the_url_or_in_the_options(
    url: str, options: dict[str, str], credentials: tuple[str, str]
) -> None:
    assert make(url, **options).credentials() == credentials


@pytest.mark.parametrize("name", ["username", "password"])
def test_credentials_in_the_url_and_in_the_options_are_rejected(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        make("db://me:hunter22@127.0.0.1", **{name: "hunter23"}).credentials()
    assert caught.value.option == name


# ---- equality


def test_a_cached_connection_does_not_make_probes_different() -> None:
    """Otherwise a reload would restart the probes of unchanged services."""
    one, other = (make(reuse=True, calls=[], names=[], opens=["ok"]) for _ in range(2))
    one.names.append("a")
    other.names.append("a")
    assert one == other
    assert run_one(one).outcome is Outcome.READY
    one.calls.clear()
    one.names.append("a")
    assert one == other
    assert one != make(reuse=False, calls=[], names=["a"], opens=["ok"])
