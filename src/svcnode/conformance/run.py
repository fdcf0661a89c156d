"""Runs all checks over one node: one after another, so that each has the node to itself."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from svcnode.conformance.check import Check, Finding, Level, Skip
from svcnode.conformance.checks import CHECKS
from svcnode.conformance.http_client import CONNECTION_CLOSED, CONNECTION_RESET, TLS_HINT, NoResponseError
from svcnode.conformance.interface import STATIC_ENDPOINTS
from svcnode.conformance.node_under_test import NodeUnderTest, no_response_finding
from svcnode.conformance.target import parse_target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from svcnode.conformance.target import TargetUrl

MAX_FINDINGS = 10  # of one check; the eleventh would say nothing new, and is only counted
MAX_COUNTED_FINDINGS = 1000  # are counted; a list may hold a million
# A node that has gone silent is not asked for ever: after so many checks that waited in vain, the rest is left out,
# and no run takes longer than so many timeouts.
MAX_TIMED_OUT_CHECKS = 5
MAX_TIMEOUTS = 30
STOPPED_REASON = "stopped before it was judged"


class CheckOutcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    check: Check
    outcome: CheckOutcome
    findings: tuple[Finding, ...] = ()
    more_findings: int = 0  # findings beyond these
    skip_reason: str = ""  # it was skipped
    duration_s: float = 0.0

    @property
    def fixes(self) -> list[str]:
        """How to mend it, each way once."""
        return list(dict.fromkeys(finding.fix or self.check.fix for finding in self.findings)) or [self.check.fix]

    def is_failure_at(self, level: Level) -> bool:
        """Whether it makes the node fail, judged by what is demanded up to this level."""
        return self.outcome is CheckOutcome.FAILED and self.check.level.is_included_in(level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    url: str
    results: tuple[Result, ...] = ()
    unreachable: str = ""  # why nothing could be judged
    aborted: str = ""  # why the rest could not be judged
    interrupted: str = ""  # that we were stopped, and how much was not done by then; no fault of the node
    remarks: tuple[str, ...] = ()  # what is of no check alone, and has to be known

    def failed(self, level: Level = Level.ADVICE) -> list[Result]:
        return [result for result in self.results if result.is_failure_at(level)]

    def conforms(self, level: Level = Level.SHOULD) -> bool:
        return not (self.unreachable or self.aborted or self.interrupted or self.failed(level))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What to judge, and how."""

    target: TargetUrl
    timeout_s: float = 5.0
    other_methods: bool = True
    progress: Callable[[Check], None] = field(default=lambda _: None, repr=False)


def check_node(
    url: str,
    *,
    prefix: str = "/svc",
    timeout_s: float = 5.0,
    ca: Path | None = None,
    other_methods: bool = True,
) -> Report:
    """All checks over one node, from a thread without an event loop. Raises `InvalidValueError` for a wrong URL."""
    target = parse_target(url, prefix=prefix, ca=ca)
    return asyncio.run(run_checks(RunOptions(target=target, timeout_s=timeout_s, other_methods=other_methods)))


async def run_checks(plan: RunOptions, *, stopped: asyncio.Future[None] | None = None) -> Report:
    """When `stopped` is done, the node is asked no more; what was judged by then is reported."""
    running = _Run(plan)
    async with asyncio.TaskGroup() as group:
        judging = group.create_task(running.run())
        if stopped is not None:
            stopped.add_done_callback(lambda _: judging.cancel())
    return running.report()


def _tls_hint(reason: str, target: TargetUrl) -> str:
    """Some that expect TLS say nothing at all to whoever does not speak it."""
    is_wordless = reason in (CONNECTION_CLOSED, CONNECTION_RESET) and target.tls is None
    return TLS_HINT if is_wordless else ""


async def _connect_error(subject: NodeUnderTest, endpoint: str) -> str:
    try:
        await subject.first_response(endpoint)
    except NoResponseError as exc:
        return str(exc)
    return ""


async def _collect_remarks(subject: NodeUnderTest, target: TargetUrl) -> AsyncIterator[str]:
    if await subject.has_no_endpoints():
        yield f"No endpoint is found below {target}: where the node has another prefix, name it with --prefix."
    if await subject.has_no_services():
        yield "No service is listed, so nothing about the health of services could be seen."


