"""What the benchmarks need and may be missing: Debian's tools and peers, and the peers for each Python."""

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
}
COMPARED_VERSION = "3.13"  # the bars name it, so it is measured wherever it is found


class MissingError(Exception):
    """Something is not here and cannot be had; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Python:
    version: str  # "3.13"
    path: Path


def require_two_cores() -> None:
    if SERVER_CORE == LOAD_CORE:
        raise MissingError("two cores are needed: one for the server, one for the load")


def tool(name: str) -> str:
    """The path of a tool; /usr/sbin, where some are, is not on everybody's PATH."""
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
            f"{', '.join(DEBIAN_PACKAGES)} are needed; install what is missing with\n  sudo {' '.join(install)}"
        )
    _run("apt-get", "update")
    _run(*install)


def default_pythons() -> list[Path]:
    """The running interpreter, and the version that the bars name where it is another."""
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
    """A virtual environment of that interpreter with us and our peers' requirements, and nothing else."""
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
    """What a command says, on whichever stream it says it."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.strip()


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def _find(name: str) -> str | None:
    places = [str(ROOT / ".uv" / "bin"), os.environ.get("PATH", os.defpath), "/usr/sbin"]
    return shutil.which(name, path=os.pathsep.join(places))
