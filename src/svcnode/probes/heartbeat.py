"""`heartbeat:30s`: the service reports, by the control socket, a push or `Node.beat(id)`; it is not checked.

ready      a heartbeat within `ttl`; of a job, a success within `period` and `grace`, or one that no run of the
           `schedule` has followed for `grace`
not ready  before the first one, for at most the same time
failed     none within that time, or a run of a job that has started and not ended within `grace`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.model import RunTimes, Verdict
from svcnode.core.option_types import PublicText, option_type, public_text, show_as_is
from svcnode.core.units import parse_duration_s
from svcnode.core.url import UrlForm
from svcnode.probes.base import UrlProbe
from svcnode.probes.options import Seconds

MAX_DURATION_S = 366 * 86_400.0  # of a job that runs once a year
_LIMITS = "must be more than 0 s and at most 366 days"
_TTL_PATTERN = r"(?![0.]+[a-z])[0-9]+(\.[0-9]+)?(ms|s|m|h|d)"


@option_type({"type": "string", "pattern": r"^\s*\S+((\s+\S+){1,2}|(\s+\S+){4})?\s*$"}, show=show_as_is)
def schedule_text(value: object) -> str:
    """Judged with its time zone, in `HeartbeatProbe.run_times`."""
    return public_text(value)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HeartbeatProbe(UrlProbe):
    ttl: Seconds | None = None  # or in the URL
    # Of a job that runs from time to time, instead of the ttl:
    period: Seconds | None = None  # from one success to the next
    schedule: Annotated[str, schedule_text] = ""  # instead of the period: when it runs
    timezone: PublicText = ""  # of the schedule; without it, UTC
    grace: Seconds | None = None  # how much later the success may be, and how long a run may take
    url_form: ClassVar = UrlForm(host="none", path=f"({_TTL_PATTERN})?", path_alone=_TTL_PATTERN)

    def __post_init__(self) -> None:
        if bool(self.url.path) + (self.ttl is not None) + (self.period is not None) + bool(self.schedule) != 1:
            raise ProbeError(
                'set one of: "heartbeat:30s"; "heartbeat:" with ttl = "30s"; for a job, "heartbeat:" with period and '
                "grace, or with schedule and grace"
            )
        every = "period" if self.period is not None else "schedule" if self.schedule else ""
        if bool(every) != (self.grace is not None):
            raise OptionError(
                "grace", f"is required with {every}" if every else "only works with period or schedule; set one of them"
            )
        if self.timezone and not self.schedule:
            raise OptionError("timezone", "only works with schedule; set both")
        for name, duration_s in (("ttl", self.ttl), ("period", self.period), ("grace", self.grace)):
            if duration_s is not None and not 0 < duration_s <= MAX_DURATION_S:
                raise OptionError(name, _LIMITS)
        if self.url.path and not 0 < self.ttl_s <= MAX_DURATION_S:
            raise ProbeError(f"the ttl {_LIMITS}")
        _ = self.run_times

    @property
    def ttl_s(self) -> float:
        if self.ttl is not None:
            return self.ttl
        if self.grace is not None:
            run_times = self.run_times
            return self.grace + ((self.period or 0.0) if run_times is None else run_times.longest_gap_s)
        try:
            return parse_duration_s(self.url.path)
        except InvalidValueError as exc:
            raise ProbeError(str(exc)) from exc

    @property
    def grace_s(self) -> float | None:
        return self.grace

    @property
    def run_times(self) -> RunTimes | None:
        if not self.schedule:
            return None
        from svcnode.core.maintenance import parse_timezone
        from svcnode.probes.job_schedule import parse_job_schedule  # late, with its libraries: few nodes need it

        try:
            timezone = parse_timezone(self.timezone or "UTC")
        except InvalidValueError as exc:
            raise OptionError("timezone", str(exc)) from exc
        try:
            return parse_job_schedule(self.schedule, timezone)
        except InvalidValueError as exc:
            raise OptionError("schedule", str(exc)) from exc

    async def check(self) -> Verdict:
        return Verdict.unknown("a heartbeat cannot be checked; a running node receives it", code=ReasonCode.NO_EVIDENCE)
