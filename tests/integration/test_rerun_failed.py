"""What gives failing tests a second chance hides no failure that stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "rerun_failed.py"
FAILS_ONCE = """
def test_it():
    file = pathlib.Path("tried")
    is_second = file.exists()
    file.touch()
    assert is_second
"""


def run_script(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    if not SCRIPT.exists():
        pytest.skip("the scripts are not part of the wheel")
    (folder / "test_some.py").write_text(f"import pathlib\nimport pytest\n{tests}")
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, str(SCRIPT), "-q", "-p", "no:cov", "-p", "no:randomly"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_what_fails_only_once_passes_and_its_failure_is_printed(tmp_path: Path) -> None:
    done = run_script(tmp_path, FAILS_ONCE)
    assert done.returncode == 0
    assert "FAILED test_some.py::test_it" in done.stdout
    assert "Rerunning failed tests one at a time:\n  test_some.py::test_it\n" in done.stdout


def test_what_fails_twice_fails(tmp_path: Path) -> None:
    done = run_script(tmp_path, FAILS_ONCE + "def test_other():\n    assert False\n")
    assert (done.returncode, done.stdout.count("1 failed, 1 passed")) == (1, 1)


def test_where_much_fails_nothing_is_tried_again(tmp_path: Path) -> None:
    done = run_script(tmp_path, "@pytest.mark.parametrize('n', range(9))\ndef test_it(n):\n    assert False\n")
    assert done.returncode == 1
    assert "9 failed" in done.stdout
    assert "Once more" not in done.stdout


def test_tests_that_cannot_be_read_are_no_matter_of_chance(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import nothing_of_this_name\n")
    assert done.returncode == 2
    assert "Once more" not in done.stdout
