"""The table: to the terminal always, to RESULTS.md after a whole run."""

from __future__ import annotations

import datetime
import platform
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
    "Ratio (range)",
    "Threshold",
    "Verdict",
    "Background load",
]
PACKAGES = ["uvloop", "httptools", "uvicorn", "granian", "fastapi"]


def row(python: Python, outcome: Result) -> list[str]:
    return [
        python.version,
        outcome.title,
        outcome.comparison.candidate.name,
        _number(median(outcome.values)),
        *_baseline_columns(outcome),
        str(outcome.comparison.threshold or ""),
        _threshold_text(outcome),
        f"{outcome.background_load:.0%}",
    ]


def _baseline_columns(outcome: Result) -> tuple[str, str, str]:
    baseline = outcome.comparison.baseline
    if baseline is None:
        return "", "", ""
    ratios = outcome.compared_values
    return (
        baseline.name,
        _number(median(outcome.baseline_values)),
        f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
    )


def table(rows: list[list[str]]) -> str:
    """Markdown that reads well in a terminal, too."""
    columns = list(zip(HEADINGS, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [HEADINGS, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def write(rows: list[list[str]], pythons: list[Python], command: str) -> None:
    versions = "\n".join(f"- {_versions(python)}" for python in pythons)
    RESULTS.write_text(f"""# Measured beside peers

{table(rows)}

The ratio is the median of the ratios of single rounds, each taken beside its peer in the same round.
The server has one core, the load another: 32 connections, keep-alive, the seven headers of an ordinary request.
Checks are counted where they arrive, over the time that the process that makes them has the processor.
Other work is the share of the two cores that went to anything else on the machine: the more of it, the less this says.

- Command: `{command}`
- Date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}
- Machine: {_machine()}
- Tools: {_tools()}
{versions}
""")


def _threshold_text(outcome: Result) -> str:
    bar = outcome.comparison.threshold
    if bar is None:
        return ""
    return "met" if bar.is_met_by(median(outcome.compared_values)) else "not met"


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
    return f"{nginx}, wrk {wrk}, haproxy {haproxy}, blackbox exporter {blackbox}"


def _versions(python: Python) -> str:
    ask = f"from importlib.metadata import version; print(*map(version, {PACKAGES!r}))"
    versions = zip(PACKAGES, output_of([python.path, "-c", ask]).split(), strict=True)
    return ", ".join([output_of([python.path, "-V"]), *(f"{name} {version}" for name, version in versions)])
