"""Runs all checks over one node: one after another, so that each has the node to itself."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from svcnode.conformance.check import Check, Finding, Level, NotJudgedError
from svcnode.conformance.checks import CHECKS
from svcnode.conformance.exchange import BROKEN_OFF, CLOSED, TLS_HINT, NoAnswerError
from svcnode.conformance.interface import FIXED
from svcnode.conformance.subject import Subject, no_answer
from svcnode.conformance.target import target_from

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from svcnode.conformance.target import Target

MAX_FINDINGS = 10  # of one check; the eleventh would say nothing new, and is only counted
MAX_MORE = 1000  # are counted; a list may hold a million
# A node that has gone silent is not asked for ever: after so many checks that waited in vain, the rest is left out,
# and no run takes longer than so many timeouts.
MAX_SILENT_CHECKS = 5
MAX_TIMEOUTS = 30
STOPPED = "stopped before it was judged"


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    check: Check
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    more: int = 0  # findings beyond these
    why: str = ""  # it was skipped
    duration_s: float = 0.0

    @property
    def mends(self) -> list[str]:
        """How to mend it, each way once."""
        return list(dict.fromkeys(finding.mend or self.check.mend for finding in self.findings)) or [self.check.mend]

    def counts(self, level: Level) -> bool:
        """Whether it makes the node fail, judged by what is demanded up to this level."""
        return self.outcome is Outcome.FAILED and self.check.level.counts_at(level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    url: str
    results: tuple[Result, ...] = ()
    unreachable: str = ""  # why nothing could be judged
    unfinished: str = ""  # why the rest could not be judged
    cut_short: str = ""  # that we were stopped, and how much was not done by then; no fault of the node
    remarks: tuple[str, ...] = ()  # what is of no check alone, and has to be known

    def failed(self, level: Level = Level.ADVICE) -> list[Result]:
        return [result for result in self.results if result.counts(level)]

    def conforms(self, level: Level = Level.SHOULD) -> bool:
        return not (self.unreachable or self.unfinished or self.cut_short or self.failed(level))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to judge, and how."""

    target: Target
    timeout_s: float = 5.0
    other_methods: bool = True
    progress: Callable[[Check], None] = field(default=lambda _: None, repr=False)


def judge(
    url: str,
    *,
    prefix: str = "/svc",
    timeout_s: float = 5.0,
    ca: Path | None = None,
    other_methods: bool = True,
) -> Report:
    """All checks over one node, from a thread without an event loop. Raises `InvalidValueError` for a wrong URL."""
    target = target_from(url, prefix=prefix, ca=ca)
    return asyncio.run(run(Plan(target=target, timeout_s=timeout_s, other_methods=other_methods)))


async def run(plan: Plan, *, stopped: asyncio.Future[None] | None = None) -> Report:
    """When `stopped` is done, the node is asked no more; what was judged by then is reported."""
    running = _Run(plan)
    async with asyncio.TaskGroup() as group:
        judging = group.create_task(running.judge())
        if stopped is not None:
            stopped.add_done_callback(lambda _: judging.cancel())
    return running.report()


def _hint(reason: str, target: Target) -> str:
    """Some that expect TLS say nothing at all to whoever does not speak it."""
    is_wordless = reason in (CLOSED, BROKEN_OFF) and target.tls is None
    return TLS_HINT if is_wordless else ""


async def _why_unreachable(subject: Subject, endpoint: str) -> str:
    try:
        await subject.first(endpoint)
    except NoAnswerError as exc:
        return str(exc)
    return ""


async def _remarks(subject: Subject, target: Target) -> AsyncIterator[str]:
    if await subject.is_nowhere():
        yield f"No endpoint is found below {target}: where the node has another prefix, name it with --prefix."
    if await subject.lists_nothing():
        yield "No service is listed, so nothing about the health of services could be seen."


