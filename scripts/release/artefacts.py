"""The files of a release: how each is built, and what describes all of them."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

from scripts.release.commands import ROOT, environment, find_uv, run, tools

SUMS = "SHA256SUMS"


def build_sdist_and_wheel(folder: Path, source: Path = ROOT) -> None:
    """The wheel is built from the sdist."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source)


def build_pyz(folder: Path, source: Path = ROOT) -> None:
    environ = {"PATH": f"{find_uv().parent}:{os.environ['PATH']}"}  # a clone has no uv
    run(sys.executable, "-m", "scripts.release.pyz", folder / "svcnode.pyz", cwd=source, environ=environ)


def write_sbom(file: Path, version: str, wheel: Path) -> None:
    """CycloneDX of svcnode with all drivers; the tool validates it against the official schema."""
    with tempfile.TemporaryDirectory(prefix="svcnode-sbom-") as name:
        python = environment(Path(name, "venv"), ROOT / "requirements" / "runtime.txt")
        run(find_uv(), "pip", "install", "--quiet", "--python", python, "--no-deps", wheel)
        project = Path(name, "pyproject.toml")  # the tool does not read a version that is dynamic
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        project.write_text(text.replace('dynamic = ["readme", "version"]', f'version = "{version}"'), encoding="utf-8")
        options = ("--output-reproducible", "--spec-version", "1.6", "--pyproject", project, "--output-file", file)
        run(tools() / "cyclonedx-py", "environment", *options, python)


def check_packages(wheel: Path, sdist: Path) -> None:
    """What a package index would refuse, and files in the wheel that do not belong there."""
    run(tools() / "twine", "check", "--strict", wheel, sdist)
    run(tools() / "check-wheel-contents", wheel)


def write_sums(folder: Path) -> None:
    lines = [f"{_sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir()) if file.name != SUMS]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def differing(first: Path, second: Path) -> list[str]:
    """The names of the files that are not the same in both folders."""
    names = {file.name for folder in (first, second) for file in folder.iterdir()}
    return sorted(name for name in names if _sha256(first / name) != _sha256(second / name))


def _sha256(file: Path) -> str:
    """Empty if there is no such file."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""
