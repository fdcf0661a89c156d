"""Runs pytest with the arguments given; the few tests that fail are run once more, alone, and only then are failures.

Tests with real servers and browsers wait for others, within limits. Four of them at a time on a busy machine pass one
of those now and then, which says nothing about svcnode. What failed first stays in sight: it is printed in full.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MAX_RERUNS = 5  # where more than that fail, something is broken
TESTS_FAILED = 1  # pytest's exit code; any other non-zero one means that it could not do its work


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="svcnode-tests-") as folder:
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={folder}", *sys.argv[1:]]
        code = subprocess.run(command, check=False).returncode
        failed = failed_tests(Path(folder))
        if code != TESTS_FAILED or not 0 < len(failed) <= MAX_RERUNS:
            return code
        print("Rerunning failed tests one at a time:", *failed, sep="\n  ", flush=True)
        return subprocess.run([*command, "--last-failed", *without_xdist(command)], check=False).returncode


def failed_tests(folder: Path) -> list[str]:
    file = folder / "v" / "cache" / "lastfailed"
    return list(json.loads(file.read_text())) if file.exists() else []


def without_xdist(command: list[str]) -> list[str]:
    return ["-n", "0"] if "-n" in command else []


if __name__ == "__main__":
    sys.exit(main())
