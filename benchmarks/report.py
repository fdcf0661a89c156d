"""The table of results: printed, and written to RESULTS.md after a complete run."""

from __future__ import annotations

import datetime
import platform
import re
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.provision import output_of, tool

if TYPE_CHECKING:
    from benchmarks.comparison import Result
    from benchmarks.provision import Python

RESULTS = Path(__file__).parent / "RESULTS.md"
HEADINGS = [
    "Python",
    "Figure",
    "Server",
    "Median",
    "Baseline",
    "Median",
    "Ratio (90 % interval)",
    "Threshold",
    "Verdict",
    "Background load",
]
INTRODUCTION = """\
# Measured beside peers

One section per kind of machine: figures of different machines cannot be compared, only their ratios and verdicts.

The ratio is the median of the ratios of single rounds, each taken beside its peer in the same round. The interval in
parentheses contains the true median with a probability of at least 90 %. If it contains the threshold, the verdict is
"spans it": the rounds do not decide.
The server has one core, the load generator another: 32 keep-alive connections, seven request headers.
Checks are counted at the target, per second of CPU time of the checking process.
The background load is the share of the two cores that other processes used: the higher, the less reliable the row.
"""
PACKAGES = ["uvloop", "httptools", "uvicorn", "granian", "fastapi"]


def row(python: Python, result: Result) -> list[str]:
    return [
        python.version,
        result.title,
        result.comparison.candidate.name,
        _value_text(result),
        *_baseline_columns(result),
        str(result.comparison.threshold or ""),
        result.verdict,
        f"{result.background_load:.0%}",
    ]


def _baseline_columns(result: Result) -> tuple[str, str, str]:
    baseline = result.comparison.baseline
    if baseline is None:
        return "", "", ""
    low, high = result.interval
    return (
        baseline.name,
        _number(median(result.baseline_values)),
        f"{median(result.compared_values):.2f} ({low:.2f} to {high:.2f})",
    )


def _value_text(result: Result) -> str:
    """With its interval, if the value itself is judged."""
    text = _number(median(result.values))
    if result.comparison.baseline is not None:
        return text
    low, high = result.interval
    return f"{text} ({_number(low)} to {_number(high)})"


def table(rows: list[list[str]]) -> str:
    """Aligned Markdown."""
    columns = list(zip(HEADINGS, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [HEADINGS, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def write(rows: list[list[str]], pythons: list[Python], command: str) -> None:
    versions = "\n".join(f"- {_versions(python)}" for python in pythons)
    section = f"""
{table(rows)}

- Command: `{command}`
- Date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}
- Tools: {_tools()}
{versions}
"""
    RESULTS.write_text(with_section(RESULTS.read_text() if RESULTS.exists() else "", _machine(), section))


def with_section(text: str, machine: str, section: str) -> str:
    """The text of the results with a new section of this machine. The sections of other machines stay."""
    _, *parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    sections = {**dict(zip(parts[::2], parts[1::2], strict=True)), machine: section}
    return INTRODUCTION + "".join(f"\n## {name}\n\n{body.strip()}\n" for name, body in sections.items())


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _machine() -> str:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    return f"{cpu.partition(': ')[2]}, {platform.system()} {platform.release()}"


def _tools() -> str:
    nginx = output_of([tool("nginx"), "-v"]).rpartition(" ")[2]
    wrk = output_of([tool("wrk"), "-v"]).split()[1]
    haproxy = output_of([tool("haproxy"), "-v"]).split()[2]
    blackbox = output_of([tool("prometheus-blackbox-exporter"), "--version"]).split()[2]
    prometheus = output_of([tool("prometheus"), "--version"]).split()[2]
    monit = output_of([tool("monit"), "--version"]).split()[4]
    redis = output_of([tool("redis-server"), "--version"]).split()[2].removeprefix("v=")
    return (
        f"{nginx}, wrk {wrk}, haproxy {haproxy}, blackbox exporter {blackbox}, prometheus {prometheus}, monit {monit}, "
        f"redis {redis}"
    )


def _versions(python: Python) -> str:
    script = f"from importlib.metadata import version; print(*map(version, {PACKAGES!r}))"
    versions = zip(PACKAGES, output_of([python.path, "-c", script]).split(), strict=True)
    return ", ".join([output_of([python.path, "-V"]), *(f"{name} {version}" for name, version in versions)])
