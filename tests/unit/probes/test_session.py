"""The shape of a kind that talks over a connection, told by one that keeps a diary instead of talking."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import redacted
from svcnode.net.trace import record_steps
from svcnode.net.url import Url
from svcnode.probes.session import LoginProbe, driver_error_text

if TYPE_CHECKING:
    from collections.abc import Callable

READY = Verdict.ready()
NOT_READY = Verdict.not_ready("loading")
FAILED = Verdict.failed("broken")
UNKNOWN = Verdict.unknown("no idea")
REUSED = "the connection of an earlier look"


class DriverError(Exception):
    """What a driver raises."""


def wrapped(*layers: BaseException) -> Exception:
    """The first of them, raised from the second, and so on."""
    for outer, inner in pairwise(layers):
        outer.__cause__ = inner
    assert isinstance(layers[0], Exception)
    return layers[0]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DiaryProbe(LoginProbe[str]):
    """Its connections are called a, b, c …; what happens to them is in the diary, in its order.

    What comes of opening, asking and leaving is a verdict, an error to raise, or "hang"; the last one goes on for ever.
    """

    opens: list[Any] = field(default_factory=lambda: ["ok"])
    asks: list[Any] = field(default_factory=lambda: [READY])
    leaves: Any = "ok"
    diary: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: list("zyxwvutsrqponmlkjihgfedcba"))

    async def open(self) -> str:
        self.diary.append("open")
        await _come(_next(self.opens))
        return self.names.pop()

    async def ask(self, connection: str) -> Verdict:
        self.diary.append(f"ask {connection}")
        verdict = await _come(_next(self.asks))
        assert isinstance(verdict, Verdict)
        return verdict

    async def leave(self, connection: str) -> None:
        self.diary.append(f"leave {connection}")
        await _come(self.leaves)

    def drop(self, connection: str) -> None:
        self.diary.append(f"drop {connection}")

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        if "starting" in str(exc):
            return Verdict.not_ready(driver_error_text(exc))
        return super(DiaryProbe, self).verdict_for_driver_error(exc)


def _next(script: list[Any]) -> object:
    return script.pop(0) if len(script) > 1 else script[0]


async def _come(what: object) -> object:
    await asyncio.sleep(0)  # as whoever waits for an answer does
    if isinstance(what, BaseException):
        raise what
    if what == "hang":
        await asyncio.Event().wait()
    return what


def a_probe(url: str = "db://127.0.0.1:1/ledger", **words: Any) -> DiaryProbe:
    return DiaryProbe(Url.parse(url), **words)


def failing(where: str, fault: Exception) -> DiaryProbe:
    return a_probe(opens=[fault]) if where == "opens" else a_probe(asks=[fault])


def looks(probe: DiaryProbe, times: int = 1) -> list[Verdict]:
    async def story() -> list[Verdict]:
        return [await probe.check() for _ in range(times)]

    return asyncio.run(story())


def look(probe: DiaryProbe) -> Verdict:
    (verdict,) = looks(probe)
    return verdict


# ---- a fresh connection for each look


def test_every_look_opens_asks_says_goodbye_and_drops() -> None:
    probe = a_probe()
    assert looks(probe, 2) == [READY, READY]
    assert probe.diary == ["open", "ask a", "leave a", "drop a", "open", "ask b", "leave b", "drop b"]


def test_one_that_is_not_ready_is_taken_leave_of_as_well() -> None:
    probe = a_probe(asks=[NOT_READY])
    assert look(probe) == NOT_READY
    assert probe.diary == ["open", "ask a", "leave a", "drop a"]


@pytest.mark.parametrize("verdict", [FAILED, UNKNOWN])
def test_one_that_has_failed_is_dropped_without_a_word(verdict: Verdict) -> None:
    probe = a_probe(asks=[verdict])
    assert look(probe) == verdict
    assert probe.diary == ["open", "ask a", "drop a"]


@pytest.mark.parametrize("fault", [DriverError("gone"), ConnectionResetError(), EOFError()])
def test_a_goodbye_that_fails_does_not_spoil_what_was_seen(fault: Exception) -> None:
    probe = a_probe(leaves=fault)
    assert look(probe) == READY
    assert probe.diary == ["open", "ask a", "leave a", "drop a"]


def test_what_was_opened_is_dropped_when_asking_fails() -> None:
    probe = a_probe(asks=[DriverError("gone")])
    assert look(probe) == Verdict.failed("gone: db://127.0.0.1:1/ledger")
    assert probe.diary == ["open", "ask a", "drop a"]


def test_what_could_not_be_opened_is_not_dropped() -> None:
    probe = a_probe(opens=[DriverError("no such user")])
    assert look(probe) == Verdict.failed("no such user: db://127.0.0.1:1/ledger")
    assert probe.diary == ["open"]


def test_a_kind_need_not_say_goodbye() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True, repr=False)
    class Curt(DiaryProbe):
        leave = LoginProbe.disconnect

    probe = Curt(Url.parse("db://127.0.0.1"))
    assert look(probe) == READY
    assert probe.diary == ["open", "ask a", "drop a"]


# ---- a connection that is kept


def test_with_reuse_one_connection_serves_look_after_look() -> None:
    probe = a_probe(reuse=True)
    assert looks(probe, 3) == [READY] * 3
    assert probe.diary == ["open", "ask a", "ask a", "ask a"]


@pytest.mark.parametrize("verdict", [NOT_READY, FAILED, UNKNOWN])
def test_a_connection_is_kept_only_after_a_success(verdict: Verdict) -> None:
    probe = a_probe(reuse=True, asks=[verdict, READY])
    assert looks(probe, 3) == [verdict, READY, READY]
    assert [line for line in probe.diary if "leave" not in line] == [
        "open",
        "ask a",
        "drop a",
        "open",
        "ask b",
        "ask b",
    ]


def test_what_a_kept_connection_shows_counts_without_a_second_opinion() -> None:
    probe = a_probe(reuse=True, asks=[READY, FAILED, READY])
    assert looks(probe, 2) == [READY, FAILED]
    assert probe.diary == ["open", "ask a", "ask a", "drop a"]


@pytest.mark.parametrize("fault", [DriverError("gone"), ConnectionResetError(), EOFError()])
def test_a_kept_connection_that_fails_is_tried_again_on_a_fresh_one(fault: Exception) -> None:
    """The server may have closed it long ago, which says nothing."""
    probe = a_probe(reuse=True, asks=[READY, fault, READY])
    assert looks(probe, 3) == [READY] * 3
    assert probe.diary == ["open", "ask a", "ask a", "drop a", "open", "ask b", "ask b"]


def test_what_the_second_try_shows_is_what_counts() -> None:
    probe = a_probe(reuse=True, asks=[READY, EOFError(), NOT_READY])
    assert looks(probe, 2) == [READY, NOT_READY]
    probe = a_probe(reuse=True, asks=[READY, EOFError()], opens=["ok", DriverError("too many clients")])
    assert looks(probe, 2) == [READY, Verdict.failed("too many clients: db://127.0.0.1:1/ledger")]
    assert probe.diary == ["open", "ask a", "ask a", "drop a", "open"]


def test_there_is_no_third_try() -> None:
    probe = a_probe(reuse=True, asks=[READY, EOFError(), DriverError("gone")])
    assert looks(probe, 2)[1] == Verdict.failed("gone: db://127.0.0.1:1/ledger")
    assert probe.diary == ["open", "ask a", "ask a", "drop a", "open", "ask b", "drop b"]


def test_a_look_on_a_kept_connection_says_so() -> None:
    with record_steps() as steps:
        looks(a_probe(reuse=True), 2)
    assert [(step.name, step.detail) for step in steps] == [("exchange", ""), ("reuse", REUSED), ("exchange", "")]
    assert all(step.is_done for step in steps)


def test_what_is_kept_is_dropped_when_nobody_looks_any_more() -> None:
    async def story() -> None:
        await probe.check()
        probe.close()
        probe.close()
        await probe.check()

    probe = a_probe(reuse=True)
    asyncio.run(story())
    assert probe.diary == ["open", "ask a", "drop a", "open", "ask b"]


def test_without_anything_kept_there_is_nothing_to_let_go_of() -> None:
    async def story() -> None:
        probe.close()
        await probe.check()
        probe.close()

    probe = a_probe()
    asyncio.run(story())
    assert probe.diary == ["open", "ask a", "leave a", "drop a"]


def test_a_connection_of_another_event_loop_is_not_used() -> None:
    """It could not be, nor be closed: its loop is gone, as after a fork."""
    probe = a_probe(reuse=True)
    assert looks(probe, 2) == looks(probe, 2) == [READY, READY]
    assert probe.diary == ["open", "ask a", "ask a", "open", "ask b", "ask b"]


def test_two_looks_at_once_do_not_share_what_is_kept_and_only_one_keeps_its_own() -> None:
    async def story() -> None:
        await probe.check()
        await asyncio.gather(probe.check(), probe.check())
        await probe.check()

    probe = a_probe(reuse=True)
    asyncio.run(story())
    dropped = [line for line in probe.diary if line.startswith("drop")]
    assert (probe.diary.count("open"), len(dropped)) == (2, 1)
    assert dropped[0].replace("drop", "ask") != probe.diary[-1]


# ---- a look that is cut off


async def cut_off(probe: DiaryProbe) -> None:
    task = asyncio.ensure_future(probe.check())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


def test_a_look_that_is_cut_off_while_it_asks_drops_its_connection() -> None:
    probe = a_probe(asks=["hang"])
    asyncio.run(cut_off(probe))
    assert probe.diary == ["open", "ask a", "drop a"]


def test_a_look_that_is_cut_off_on_a_kept_connection_drops_it_and_tries_no_other() -> None:
    async def story() -> None:
        await probe.check()
        await cut_off(probe)
        probe.asks[:] = [READY]
        await probe.check()

    probe = a_probe(reuse=True, asks=[READY, "hang"])
    asyncio.run(story())
    assert probe.diary == ["open", "ask a", "ask a", "drop a", "open", "ask b"]


def test_a_look_that_is_cut_off_while_it_opens_has_nothing_to_drop() -> None:
    probe = a_probe(opens=["hang"])
    asyncio.run(cut_off(probe))
    assert probe.diary == ["open"]


def test_a_look_that_is_cut_off_while_it_says_goodbye_drops_its_connection() -> None:
    probe = a_probe(leaves="hang")
    asyncio.run(cut_off(probe))
    assert probe.diary == ["open", "ask a", "leave a", "drop a"]


# ---- what went wrong, and whose fault it is

REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
NO_FILES = OSError(errno.EMFILE, "Too many open files")
CLOSED = "it closed the connection before it had answered: db://127.0.0.1:1/ledger"


@pytest.mark.parametrize("where", ["opens", "asks"])
@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (lambda: REFUSED, Verdict.failed("connection refused: db://127.0.0.1:1/ledger")),
        (lambda: NO_FILES, Verdict.unknown("this machine cannot look: too many open files")),
        (
            lambda: socket.gaierror(socket.EAI_AGAIN, "x"),
            Verdict.unknown("the resolver failed: db://127.0.0.1:1/ledger"),
        ),
        (EOFError, Verdict.failed(CLOSED)),
        (lambda: asyncio.IncompleteReadError(b"x", 5), Verdict.failed(CLOSED)),
        (lambda: DriverError("no such user"), Verdict.failed("no such user: db://127.0.0.1:1/ledger")),
        (lambda: DriverError("still starting"), Verdict.not_ready("still starting")),
        (lambda: KeyError("role"), Verdict.failed("'role': db://127.0.0.1:1/ledger")),
    ],
    ids=["refused", "no files", "resolver", "end", "half an answer", "driver", "starting", "anything"],
)
def test_what_is_raised_becomes_a_verdict(where: str, fault: Callable[[], Exception], verdict: Verdict) -> None:
    assert look(failing(where, fault())) == verdict


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    ("inner", "verdict"),
    [
        (REFUSED, Verdict.failed("connection refused: db://127.0.0.1:1/ledger")),
        (NO_FILES, Verdict.unknown("this machine cannot look: too many open files")),
        (EOFError(), Verdict.failed(CLOSED)),
    ],
    ids=["refused", "no files", "end"],
)
def test_what_the_system_said_is_found_behind_the_words_of_the_driver(
    depth: int, inner: BaseException, verdict: Verdict
) -> None:
    fault = wrapped(*(DriverError("cannot connect") for _ in range(depth)), inner)
    assert look(a_probe(opens=[fault])) == verdict


def test_what_merely_happened_before_is_no_cause() -> None:
    fault = DriverError("no such user")
    fault.__context__ = REFUSED
    assert look(a_probe(opens=[fault])).reason == "no such user: db://127.0.0.1:1/ledger"


@pytest.mark.parametrize("where", ["opens", "asks"])
@pytest.mark.parametrize("fault", [MemoryError(), OptionError("ca", "cannot use ca.pem: no such file or directory")])
def test_a_fault_of_our_own_is_nobody_elses(where: str, fault: Exception) -> None:
    """Whoever looks makes an unknown verdict of it."""
    with pytest.raises(type(fault)):
        look(failing(where, fault))


def test_a_fault_of_our_own_on_a_kept_connection_is_told_by_the_fresh_one() -> None:
    probe = a_probe(reuse=True, asks=[READY, MemoryError()])
    with pytest.raises(MemoryError):
        looks(probe, 2)
    assert probe.diary == ["open", "ask a", "ask a", "drop a", "open", "ask b", "drop b"]


# ---- the words of a driver


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("no such user", "no such user"),
        ("  FATAL:\n  no such\tuser\r\n", "FATAL: no such user"),
        ("\x1b[31mno\x07such user\x00", "[31mno such user"),
        ("", "DriverError"),
        ("\n\x00", "DriverError"),
        ("x" * 300, "x" * 300),
        ("x" * 301, "x" * 300 + "…"),
    ],
)
def test_the_words_of_a_driver_are_told_on_one_line_that_is_not_too_long(words: str, shown: str) -> None:
    assert driver_error_text(DriverError(words)) == shown


def test_the_words_of_a_driver_show_no_password() -> None:
    probe = a_probe("db://me:hunter22@127.0.0.1", opens=[DriverError("no such password: hunter22")])
    probe.credentials()
    assert look(probe).reason == "no such password: ***: db://me:***@127.0.0.1"


# ---- credentials


@pytest.mark.parametrize(
    ("url", "words", "credentials"),
    [
        ("db://127.0.0.1", {}, ("", "")),
        ("db://me:hunter22@127.0.0.1", {}, ("me", "hunter22")),
        ("db://127.0.0.1", {"username": "me", "password": "hunter22"}, ("me", "hunter22")),
        ("db://me@127.0.0.1", {"password": "hunter22"}, ("me", "hunter22")),
        ("db://:hunter22@127.0.0.1", {"username": "me"}, ("me", "hunter22")),
        ("db://m%40e:hunter%2F2@127.0.0.1", {}, ("m@e", "hunter/2")),
    ],
)
def test_a_user_name_and_a_password_stand_in_the_url_or_beside_it(
    url: str, words: dict[str, str], credentials: tuple[str, str]
) -> None:
    assert a_probe(url, **words).credentials() == credentials


@pytest.mark.parametrize("name", ["username", "password"])
def test_but_not_in_both_places(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        a_probe("db://me:hunter22@127.0.0.1", **{name: "hunter23"}).credentials()
    assert caught.value.option == name
    assert caught.value.text == f"stands in the URL as well; only one {name} can count"


@pytest.mark.parametrize("words", [{}, {"username": "me", "password": "hunter22"}])
def test_a_password_is_shown_to_nobody(words: dict[str, str]) -> None:
    probe = a_probe("db://127.0.0.1" if words else "db://me:hunter22@127.0.0.1", **words)
    probe.credentials()
    assert "hunter22" not in repr(probe)
    assert redacted("it was hunter22") == "it was ***"


# ---- the shape itself


def test_probes_are_equal_whatever_they_keep() -> None:
    """Else a configuration that is read again would look anew at services that have not changed."""
    one, other = (a_probe(reuse=True, diary=[], names=[], opens=["ok"]) for _ in range(2))
    one.names.append("a")
    other.names.append("a")
    assert one == other
    assert look(one).outcome is Outcome.READY
    one.diary.clear()
    one.names.append("a")
    assert one == other
    assert one != a_probe(reuse=False, diary=[], names=["a"], opens=["ok"])