class _Run:
    """Knows at any time what was judged by then, since it may be cancelled at any time."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._subject = Subject(plan.target, plan.timeout_s, other_methods=plan.other_methods)
        self._results: dict[str, Result] = {}  # by the name of the check
        self._unreachable = ""
        self._unfinished = ""
        self._remarks: tuple[str, ...] = ()
        self._silent_checks = 0
        self._silences: dict[tuple[str, str], str] = {}  # which check has told of it
        self._ends_at_s = math.inf

    async def judge(self) -> None:
        target = self._plan.target
        reasons = await asyncio.gather(*(_why_unreachable(self._subject, endpoint) for endpoint in FIXED))
        if all(reasons):
            self._unreachable = f"{reasons[0]}{_hint(reasons[0], target)}"
            return
        self._remarks = tuple([remark async for remark in _remarks(self._subject, target)])
        self._ends_at_s = time.monotonic() + MAX_TIMEOUTS * self._plan.timeout_s
        for check in CHECKS:
            self._plan.progress(check)
            began_s = time.monotonic()
            result = await self._result(check)
            self._results[check.name] = replace(result, duration_s=time.monotonic() - began_s)

    def report(self) -> Report:
        """Where nothing was judged, there are no results. Otherwise there is one for every check."""
        not_made = [] if self._unreachable else [check for check in CHECKS if check.name not in self._results]
        left_out = [Result(check, Outcome.SKIPPED, why=STOPPED) for check in not_made] if self._results else []
        return Report(
            url=str(self._plan.target),
            results=(*self._results.values(), *left_out),
            unreachable=self._unreachable,
            unfinished=self._unfinished,
            cut_short=f"stopped with {len(not_made)} of {len(CHECKS)} checks not made" if not_made else "",
            remarks=self._remarks,
        )

    async def _result(self, check: Check) -> Result:
        if why := self._why_not(check):
            return Result(check, Outcome.SKIPPED, why=why)
        findings: list[Finding] = []
        try:
            async with asyncio.timeout(max(0.0, self._ends_at_s - time.monotonic())):
                await self._gather(check, findings)
        except NotJudgedError as exc:
            return Result(check, Outcome.SKIPPED, why=str(exc))
        except NoAnswerError as exc:
            self._silent_checks += exc.is_silence
            if self._silent_checks == MAX_SILENT_CHECKS:
                self._unfinished = "it has stopped answering"
            if exc.is_silence and (teller := self._teller_of(exc, check)) and not findings:
                return Result(check, Outcome.SKIPPED, why=f"no answer in time, see {teller}")
            findings.append(no_answer(exc))
        except TimeoutError:
            self._unfinished = f"its answers are too slow: {MAX_TIMEOUTS} timeouts have passed"
            return Result(check, Outcome.SKIPPED, why=self._unfinished)
        outcome = Outcome.FAILED if findings else Outcome.PASSED
        return Result(check, outcome, tuple(findings[:MAX_FINDINGS]), len(findings[MAX_FINDINGS:]))

    def _teller_of(self, exc: NoAnswerError, check: Check) -> str:
        """The check that has told of this silence already; empty where this one is to."""
        place = exc.request.method, exc.request.target.partition("?")[0]
        teller = self._silences.setdefault(place, check.name)
        return "" if teller == check.name else teller

    async def _gather(self, check: Check, findings: list[Finding]) -> None:
        async with aclosing(check.judge(self._subject)) as found:
            async for finding in found:
                findings.append(finding)
                if len(findings) == MAX_FINDINGS + MAX_MORE:
                    return

    def _why_not(self, check: Check) -> str:
        if check.uses_other_methods and not self._plan.other_methods:
            return "other methods were not to be sent"
        if self._unfinished:
            return self._unfinished
        for need in check.needs:
            outcome = self._results[need].outcome
            if outcome is not Outcome.PASSED:
                return f"{need} {'failed' if outcome is Outcome.FAILED else 'was not judged'}"
        return ""
