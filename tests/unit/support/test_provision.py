"""The installer of server packages waits for another apt-get instead of skipping the server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.servers import provision

if TYPE_CHECKING:
    from pathlib import Path

# Appends its arguments to a log, if the policy against starting services is in effect. Fails while the file `busy` has
# lines, and removes one line each time.
APT_GET = """\
#!/bin/sh
[ -x {folder}/policy-rc.d ] || exit 1
echo "$@" >> {folder}/log
if [ -s {folder}/busy ]; then
  sed -i 1d {folder}/busy
  echo "{error}" >&2
  exit 100
fi
"""
LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)"
OFFLINE = "E: Failed to fetch http://deb.example/debian  Temporary failure resolving 'deb.example'"


@pytest.fixture(autouse=True)
def fake_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(provision, "_POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(provision, "LOCK_RETRY_S", 0.0)


def install(folder: Path, *, failures: int, error: str) -> list[str]:
    """The commands that apt-get received."""
    apt_get = folder / "apt-get"
    apt_get.write_text(APT_GET.format(folder=folder, error=error))
    apt_get.chmod(0o755)
    (folder / "busy").write_text("busy\n" * failures)
    provision.install.__wrapped__("a-server")
    commands = [line.split() for line in (folder / "log").read_text().splitlines()]
    assert all("DPkg::Lock::Timeout=600" in command for command in commands)
    return ["update" if "update" in command else "install" for command in commands]


def test_a_package_is_installed_after_an_update(tmp_path: Path) -> None:
    assert install(tmp_path, failures=0, error="") == ["update", "install"]


def test_apt_get_is_repeated_while_another_process_holds_its_lock(tmp_path: Path) -> None:
    assert install(tmp_path, failures=3, error=LOCKED) == ["update"] * 4 + ["install"]


def test_apt_get_is_not_repeated_after_another_error(tmp_path: Path) -> None:
    assert install(tmp_path, failures=1, error=OFFLINE) == ["update", "install"]


def test_the_wait_for_the_lock_ends_after_its_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 10.0, provision.LOCK_TIMEOUT_S + 1.0])
    monkeypatch.setattr("tests.support.servers.provision.time.monotonic", lambda: next(times, 0.0))
    assert install(tmp_path, failures=2, error=LOCKED) == ["update", "update", "install"]


def test_the_policy_against_starting_services_ends_with_the_installation(tmp_path: Path) -> None:
    assert install(tmp_path, failures=0, error="") == ["update", "install"]
    assert not (tmp_path / "policy-rc.d").exists()
