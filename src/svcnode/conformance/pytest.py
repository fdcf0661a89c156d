"""A pytest plugin: one test per check, in the test suite of a node.

    from svcnode.conformance.pytest import conform

    test_node = conform("http://127.0.0.1:8420")

or, if a fixture starts the node, with `pytest_plugins = ["svcnode.conformance.pytest"]`:

    def test_node(conform, node_url):
        conform(node_url)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, TypedDict, Unpack

import pytest

from svcnode.conformance.check import Level
from svcnode.conformance.checks import CHECKS
from svcnode.conformance.report import level_text, result_details
from svcnode.conformance.run import CheckOutcome, Report, Result, check_node
from svcnode.core.errors import InvalidValueError
from svcnode.core.units import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Callable

CHECK_NAMES = tuple(check.name for check in CHECKS)


class ConformOptions(TypedDict, total=False):
    """The options of the command line."""

    level: Literal["must", "should", "advice"]
    prefix: str
    timeout: str | float
    ca: str | Path
    other_methods: bool


class ReportCache:
    """One report per node and options, shared by all tests."""

    def __init__(self) -> None:
        self._reports: dict[str, Report] = {}
        self._reported: set[str] = set()  # nodes whose failure to respond was reported

    def assert_check(self, name: str, url: str, options: ConformOptions) -> None:
        __tracebackhide__ = True
        level = Level(options.get("level", "should"))
        key = repr((url, sorted(options.items())))
        if key not in self._reports:
            self._reports[key] = _run(url, options)
        report = self._reports[key]
        if report.unreachable:
            self._fail_once(key, f"cannot check {report.url}: {report.unreachable}")
        result = next(result for result in report.results if result.check.name == name)
        if report.aborted and result.skip_reason == report.aborted:
            self._fail_once(key, result.skip_reason)
        _raise_outcome(report, result, level)

    def _fail_once(self, key: str, reason: str) -> NoReturn:
        """Fail one test and skip the others: sixty equal failures would hide the cause."""
        __tracebackhide__ = True
        if key in self._reported:
            pytest.skip("an earlier test reports why the node cannot be checked")
        self._reported.add(key)
        pytest.fail(reason, pytrace=False)


def _run(url: str, options: ConformOptions) -> Report:
    try:
        return check_node(
            url,
            prefix=options.get("prefix", "/svc"),
            timeout_s=parse_duration_s(options.get("timeout", "5s")),
            ca=Path(options["ca"]) if "ca" in options else None,
            other_methods=options.get("other_methods", True),
        )
    except InvalidValueError as exc:
        return Report(url="the node", unreachable=str(exc))


def conform(url: str | Callable[[], str], **options: Unpack[ConformOptions]) -> Callable[[str], None]:
    """A test function with one case per check; assign it to a name that begins with `test_`.

    `url` is the base URL of the node, or a function that returns it when the tests run. The options are those of the
    command line: `level`, `prefix`, `timeout`, `ca`, and `other_methods=False`.
    """
    reports = ReportCache()

    @pytest.mark.parametrize("check", CHECK_NAMES)
    def test(check: str) -> None:
        __tracebackhide__ = True
        reports.assert_check(check, url if isinstance(url, str) else url(), options)

    return test


def _raise_outcome(report: Report, result: Result, level: Level) -> None:
    __tracebackhide__ = True
    if result.outcome is CheckOutcome.SKIPPED:
        pytest.skip(result.skip_reason)
    if result.outcome is CheckOutcome.FAILED:
        details = [f"  {name:12}{text}" for name, text in result_details(result)]
        text = "\n".join([f"{result.check.name}: {level_text(result)}", *details, *report.remarks])
        if result.is_failure_at(level):
            pytest.fail(text, pytrace=False)
        pytest.xfail(text)


# ---- plugin


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize every test that uses the fixture `conform` with the checks."""
    if "conform" in metafunc.fixturenames:
        metafunc.parametrize("conform", CHECK_NAMES, indirect=True)


@pytest.fixture(scope="module")
def conformance_reports() -> ReportCache:
    return ReportCache()


@pytest.fixture(name="conform")
def _conform(request: pytest.FixtureRequest, conformance_reports: ReportCache) -> Callable[..., None]:
    """`conform(url, …)` checks the node once per module; each test reports one check."""
    check: str = request.param

    def assert_conforms(url: str, **options: Unpack[ConformOptions]) -> None:
        __tracebackhide__ = True
        conformance_reports.assert_check(check, url, options)

    return assert_conforms
