"""Runs all checks over one node: one after another, so that each has the node to itself."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from svcnode.conformance.check import Check, Finding, Level, NotJudgedError
from svcnode.conformance.checks import CHECKS
from svcnode.conformance.exchange import BROKEN_OFF, CLOSED, NoAnswerError
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
    remarks: tuple[str, ...] = ()  # what is of no check alone, and has to be known

    def failed(self, level: Level = Level.ADVICE) -> list[Result]:
        return [result for result in self.results if result.counts(level)]

    def conforms(self, level: Level = Level.SHOULD) -> bool:
        return not (self.unreachable or self.unfinished or self.failed(level))


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


async def run(plan: Plan) -> Report:
    subject = Subject(plan.target, plan.timeout_s, other_methods=plan.other_methods)
    reasons = await asyncio.gather(*(_why_unreachable(subject, endpoint) for endpoint in FIXED))
    if all(reasons):
        return Report(url=str(plan.target), unreachable=f"{reasons[0]}{_hint(reasons[0], plan.target)}")
    running = _Run(plan, subject)
    results = await running.all_results()
    return Report(
        url=str(plan.target),
        results=tuple(results),
        unfinished=running.unfinished,
        remarks=tuple([remark async for remark in _remarks(subject, plan.target)]),
    )


def _hint(reason: str, target: Target) -> str:
    """Some that expect TLS say nothing at all to whoever does not speak it."""
    is_wordless = reason in (CLOSED, BROKEN_OFF) and target.tls is None
    return "; does it speak TLS? then write https://" if is_wordless else ""


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
    def __init__(self, plan: Plan, subject: Subject) -> None:
        self._plan = plan
        self._subject = subject
        self._outcomes: dict[str, Outcome] = {}
        self._silent_checks = 0
        self._silences: dict[tuple[str, str], str] = {}  # which check has told of it
        self.unfinished = ""
        self._ends_at_s = time.monotonic() + MAX_TIMEOUTS * plan.timeout_s

    async def all_results(self) -> list[Result]:
        results = []
        for check in CHECKS:
            self._plan.progress(check)
            began_s = time.monotonic()
            result = await self._result(check)
            self._outcomes[check.name] = result.outcome
            took_s = time.monotonic() - began_s
            results.append(replace(result, duration_s=took_s))
        return results

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
                self.unfinished = "it has stopped answering"
            if exc.is_silence and (teller := self._teller_of(exc, check)) and not findings:
                return Result(check, Outcome.SKIPPED, why=f"no answer in time, see {teller}")
            findings.append(no_answer(exc))
        except TimeoutError:
            self.unfinished = f"its answers are too slow: {MAX_TIMEOUTS} timeouts have passed"
            return Result(check, Outcome.SKIPPED, why=self.unfinished)
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
        if self.unfinished:
            return self.unfinished
        for need in check.needs:
            if self._outcomes[need] is not Outcome.PASSED:
                return f"{need} {'failed' if self._outcomes[need] is Outcome.FAILED else 'was not judged'}"
        return ""
