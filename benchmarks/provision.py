"""Installs Debian's tools and the peers for each Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cores import LOAD_CORE, SERVER_CORE

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements" / "bench.txt"
DEBIAN_PACKAGES = {
    "nginx": "nginx-light",
    "wrk": "wrk",
    "haproxy": "haproxy",
    "prometheus-blackbox-exporter": "prometheus-blackbox-exporter",
    "prometheus": "prometheus",
    "monit": "monit",
    "redis-server": "redis-server",
}
COMPARED_VERSION = "3.13"  # thresholds exist for it, so it is measured if installed


class MissingError(Exception):
    """A missing tool; the text says how to install it."""


@dataclass(frozen=True, slots=True)
class Python:
    version: str  # "3.13"
    path: Path


def require_two_cores() -> None:
    if SERVER_CORE == LOAD_CORE:
        raise MissingError("the benchmarks need two cores: one for the server, one for the load generator")


def tool(name: str) -> str:
    """The path of a tool, also from /usr/sbin, which PATH may lack."""
    found = _find(name)
    if found is None:
        raise MissingError(f"{name} is not installed")
    return found


def install_tools() -> None:
    missing = [package for name, package in DEBIAN_PACKAGES.items() if _find(name) is None]
    if not missing:
        return
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0:
        raise MissingError(
            f"{', '.join(DEBIAN_PACKAGES)} are needed; install the missing ones with\n  sudo {' '.join(install)}"
        )
    _run("apt-get", "update")
    _run(*install)


def default_pythons() -> list[Path]:
    """The running interpreter, and COMPARED_VERSION if it is another one."""
    running = Path(sys.executable)
    if sys.version_info[:2] == tuple(map(int, COMPARED_VERSION.split("."))):
        return [running]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = sorted(pyenv.glob(f"versions/{COMPARED_VERSION}.*/bin/python{COMPARED_VERSION}"))
    on_path = shutil.which(f"python{COMPARED_VERSION}")
    if not found and on_path is not None:
        found = [Path(on_path)]
    return [running, *found[-1:]]


def environment(interpreter: Path) -> Python:
    """A virtual environment of that interpreter with the requirements of the benchmarks only."""
    version = output_of([interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    folder = ROOT / f".venv-bench-{version}"
    python = folder / "bin" / "python"
    uv = _find("uv")
    if uv is None:
        _run(interpreter, "-m", "venv", folder)
        _run(python, "-m", "pip", "install", "--quiet", "--requirement", REQUIREMENTS)
    else:
        _run(uv, "venv", "--quiet", "--allow-existing", "--python", interpreter, folder)
        _run(uv, "pip", "install", "--quiet", "--python", python, "--requirement", REQUIREMENTS)
    return Python(version, python)


def output_of(command: list[str | Path]) -> str:
    """Standard output and standard error of a command."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.strip()


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def _find(name: str) -> str | None:
    folders = [str(ROOT / ".uv" / "bin"), os.environ.get("PATH", os.defpath), "/usr/sbin"]
    return shutil.which(name, path=os.pathsep.join(folders))
