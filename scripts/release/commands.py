"""Runs commands, and ends the program with one line if one fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path = ROOT, environ: Mapping[str, str] | None = None) -> str:
    """The output. If the command fails, its output is printed and the program ends."""
    done = subprocess.run(
        command, cwd=cwd, env=clean_environ() | dict(environ or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout + done.stderr, end="", file=sys.stderr)
        sys.exit(f"failed with exit code {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def git(root: Path, *arguments: str) -> str:
    """The output of git in this clone."""
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit("make: git is not installed: sudo apt-get install git")
    if done.returncode:
        reason = " ".join(done.stderr.split())
        sys.exit(f"make: git {arguments[0]} failed in {root}, which must be a clone of the repository: {reason}")
    return done.stdout.strip()


def check_clone(root: Path) -> None:
    """An unpacked sdist is no clone. Inside another repository, git would answer for that one."""
    if git(root, "rev-parse", "--show-prefix"):
        sys.exit(f"make: {root} is not a clone of the repository, but a folder inside another one: use a clone")


def make(target: str) -> None:
    """Its output is printed: it says what is missing."""
    done = subprocess.run(["make", "--no-print-directory", target], cwd=ROOT, env=clean_environ(), check=False)
    if done.returncode:
        sys.exit(f"failed with exit code {done.returncode}: make {target}")


def find_uv() -> Path:
    ours = ROOT / ".uv" / "bin" / "uv"
    found = ours if ours.exists() else shutil.which("uv")
    return Path(found) if found else sys.exit("uv is neither in .uv/bin nor on PATH: make setup")


def environment(folder: Path, pins: Path) -> Path:
    """Create a virtual environment with the pinned packages, and return its Python."""
    python = folder / "bin" / "python"
    uv = find_uv()
    run(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, "--no-python-downloads", folder)
    run(uv, "pip", "sync", "--quiet", "--python", python, "--require-hashes", pins)
    return python


def tools() -> Path:
    """The folder of the programs in requirements/release.txt."""
    return environment(ROOT / ".venv-release", ROOT / "requirements" / "release.txt").parent


def clean_environ() -> dict[str, str]:
    """Without variables that change where an interpreter finds modules, and those of `make` around this process."""
    removed = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    return {name: value for name, value in os.environ.items() if name not in removed}
