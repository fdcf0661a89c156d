"""Runs all checks against one node, one after another."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from svcnode.conformance.check import Check, Level
from svcnode.conformance.checks import CHECKS
from svcnode.conformance.http_client import CONNECTION_CLOSED, CONNECTION_RESET, TLS_HINT, NoResponseError
from svcnode.conformance.interface import STATIC_ENDPOINTS
from svcnode.conformance.node_under_test import Finding, NodeUnderTest, Skip, no_response_finding
from svcnode.conformance.target import parse_target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from svcnode.conformance.target import NodeUnderTestUrl

MAX_FINDINGS = 10  # shown per check; the others are counted
MAX_COUNTED_FINDINGS = 1000  # counted per check; a list may have a million items
# A run is aborted after MAX_TIMED_OUT_CHECKS checks with a timeout, or after MAX_TIMEOUTS times the timeout.
MAX_TIMED_OUT_CHECKS = 5
MAX_TIMEOUTS = 30
STOPPED_REASON = "interrupted before this check"


class CheckOutcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    check: Check
    outcome: CheckOutcome
    findings: tuple[Finding, ...] = ()
    more_findings: int = 0  # not shown
    skip_reason: str = ""
    duration_s: float = 0.0

    @property
    def fixes(self) -> list[str]:
        """The fixes of all findings, without duplicates."""
        return list(dict.fromkeys(finding.fix or self.check.fix for finding in self.findings)) or [self.check.fix]

    def is_failure_at(self, level: Level) -> bool:
        """Whether this is a failure of the node when tested at this level."""
        return self.outcome is CheckOutcome.FAILED and self.check.level.is_included_in(level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    url: str
    results: tuple[Result, ...] = ()
    unreachable: str = ""  # why no check could run
    aborted: str = ""  # why the remaining checks were skipped
    interrupted: str = ""  # how many checks did not run because the user stopped the run
    remarks: tuple[str, ...] = ()  # about the whole node

    def failed(self, level: Level = Level.ADVICE) -> list[Result]:
        return [result for result in self.results if result.is_failure_at(level)]

    def conforms(self, level: Level = Level.SHOULD) -> bool:
        return not (self.unreachable or self.aborted or self.interrupted or self.failed(level))


def check_node(
    url: str,
    *,
    prefix: str = "/svc",
    timeout_s: float = 5.0,
    ca: Path | None = None,
    other_methods: bool = True,
) -> Report:
    """Run all checks from a thread without an event loop. Raises `InvalidValueError` for a wrong URL."""
    target = parse_target(url, prefix=prefix, ca=ca)
    return asyncio.run(run_checks(target, timeout_s=timeout_s, other_methods=other_methods))


async def run_checks(
    target: NodeUnderTestUrl,
    *,
    timeout_s: float,
    other_methods: bool = True,
    on_check: Callable[[Check], None] = lambda _: None,
    stopped: asyncio.Future[None] | None = None,
) -> Report:
    """`on_check` is called before each check. When `stopped` is done, the results so far are reported."""
    run = _Run(target, timeout_s, other_methods=other_methods)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run.run(on_check))
        if stopped is not None:
            stopped.add_done_callback(lambda _: task.cancel())
    return run.report()


def _tls_hint(reason: str, target: NodeUnderTestUrl) -> str:
    """A server that expects TLS may close a plain connection without a response."""
    return TLS_HINT if reason in (CONNECTION_CLOSED, CONNECTION_RESET) and target.tls is None else ""


async def _connect_error(node: NodeUnderTest, endpoint: str) -> str:
    try:
        await node.first_response(endpoint)
    except NoResponseError as exc:
        return str(exc)
    return ""


async def _collect_remarks(node: NodeUnderTest, target: NodeUnderTestUrl) -> AsyncIterator[str]:
    if await node.has_no_endpoints():
        yield f"No endpoint found at {target}. If the node has another prefix, set --prefix."
    if await node.has_only_identity_missing():
        yield "Health and services answer, but /node does not exist: this may be an older draft of the interface."
    if await node.has_no_services():
        yield "No service is listed, so the health of services was not checked."
    for endpoint in await node.alternating_endpoints():
        yield (
            f"The responses of {endpoint.path} alternate: several workers may each have their own state, and a client "
            "gets the answer of any of them."
        )


class _Run:
    """Holds the results so far; it may be cancelled at any time."""

    def __init__(self, target: NodeUnderTestUrl, timeout_s: float, *, other_methods: bool) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._node = NodeUnderTest(target, timeout_s, other_methods=other_methods)
        self._results: dict[str, Result] = {}  # by the name of the check
        self._unreachable = ""
        self._aborted = ""
        self._remarks: tuple[str, ...] = ()
        self._timed_out_checks = 0
        self._timeout_reporters: dict[tuple[str, str], str] = {}  # the check that reported each timeout
        self._deadline_s = math.inf

    async def run(self, on_check: Callable[[Check], None]) -> None:
        reasons = await asyncio.gather(*(_connect_error(self._node, endpoint) for endpoint in STATIC_ENDPOINTS))
        if all(reasons):
            self._unreachable = f"{reasons[0]}{_tls_hint(reasons[0], self._target)}"
            return
        self._remarks = tuple([remark async for remark in _collect_remarks(self._node, self._target)])
        self._deadline_s = time.monotonic() + MAX_TIMEOUTS * self._timeout_s
        for check in CHECKS:
            on_check(check)
            started_s = time.monotonic()
            result = await self._run_check(check)
            self._results[check.name] = replace(result, duration_s=time.monotonic() - started_s)

    def report(self) -> Report:
        """If no check ran, there are no results; otherwise there is one result per check."""
        not_run = [] if self._unreachable else [check for check in CHECKS if check.name not in self._results]
        remaining = (
            [Result(check, CheckOutcome.SKIPPED, skip_reason=STOPPED_REASON) for check in not_run]
            if self._results
            else []
        )
        return Report(
            url=str(self._target),
            results=(*self._results.values(), *remaining),
            unreachable=self._unreachable,
            aborted=self._aborted,
            interrupted=f"interrupted: {len(not_run)} of {len(CHECKS)} checks did not run" if not_run else "",
            remarks=self._remarks,
        )

    async def _run_check(self, check: Check) -> Result:
        if reason := self._skip_reason(check):
            return Result(check, CheckOutcome.SKIPPED, skip_reason=reason)
        findings: list[Finding] = []
        try:
            async with asyncio.timeout(max(0.0, self._deadline_s - time.monotonic())):
                await self._collect_findings(check, findings)
        except Skip as exc:
            return Result(check, CheckOutcome.SKIPPED, skip_reason=str(exc))
        except NoResponseError as exc:
            self._timed_out_checks += exc.is_timeout
            if self._timed_out_checks == MAX_TIMED_OUT_CHECKS:
                self._aborted = "the node stopped responding"
            if exc.is_timeout and (reporter := self._earlier_reporter(exc, check)) and not findings:
                return Result(check, CheckOutcome.SKIPPED, skip_reason=f"timeout, see {reporter}")
            findings.append(no_response_finding(exc))
        except TimeoutError:
            self._aborted = f"responses are too slow: the run took {MAX_TIMEOUTS} times the timeout"
            return Result(check, CheckOutcome.SKIPPED, skip_reason=self._aborted)
        outcome = CheckOutcome.FAILED if findings else CheckOutcome.PASSED
        return Result(check, outcome, tuple(findings[:MAX_FINDINGS]), len(findings[MAX_FINDINGS:]))

    def _earlier_reporter(self, exc: NoResponseError, check: Check) -> str:
        """The check that already reported a timeout of this request; empty if this check is the first."""
        key = exc.request.method, exc.request.target.partition("?")[0]
        reporter = self._timeout_reporters.setdefault(key, check.name)
        return "" if reporter == check.name else reporter

    async def _collect_findings(self, check: Check, findings: list[Finding]) -> None:
        async with aclosing(check.function(self._node)) as generator:
            async for finding in generator:
                findings.append(finding)
                if len(findings) == MAX_FINDINGS + MAX_COUNTED_FINDINGS:
                    return

    def _skip_reason(self, check: Check) -> str:
        if check.uses_other_methods and not self._node.other_methods:
            return "other methods are disabled"
        if self._aborted:
            return self._aborted
        for need in check.needs:
            outcome = self._results[need].outcome
            if outcome is not CheckOutcome.PASSED:
                return f"{need} {'failed' if outcome is CheckOutcome.FAILED else 'was skipped'}"
        return ""
