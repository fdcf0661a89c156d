"""Databases that may be replicas: the options `role`, `max_lag` and `primary`, and how far a replica is behind.

A replica that has reached a position of its source is at most as far behind as that position is old. So the positions
of the source are recorded with the times at which they were known.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.option_types import UrlText
from svcnode.core.url import Url, UrlError
from svcnode.net.trace import step
from svcnode.probes.base import CheckError, time_for_others_s
from svcnode.probes.options import Role, Seconds, WriteTarget
from svcnode.probes.session import LoginProbe
from svcnode.probes.sql import SqlConditions, SqlProbe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from svcnode.probes.sql import Row

C = TypeVar("C")
P = TypeVar("P")

RETRY_PAUSES_S = (0.01, 0.03, 0.06)  # a replica that is behind may be applying what it has just received
_MAX_POSITIONS = 32
# The server answers, but not this client.
_REJECTED_LOGIN = (
    ReasonCode.AUTH_FAILED,
    ReasonCode.AUTH_REQUIRED,
    ReasonCode.CLIENT_NOT_ALLOWED,
    ReasonCode.NOT_FOUND,
    ReasonCode.PERMISSION_DENIED,
    ReasonCode.TLS_NOT_OFFERED,
    ReasonCode.TLS_REQUIRED,
    ReasonCode.USER_DISABLED,
    ReasonCode.USER_NOT_FOUND,
)
# A server that says itself why it cannot write is not ready.
NOT_READY_CODES = (
    ReasonCode.NO_QUORUM,
    ReasonCode.OUT_OF_MEMORY,
    ReasonCode.READ_ONLY,
    ReasonCode.STORAGE_FULL,
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReplicatedProbe(SqlProbe, LoginProbe[C]):
    role: Role = ""
    query: str = ""  # cannot write; its first value must be true, unless there are conditions
    require: SqlConditions = ()  # on the first row
    starting: SqlConditions = ()  # one of them holds: not ready
    write: WriteTarget = ""  # a table
    max_lag: Seconds | None = None
    primary: UrlText = ""
    _primary: Self | None = field(init=False, compare=False, default=None)

    primary_schemes: ClassVar[tuple[str, ...]]
    primary_example: ClassVar[str]

    @abstractmethod
    def primary_tls_options(self, url: Url) -> dict[str, Any]:
        """The options with which the probe of the primary uses TLS as this one does."""

    def validate_replication(self) -> None:
        self.validate_query()
        if self.write and self.role == "replica":
            raise OptionError("write", 'cannot be used with role = "replica"')
        if not self.primary:
            return
        if self.role == "primary" or self.write:
            raise OptionError("primary", f"is for replicas; remove it or {'write' if self.write else 'role'}")
        if self.max_lag is None:
            raise OptionError("primary", "only works with max_lag; set both")
        try:
            object.__setattr__(self, "_primary", self._primary_probe(self._primary_url()))
        except ProbeError as exc:
            raise OptionError("primary", str(exc)) from exc

    def _primary_url(self) -> Url:
        try:
            url = Url.parse(self.primary)
        except UrlError as exc:
            if exc.part != "scheme":
                raise
        else:
            if url.scheme in self.primary_schemes:
                return url
        raise ProbeError(f"must be a URL such as {self.primary_example}")

    def _primary_probe(self, url: Url) -> Self:
        """With the login and the TLS options of the replica, unless the URL has its own."""
        username, password = ("", "") if url.username or url.password else self.credentials()
        return type(self)(
            url,
            username=username,
            password=password,
            ca=self.ca,
            client_certificate=self.client_certificate,
            client_key=self.client_key,
            **self.primary_tls_options(url),
        )

    async def ask_primary(self, primary: Self, ask: Callable[[C], Awaitable[P]]) -> P | Verdict:
        """The response of the primary on a new connection, or the verdict on this replica if there is none."""
        try:
            with step("primary", primary.url.host_port):
                async with asyncio.timeout(time_for_others_s()):
                    connection = await primary.open()
                    try:
                        response = await ask(connection)
                        await primary.disconnect(connection)
                        return response
                    finally:
                        primary.abort(connection)
        except (MemoryError, ProbeError):
            raise  # a fault on this machine, as in SessionProbe.check
        except Exception as exc:  # noqa: BLE001  as there
            return self._primary_error_verdict(primary, exc)

    def _primary_error_verdict(self, primary: Self, exc: Exception) -> Verdict:
        verdict = primary._verdict_for_error(exc)
        if verdict.outcome is Outcome.UNKNOWN:  # a fault of this machine
            return verdict
        reason = str(primary.url) if isinstance(exc, TimeoutError) else verdict.reason
        state, code = "is offline", ReasonCode.UPSTREAM_OFFLINE
        if verdict.code in _REJECTED_LOGIN:
            state, code = "cannot be asked", ReasonCode(verdict.code)
        elif isinstance(exc, TimeoutError) or verdict.code is ReasonCode.TIMEOUT:
            state = "does not respond"
        return self.not_ready(f"the lag is not known, because the primary {state} ({reason})", code)

    async def row_verdict(self, row: Row) -> Verdict | None:
        problem = await self.find_row_problem(row)
        return problem and Verdict(problem.outcome, f"{problem.text}: {self.url}", problem.code)

    def write_error_verdict(self, text: str, code: ReasonCode) -> Verdict:
        outcome = Outcome.NOT_READY if code in NOT_READY_CODES else Outcome.FAILED
        return CheckError(f"the write failed: {text}", code, outcome).verdict(self.url)


def write_code(code: ReasonCode) -> ReasonCode:
    """WRITE_FAILED instead of a code that says less."""
    return ReasonCode.WRITE_FAILED if code in (ReasonCode.SERVER_ERROR, ReasonCode.BAD_REQUEST) else code


class KnownPositions(Generic[P]):
    """Positions of a source, and the times at which they were known."""

    def __init__(self) -> None:
        self._positions: deque[tuple[float, P]] = deque(maxlen=_MAX_POSITIONS)
        self._last: tuple[float, P] | None = None

    def record(self, now_s: float, position: P, max_lag_s: float) -> None:
        """Keeps the last position, and others of the last `max_lag_s`."""
        if self._last is not None and (
            not self._positions or self._last[0] - self._positions[-1][0] >= max_lag_s / _MAX_POSITIONS
        ):
            self._positions.append(self._last)
        self._last = (now_s, position)

    def lag_s(self, now_s: float, has_reached: Callable[[P], bool]) -> float:
        """The time since the replica is known to have reached a position; infinite if it has reached none."""
        known = [*self._positions, self._last] if self._last else []
        return now_s - max((at_s for at_s, position in known if has_reached(position)), default=-math.inf)
