"""A copy of the tree, in which mutants are written and tests run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PLUGIN = Path(__file__).with_name("mutant_hits.py")
REAP = Path(__file__).with_name("reap.py")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutant_hits", "--hypothesis-seed=0")


class Copy:
    """The committed state of a tree, with its own environment, in which mutants are written and tests run."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self.python = folder / ".venv" / "bin" / "python"
        if not (folder / ".venv" / ".ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run(["git", "clone", "--quiet", "--local", tree, folder], check=True)
            subprocess.run(["make", "--silent", "setup"], cwd=folder, check=True)
        sources = self._git("ls-files", "src")
        self._git("update-index", "--no-assume-unchanged", "--stdin", sent=sources)
        self._git("checkout", "--quiet", "--", "src")  # a mutant may be left from a run that was ended
        # Tests that look at the state of the clone see no change.
        self._git("update-index", "--assume-unchanged", "--stdin", sent=sources)
        packages = next((folder / ".venv" / "lib").glob("python3*")) / "site-packages"
        shutil.copy(PLUGIN, packages)
        (packages / "mutant_hits.pth").write_text("import mutant_hits\n")
        self.hits = packages / "mutant-hits"
        self.hits.mkdir(exist_ok=True)
        self.hits.chmod(0o777)  # servers run as other users

    def _git(self, *arguments: str, sent: bytes = b"") -> bytes:
        return subprocess.run(
            ["git", *arguments], cwd=self.folder, input=sent, stdout=subprocess.PIPE, check=True
        ).stdout

    def write(self, path: str, source: bytes) -> None:
        file = self.folder / path
        file.write_bytes(source)
        # The time of a file counts in seconds, so an old bytecode file could pass for one of this source.
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            compiled.unlink()

    def read(self, path: str) -> bytes:
        return (self.folder / path).read_bytes()

    def run_tests(self, *options: str, tests: Sequence[str] = (), limit_s: float) -> Run:
        """`tests` are run in their order; none stands for all."""
        report, chosen = self.folder / ".mutant-report", self.folder / ".mutant-tests"
        report.write_text("")
        chosen.write_text("\n".join(tests))
        environ = {**os.environ, "MUTANT_REPORT": str(report), "NO_COLOR": "1"}
        if tests:
            environ["MUTANT_TESTS"] = str(chosen)
        files = list(dict.fromkeys(file_of(test) for test in tests))
        command = [sys.executable, str(REAP), str(limit_s), str(self.python), *PYTEST, *options, *files]
        done = subprocess.run(
            command, cwd=self.folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        run = Run(code=done.returncode, output=done.stdout.decode(errors="replace"))
        for line in report.read_text().splitlines():
            test, outcome, duration_s = json.loads(line)
            run.durations[test] = run.durations.get(test, 0.0) + duration_s
            if outcome == "failed":
                run.failed.setdefault(test)
            elif outcome == "skipped":
                run.skipped.add(test)
        return run


@dataclass(slots=True)
class Run:
    code: int = 0
    output: str = ""
    durations: dict[str, float] = field(default_factory=dict)
    failed: dict[str, None] = field(default_factory=dict)  # in order
    skipped: set[str] = field(default_factory=set)


def file_of(test: str) -> str:
    return test.partition("::")[0]
