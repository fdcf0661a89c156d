"""The base classes of all probes: `Probe`, and `UrlProbe` for a kind that a URL names.

A probe that has a session with a server derives from `session.SessionProbe`, one that sends HTTP requests from
`http_client.HttpSessionProbe`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import redacted
from svcnode.core.url import Url, UrlForm

if TYPE_CHECKING:
    from svcnode.core.codes import ReasonCode
    from svcnode.core.model import RunTimes
    from svcnode.net.batch import BatchCheck

# A time of another machine that is further in the future than this shows that the clocks differ.
MAX_CLOCK_SKEW_S = 60.0
_OTHERS_SHARE = 0.6

# The deadline of the check in this task, by the clock of its event loop. The caller of `check` sets and enforces it.
check_deadline_s: ContextVar[float] = ContextVar("svcnode_check_deadline", default=math.inf)


def time_left_s() -> float:
    """Until the deadline of the check, for limits that a server enforces itself; infinite without a deadline."""
    import asyncio  # late: `import svcnode` loads this module, and no event loop

    return max(0.0, check_deadline_s.get() - asyncio.get_running_loop().time())


def time_for_others_s() -> float | None:
    """A share of that time, to ask others than the service; None without a deadline.

    Others that hang do not make the service failed: there is time left for what it says itself.
    """
    left_s = time_left_s()
    return _OTHERS_SHARE * left_s if left_s < math.inf else None


class CheckError(Exception):
    """The service rejects the check, or its response cannot be used. The code says why."""

    def __init__(self, text: str, code: ReasonCode, outcome: Outcome = Outcome.FAILED) -> None:
        super().__init__(text)
        self.code = code
        self.outcome = outcome

    def verdict(self, url: Url) -> Verdict:
        return Verdict(self.outcome, f"{self}: {url}", self.code)


class Probe(ABC):
    """Checks one service.

    A probe is a value: a reload of the configuration keeps a running probe that equals the new one.
    """

    __slots__ = ()

    # The key in [security] that a configuration must set to use this probe; "" if none is needed.
    permission: ClassVar[str] = ""

    @abstractmethod
    async def check(self) -> Verdict:
        """Run one check.

        The caller sets the deadline and cancels the call. An exception is a fault of the probe, not of the service:
        the verdict is `unknown`.
        """

    def validate_interval(self, interval_s: float) -> None:  # noqa: B027  most probes can have any
        """Raise `OptionError` if an option of the probe cannot work with checks at this interval."""

    def batch_check(self) -> BatchCheck | None:
        """The same check without a task, for the scheduler; None if the probe or its options need `check`."""
        return None

    @property
    def kind(self) -> str:
        """The label of this probe in metrics and details."""
        return "custom"

    @property
    def display_url(self) -> str | None:
        """The URL without secrets; None if the probe has no URL."""
        return None

    @property
    def page_url(self) -> str | None:
        """Of another node: where its page is, and its other operator paths below. Otherwise None."""
        return None

    @property
    def has_found_nodes(self) -> bool:
        """Of a search for other nodes: whether it has found any so far. Otherwise True."""
        return True

    @property
    def down_inside(self) -> int:
        """Of another node: how many of its services were Down at the last check."""
        return 0

    @property
    def ttl_s(self) -> float | None:
        """For a heartbeat, the time within which the service must report; `check` is never called. Otherwise None."""
        return None

    @property
    def grace_s(self) -> float | None:
        """For a heartbeat of a job, the part of `ttl_s` within which a run must end. Otherwise None."""
        return None

    @property
    def run_times(self) -> RunTimes | None:
        """For a heartbeat of a job with a schedule, when it runs; `ttl_s` is then about the longest. Otherwise None."""
        return None

    @property
    def loop_blocked_s(self) -> float:
        """How long the last check blocked the event loop."""
        return 0.0

    def close(self) -> None:  # noqa: B027  most probes keep nothing
        """Close everything that the probe keeps between checks, such as a connection. Called when probing stops."""


@dataclass(frozen=True, repr=False)
class UrlProbe(Probe):
    """A probe that a URL names. Its other fields are its options.

    A kind is `@dataclass(frozen=True, slots=True, kw_only=True, repr=False)`.
    """

    __slots__ = ()  # a kind has the slots of its fields, so that it can also derive from a client of `net`

    url: Url

    url_form: ClassVar[UrlForm] = UrlForm(host="any")

    @property
    def kind(self) -> str:
        return self.url.scheme

    @property
    def display_url(self) -> str:
        return redacted(str(self.url))

    def failed(self, text: str, code: ReasonCode) -> Verdict:
        return Verdict.failed(f"{text}: {self.url}", code=code)

    def not_ready(self, text: str, code: ReasonCode) -> Verdict:
        return Verdict.not_ready(f"{text}: {self.url}", code=code)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"  # options may hold secrets
