"""The shape of a kind that talks to its service over a connection: open it, ask, and let it go.

By default each look opens a fresh connection, as a new client would. With `reuse` one is kept from look to look. A
driver's connection is only ever used through the three methods below, so that a look that is cut off at its deadline
leaves nothing behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import unquote

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import keep_secret, redacted
from svcnode.probes.tools.faults import verdict_on
from svcnode.probes.tools.kept import REUSED, Kept
from svcnode.probes.tools.steps import step
from svcnode.probes.tools.tls import TlsOptions

if TYPE_CHECKING:
    from svcnode.probes.tools.url import Url

C = TypeVar("C")

_MAX_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SessionProbe(TlsOptions, ABC, Generic[C]):
    reuse: bool = False
    _kept: Kept[C] = field(init=False, compare=False, default_factory=Kept)

    @abstractmethod
    async def open(self) -> C:
        """Connect and log in. Cut off or failing, it closes what it had opened."""

    @abstractmethod
    async def ask(self, connection: C) -> Verdict:
        """What the look is for."""

    @abstractmethod
    def drop(self, connection: C) -> None:
        """End the connection at once, whatever state it is in."""

    def renew(self, connection: C) -> None:
        """A new look begins on a connection that was kept."""

    async def leave(self, connection: C) -> None:
        """Say goodbye, to those who would note it in their log otherwise. `drop` follows."""

    def verdict_on_refusal(self, exc: Exception) -> Verdict:
        """What it means that the driver raised this."""
        return Verdict.failed(f"{told(exc)}: {self.url}")

    async def look(self) -> Verdict:
        try:
            kept = self._kept.take()
            if kept is not None and (verdict := await self._asked_again(kept)) is not None:
                return verdict
            return await self._asked(await self.open())
        except (MemoryError, ProbeError):
            raise  # our own fault, such as a file that is gone
        except Exception as exc:  # noqa: BLE001  whatever a driver makes of what a server says
            return self._verdict_on(exc)

    async def _asked_again(self, connection: C) -> Verdict | None:
        """None when the connection was of no use any more; only a new one tells whether that means anything."""
        try:
            with step("reuse", REUSED):
                self.renew(connection)
            return await self._asked(connection)
        except Exception:  # noqa: BLE001  as above
            return None

    async def _asked(self, connection: C) -> Verdict:
        is_kept = False
        try:
            with step("exchange"):
                verdict = await self.ask(connection)
            if self.reuse and verdict.outcome is Outcome.READY:
                self.let_go()  # what another look at the same time may have kept
                self._kept.put(connection)
                is_kept = True
            elif verdict.outcome in (Outcome.READY, Outcome.NOT_READY):  # nothing is wrong with the connection
                with suppress(Exception):  # it has said all that matters
                    await self.leave(connection)
            return verdict
        finally:
            if not is_kept:
                self.drop(connection)

    def _verdict_on(self, exc: Exception) -> Verdict:
        cause: BaseException | None = exc
        while cause is not None:  # drivers wrap what the system said in errors of their own
            if isinstance(cause, OSError):
                return verdict_on(cause, str(self.url))
            if isinstance(cause, EOFError):
                return Verdict.failed(f"it closed the connection before it had answered: {self.url}")
            cause = cause.__cause__
        return self.verdict_on_refusal(exc)

    def let_go(self) -> None:
        """Nobody will look for a while: what was kept is not needed any more."""
        self._kept.let_go(self.drop)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoginProbe(SessionProbe[C]):
    """With a user name and a password, which may stand in the URL as well."""

    username: str = ""
    password: str = ""

    def credentials(self) -> tuple[str, str]:
        login = login_from(self.url, self.username, self.password)
        for name, text in zip(("username", "password"), login, strict=True):
            if "\0" in text:
                raise OptionError(name, "holds a null character, where many servers would take it for ended")
        return login

    def database(self) -> str:
        """What the path of the URL names."""
        name = unquote(self.url.path.removeprefix("/"))
        if "\0" in name:
            raise ProbeError("the name of a database holds no null character")
        return name


def login_from(url: Url, username: str, password: str) -> tuple[str, str]:
    """Each of the two from the URL or from an option."""
    for name, text in (("username", username), ("password", password)):
        if text and getattr(url, name):
            raise OptionError(name, f"stands in the URL as well; only one {name} can count")
    keep_secret(password)
    return username or url.username, password or url.password


def told(exc: Exception) -> str:
    """A driver's words on one line, and not too many of them; some are the server's, and could upset a terminal."""
    words = "".join(char if char.isprintable() else " " for char in redacted(str(exc)))
    text = " ".join(words.split()) or type(exc).__name__
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