class _Run:
    """Knows at any time what was judged by then, since it may be cancelled at any time."""

    def __init__(self, plan: RunOptions) -> None:
        self._options = plan
        self._node = NodeUnderTest(plan.target, plan.timeout_s, other_methods=plan.other_methods)
        self._results: dict[str, Result] = {}  # by the name of the check
        self._unreachable = ""
        self._aborted = ""
        self._remarks: tuple[str, ...] = ()
        self._timed_out_checks = 0
        self._timeout_reporters: dict[tuple[str, str], str] = {}  # which check has told of it
        self._deadline_s = math.inf

    async def run(self) -> None:
        target = self._options.target
        reasons = await asyncio.gather(*(_connect_error(self._node, endpoint) for endpoint in STATIC_ENDPOINTS))
        if all(reasons):
            self._unreachable = f"{reasons[0]}{_tls_hint(reasons[0], target)}"
            return
        self._remarks = tuple([remark async for remark in _collect_remarks(self._node, target)])
        self._deadline_s = time.monotonic() + MAX_TIMEOUTS * self._options.timeout_s
        for check in CHECKS:
            self._options.progress(check)
            began_s = time.monotonic()
            result = await self._run_check(check)
            self._results[check.name] = replace(result, duration_s=time.monotonic() - began_s)

    def report(self) -> Report:
        """Where nothing was judged, there are no results. Otherwise there is one for every check."""
        not_made = [] if self._unreachable else [check for check in CHECKS if check.name not in self._results]
        left_out = (
            [Result(check, CheckOutcome.SKIPPED, skip_reason=STOPPED_REASON) for check in not_made]
            if self._results
            else []
        )
        return Report(
            url=str(self._options.target),
            results=(*self._results.values(), *left_out),
            unreachable=self._unreachable,
            aborted=self._aborted,
            interrupted=f"stopped with {len(not_made)} of {len(CHECKS)} checks not made" if not_made else "",
            remarks=self._remarks,
        )

    async def _run_check(self, check: Check) -> Result:
        if why := self._skip_reason(check):
            return Result(check, CheckOutcome.SKIPPED, skip_reason=why)
        findings: list[Finding] = []
        try:
            async with asyncio.timeout(max(0.0, self._deadline_s - time.monotonic())):
                await self._collect_findings(check, findings)
        except Skip as exc:
            return Result(check, CheckOutcome.SKIPPED, skip_reason=str(exc))
        except NoResponseError as exc:
            self._timed_out_checks += exc.is_timeout
            if self._timed_out_checks == MAX_TIMED_OUT_CHECKS:
                self._aborted = "it has stopped answering"
            if exc.is_timeout and (teller := self._earlier_reporter(exc, check)) and not findings:
                return Result(check, CheckOutcome.SKIPPED, skip_reason=f"no answer in time, see {teller}")
            findings.append(no_response_finding(exc))
        except TimeoutError:
            self._aborted = f"its answers are too slow: {MAX_TIMEOUTS} timeouts have passed"
            return Result(check, CheckOutcome.SKIPPED, skip_reason=self._aborted)
        outcome = CheckOutcome.FAILED if findings else CheckOutcome.PASSED
        return Result(check, outcome, tuple(findings[:MAX_FINDINGS]), len(findings[MAX_FINDINGS:]))

    def _earlier_reporter(self, exc: NoResponseError, check: Check) -> str:
        """The check that has told of this silence already; empty where this one is to."""
        place = exc.request.method, exc.request.target.partition("?")[0]
        teller = self._timeout_reporters.setdefault(place, check.name)
        return "" if teller == check.name else teller

    async def _collect_findings(self, check: Check, findings: list[Finding]) -> None:
        async with aclosing(check.function(self._node)) as found:
            async for finding in found:
                findings.append(finding)
                if len(findings) == MAX_FINDINGS + MAX_COUNTED_FINDINGS:
                    return

    def _skip_reason(self, check: Check) -> str:
        if check.uses_other_methods and not self._options.other_methods:
            return "other methods were not to be sent"
        if self._aborted:
            return self._aborted
        for need in check.needs:
            outcome = self._results[need].outcome
            if outcome is not CheckOutcome.PASSED:
                return f"{need} {'failed' if outcome is CheckOutcome.FAILED else 'was not judged'}"
        return ""
