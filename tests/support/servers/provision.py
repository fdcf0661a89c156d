"""Packages that tests need: Debian packages, installed if root runs the tests; npm and Python packages."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_TIMEOUT_S = 600
INSTALL_TIMEOUT_S = 100
LOCK_RETRY_S = 2.0
_LOCK_ERROR = b"Could not get lock"  # of apt-get, in English because of LC_ALL

# With the folders of servers that are not on every PATH.
_SEARCH_PATH = [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/sbin", "/usr/local/sbin"]
_POLICY = Path("/usr/sbin/policy-rc.d")
_ROOT = Path(__file__).parents[3]
_CACHE = _ROOT / ".cache"  # git ignores it


def program(name: str, package: str, *, also_in: str = "") -> str:
    """The path of a server's program. Installs its package as root; otherwise skips the test, or fails it in CI."""
    found = _find(name, also_in)
    if found is None and os.geteuid() == 0:
        install(package)
        found = _find(name, also_in)
    if found is None:
        skip_or_fail(f"{name} is not installed: sudo apt-get install --no-install-recommends {package}")
    return found


def skip_or_fail(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _find(name: str, also_in: str) -> str | None:
    """`also_in` is a pattern such as "/usr/lib/postgresql/*/bin"; the last match counts."""
    folders = sorted(str(folder) for folder in Path("/").glob(also_in.lstrip("/"))) if also_in else []
    return shutil.which(name, path=os.pathsep.join([*reversed(folders), *_SEARCH_PATH]))


@cache
def install(package: str) -> None:
    with Path("/tmp/svcnode-tests-apt.lock").open("w") as lock:  # the same for all runs; each has its own TMPDIR
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _no_services_started():
            _apt_get("update")
            _apt_get("install", "--yes", "--no-install-recommends", package)


def _apt_get(*arguments: str) -> None:
    """Waits while another apt-get or dpkg runs: apt waits for the lock of dpkg, but not for that of its lists."""
    command = ["apt-get", "-qq", "-o", f"DPkg::Lock::Timeout={LOCK_TIMEOUT_S}", *arguments]
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        # It finishes when the tests are interrupted: no signal of their terminal, and no broken pipe, reaches it.
        with tempfile.TemporaryFile() as errors:
            done = subprocess.run(
                command, env=environ, check=False, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
            errors.seek(0)
            if done.returncode == 0 or _LOCK_ERROR not in errors.read() or time.monotonic() > deadline_s:
                return
        time.sleep(LOCK_RETRY_S)


@contextmanager
def _no_services_started() -> Iterator[None]:
    """A server that its package starts would occupy ports and memory; tests start their own."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


# ---- npm and Python packages


@contextmanager
def _cache_lock(name: str) -> Iterator[None]:
    """Concurrent test runs wait for each other."""
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def cache_folder(name: str) -> Iterator[Path]:
    """A folder for what is built once. One test process at a time has it."""
    with _cache_lock(name):
        folder = _CACHE / name
        folder.mkdir(exist_ok=True)
        yield folder


def tool(name: str) -> str:
    return shutil.which(name) or skip_or_fail(f"{name} is not installed: the test needs Node.js and npm")


def npm_package(name: str, version: str) -> Path:
    """The folder of the package, which is installed once."""
    home = _CACHE / "npm"
    package = home / "node_modules" / name
    npm = tool("npm")
    with _cache_lock("npm"):
        if _npm_version(package) != version:
            options = ["--silent", "--no-audit", "--no-fund", "--prefix", str(home)]
            done = subprocess.run([npm, "install", *options, f"{name}@{version}"], check=False, capture_output=True)
            if done.returncode != 0 or _npm_version(package) != version:
                skip_or_fail(f"npm could not install {name} {version}: {done.stderr.decode(errors='replace')[-500:]}")
    return package


def _npm_version(package: Path) -> str | None:
    with suppress(OSError, ValueError):
        version: str = json.loads((package / "package.json").read_text())["version"]
        return version
    return None


def python_environment(pins: Path) -> Path:
    """The folder of a virtual environment with the pinned packages; created once per set of pins."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = _CACHE / f"{pins.stem}-{version}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}"
    with _cache_lock(pins.stem):
        if not (folder / "ready").exists():
            _create_environment(folder, pins)
            (folder / "ready").touch()
    return folder


def _create_environment(folder: Path, pins: Path) -> None:
    ours = _ROOT / ".uv" / "bin" / "uv"
    uv = str(ours) if ours.exists() else shutil.which("uv")
    if uv is None:
        skip_or_fail(f"uv is neither in .uv/bin nor on PATH, and {pins.name} needs an environment of its own")
    make = [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, "--no-python-downloads", str(folder)]
    python = str(folder / "bin" / "python")
    fill = [uv, "pip", "sync", "--quiet", "--python", python, "--require-hashes", str(pins)]
    for command in (make, fill):
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
        if done.returncode:
            skip_or_fail(f"{pins.name} could not be installed: {done.stderr[-500:]}")
