"""Debian packages of the real servers: installed if root runs the tests, otherwise named in the skip."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_TIMEOUT_S = 600
LOCK_RETRY_S = 2.0
_LOCK_ERROR = b"Could not get lock"  # of apt-get, in English because of LC_ALL

# With the folders of servers that are not on every PATH.
_SEARCH_PATH = [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/sbin", "/usr/local/sbin"]
_POLICY = Path("/usr/sbin/policy-rc.d")


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
    with (Path(tempfile.gettempdir()) / "svcnode-tests-apt.lock").open("w") as lock:
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
        done = subprocess.run(command, env=environ, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done.returncode == 0 or _LOCK_ERROR not in done.stderr or time.monotonic() > deadline_s:
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
