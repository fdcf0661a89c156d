"""The commands of docs/install.md that change a machine, and the one of docs/embed.md, on a bare Debian."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from svcnode.version import __version__
from tests.deploy.test_checkout import IGNORED
from tests.deploy.test_deb import is_enabled, unit_runs, wait_for_health
from tests.support.debian import PRINT_VERSION, Machine, bare_debian, download_packages
from tests.support.documentation import ROOT, shown_commands

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

CHECKOUT = "/root/svcnode"
DRIVERS = "aiormq, apprise, asyncmy, h2, nats, psycopg, redis"
# The packages come from a folder: a test needs no index.
OFFLINE = {"HOME": "/root", "PIP_FIND_LINKS": "/packages", "PIP_NO_INDEX": "1", "PIP_ROOT_USER_ACTION": "ignore"}

# systemd does not run in a chroot: the units are enabled, and the test starts what they say.
SYSTEMCTL = """#!/bin/sh
[ "$1" != daemon-reload ] || exit 0
for argument; do
    shift
    [ "$argument" = --now ] || set -- "$@" "$argument"
done
SYSTEMD_OFFLINE=1 exec /usr/bin/systemctl.real "$@"
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """With a checkout, and what the page installs from Debian."""
    installed = [
        command.text for command in shown_commands(ROOT / "docs" / "install.md") if command.section == "With systemd"
    ]
    (packages,) = (text.split()[2:] for text in installed if text.startswith("apt install "))
    machine = Machine(bare_debian(*packages, "systemd"), tmp_path_factory.mktemp("install"))
    shutil.copytree(ROOT, machine.path(CHECKOUT), ignore=IGNORED)
    systemctl = machine.path("/usr/bin/systemctl")
    systemctl.rename(systemctl.with_suffix(".real"))
    systemctl.write_text(SYSTEMCTL)
    systemctl.chmod(0o755)
    version = machine.run(*PRINT_VERSION).strip()
    download_packages(machine.path("/packages"), version, "runtime", "build", more=["fastapi", "uvicorn"])
    return machine


def run_section(machine: Machine, page: str, section: str, *, path: str = "") -> None:
    """Its commands as one script. What comes from Debian is there already."""
    texts = [command.text for command in shown_commands(ROOT / "docs" / page) if command.section == section]
    script = "\n".join(text for text in texts if not text.startswith("apt install "))
    assert script
    environ = {**OFFLINE, "PATH": f"{path}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    machine.run("sh", "-e", "-c", f"cd {CHECKOUT}\n{script}", environ=environ)


def test_the_commands_with_systemd_install_a_node_that_is_healthy(machine: Machine) -> None:
    run_section(machine, "install.md", "With systemd")
    assert is_enabled(machine, "svcnode.socket")
    assert is_enabled(machine, "svcnode.service")
    units = [f"/etc/systemd/system/{name}" for name in ("svcnode.service", "svcnode@.service", "svcnode.socket")]
    machine.run("systemd-analyze", "verify", "--man=no", *units)
    for unit in units:
        shutil.copy(machine.path(unit), machine.path("/lib/systemd/system"))
    machine.run("svcnode", "check-config", "/etc/svcnode/svcnode.toml")
    machine.path("/etc/svcnode/svcnode.toml").write_text('[[services]]\nid = "disk"\nprobe = "disk:/"\n')
    with unit_runs(machine) as port:
        wait_for_health(port)
    machine.run("/opt/svcnode/bin/python", "-c", f"import {DRIVERS}", user="nobody")


def test_the_drivers_alone_can_be_installed_into_an_environment(machine: Machine) -> None:
    (command,) = (
        one.text
        for one in shown_commands(ROOT / "docs" / "install.md")
        if one.text.startswith("python3 -m venv env &&")
    )
    machine.run("sh", "-e", "-c", f"cd {CHECKOUT}\n{command}", environ=OFFLINE)
    machine.run(f"{CHECKOUT}/env/bin/python", "-c", f"import svcnode, {DRIVERS}")


def test_the_commands_for_a_wheel_build_and_install_it(machine: Machine) -> None:
    shutil.rmtree(machine.path("/opt/svcnode"), ignore_errors=True)
    run_section(machine, "install.md", "From a wheel")
    printed = machine.run("/opt/svcnode/bin/svcnode", "--version", user="nobody")
    assert re.match(rf"svcnode {re.escape(__version__)} ", printed)


def test_the_command_for_programs_that_embed_a_node_installs_what_they_import(machine: Machine, tmp_path: Path) -> None:
    machine.run("python3", "-m", "venv", "/opt/embed")
    run_section(machine, "embed.md", "Quick start", path="/opt/embed/bin:")
    machine.run("/opt/embed/bin/python", "-c", "import fastapi, svcnode, uvicorn", user="nobody")
