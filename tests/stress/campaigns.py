"""What all campaigns share: their options, where they run, and scenarios that are selected by name."""

# ruff: noqa: T201  for command-line programs

from __future__ import annotations

import argparse
import os
import random
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MIB = 1024**2


def campaign_parser(name: str, description: str | None, **counts: float) -> argparse.ArgumentParser:
    """With an option for each count, and `--seed`, which repeats a run."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.stress.{name}", description=description)
    for option, default in counts.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    return parser


@contextmanager
def campaign_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="svcnode-campaign-") as folder:
        yield Path(folder)


def machine() -> str:
    return f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}"


def memory_bytes(pid: int | str, name: str) -> int:
    """A value of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


class ScenarioReport(Protocol):
    figures: str
    samples: int

    @property
    def problems(self) -> list[str]: ...


def run_scenarios(names: Iterable[str], run: Callable[[Path, str], ScenarioReport]) -> int:
    """Run each in a folder of its own, print its figures and problems, and return how many problems there are."""
    count = 0
    with campaign_folder() as folder:
        for number, name in enumerate(names):
            try:
                report = run(folder / str(number), name)
            except pytest.skip.Exception as exc:
                print(f"| {name} | skipped: {exc} | | |", flush=True)
                continue
            print(f"| {name} | {report.figures} | {report.samples} | {len(report.problems)} |", flush=True)
            count += len(report.problems)
            for problem in report.problems[:10]:
                print(f"  {problem}", flush=True)
    return count


SCENARIOS_HEADER = "| scenario | figures | answers | problems |\n|---|---|---|---|"
