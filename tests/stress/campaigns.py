"""What all campaigns share: their options, where they run, and scenarios that are selected by name."""

# ruff: noqa: T201  for command-line programs

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


@dataclass
class ScenarioReport:
    """What one scenario found."""

    figures: str = ""
    samples: int = 0
    problems: list[str] = field(default_factory=list)

    def expect(self, condition: object, problem: str) -> None:
        if not condition:
            self.problems.append(problem)


RunScenario = Callable[[Path, str, random.Random, bool], ScenarioReport]  # folder, name, chance, whether it is short


def main_of_scenarios(name: str, description: str | None, names: Iterable[str], run: RunScenario, counted: str) -> int:
    """Run each in a folder of its own, and print its figures and problems. A machine may not be able to run one."""
    parser = campaign_parser(name, description)
    parser.add_argument("--only", nargs="*", choices=names, default=list(names))
    parser.add_argument("--short", action="store_true", help="as the tests do")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {machine()}\n\n| scenario | figures | answers | problems |\n|---|---|---|---|")
    count = 0
    with campaign_folder() as folder:
        for number, each in enumerate(arguments.only):
            try:
                report = run(folder / str(number), each, random.Random(arguments.seed), arguments.short)
            except pytest.skip.Exception as exc:
                print(f"| {each} | skipped: {exc} | | |", flush=True)
                continue
            print(f"| {each} | {report.figures} | {report.samples} | {len(report.problems)} |", flush=True)
            count += len(report.problems)
            for problem in report.problems[:10]:
                print(f"  {problem}", flush=True)
    print(f"\n{counted}: {count}")
    return 1 if count else 0


@contextmanager
def short_runs(folder: Path, names: Iterable[str], run: RunScenario, at_once: int) -> Iterator[Reports]:
    """Several scenarios at the same time: they mostly wait."""
    with ThreadPoolExecutor(at_once) as pool:
        yield {
            name: pool.submit(run, folder / str(number), name, random.Random(), True)
            for number, name in enumerate(names)
        }
        pool.shutdown(cancel_futures=True)


Reports = dict[str, "Future[ScenarioReport]"]
