"""Debian's packages for the real servers: installed when we may, asked for when we may not."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where Debian puts servers that are not on everybody's PATH.
_SEARCH_PATH = [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/sbin", "/usr/local/sbin"]
_POLICY = Path("/usr/sbin/policy-rc.d")


def program(name: str, package: str, *, also_in: str = "") -> str:
    """The path of a server's program. Installs its package as root; otherwise skips, and under CI fails."""
    found = _find(name, also_in)
    if found is None and os.geteuid() == 0:
        _install(package)
        found = _find(name, also_in)
    if found is None:
        skip_or_fail(f"{name} is not installed: sudo apt-get install --no-install-recommends {package}")
    return found


def skip_or_fail(why: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def _find(name: str, also_in: str) -> str | None:
    """`also_in` is a pattern such as "/usr/lib/postgresql/*/bin"; the last one found counts."""
    folders = sorted(str(folder) for folder in Path("/").glob(also_in.lstrip("/"))) if also_in else []
    return shutil.which(name, path=os.pathsep.join([*reversed(folders), *_SEARCH_PATH]))


@cache
def _install(package: str) -> None:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with (Path(tempfile.gettempdir()) / "svcnode-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _no_services_started():
            for command in (["update"], ["install", "--yes", "--no-install-recommends", package]):
                subprocess.run(["apt-get", "-qq", *command], env=environ, check=False, stdout=subprocess.DEVNULL)


@contextmanager
def _no_services_started() -> Iterator[None]:
    """The tests start their own; what the package would start by itself holds ports and memory."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
