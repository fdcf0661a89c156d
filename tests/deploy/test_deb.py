"""The Debian package in a bare Debian: installed, used, upgraded, removed and purged."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.version import __version__
from tests.support.debian import Machine, bare_debian
from tests.support.ports import free_port
from tests.support.servers.base import wait_until
from tests.support.servers.provision import program, skip_or_fail
from tests.support.unit_sandbox import parse_unit

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600
# What the package depends on, and what a new user has to read the manual and to complete commands.
PACKAGES = ("adduser", "bash-completion", "man-db", "python3", "systemd", "tzdata")
CONFIG_FILE = "/etc/svcnode/svcnode.toml"
HISTORY = "/var/lib/svcnode/nodes/validator-7/history.db"
CONFIG = """
[node]
name = "validator-7"
[server]
drain = "0s"
[defaults]
interval = "500ms"
[[services]]
id = "disk"
probe = "disk:/var"
"""
# What the tools of Debian write, which is not of this package.
NOT_OURS = re.compile(r"/(run|var/cache|var/log|var/lib/(apt|dpkg))/.*|/etc/\.pwd\.lock|/etc/\w+-")
# systemd does not run in a chroot: records what the scripts of the package ask it to do. A node with an invalid
# configuration is activating, without end, as its unit has Restart=. The rest is for the real one.
SYSTEMCTL = """#!/bin/sh
valid() { svcnode check-config /etc/svcnode/svcnode.toml > /dev/null 2>&1; }
case " $* " in
*" restart "*svcnode.service*) echo "$*" >> /run/systemctl.log && valid ;;
*" start "* | *" stop "* | *" restart "* | *" try-restart "*) echo "$*" >> /run/systemctl.log ;;
*" is-active "*) if valid; then echo active; else echo activating; exit 3; fi ;;
*" daemon-reload "*) ;;
*) SYSTEMD_OFFLINE=1 exec /usr/bin/systemctl.real "$@" ;;
esac
"""


@pytest.fixture(scope="session")
def package() -> Path:
    """Built as a contributor builds it."""
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    program("dpkg-buildpackage", "dpkg-dev")
    program("dh", "debhelper")
    # The environment of the tests is not installed again. The last line is the file, also below `make deploy-test`.
    make = ["make", "--no-print-directory", "--old-file=.venv/.ready", "deb"]
    built = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert built.returncode == 0, built.stderr
    file = ROOT / built.stdout.splitlines()[-1]
    assert file.name.startswith(f"svcnode_{__version__}_")
    return file


@pytest.fixture(scope="session")
def newer(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same package with a higher version and another configuration, as a later release has."""
    folder = tmp_path_factory.mktemp("newer") / "svcnode"
    subprocess.run(["dpkg-deb", "--raw-extract", package, folder], check=True)
    control = folder / "DEBIAN" / "control"
    control.write_text(control.read_text().replace(f"Version: {__version__}\n", f"Version: {__version__}+1\n"))
    with (folder / "usr/share/svcnode/svcnode.toml").open("a") as config:
        config.write("\n# Of the next release.\n")
    file = folder.with_suffix(".deb")
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", folder, file], check=True, capture_output=True
    )
    return file


def new_machine(folder: Path) -> Machine:
    machine = Machine(bare_debian(*PACKAGES), folder)
    systemctl = machine.path("/usr/bin/systemctl")
    systemctl.rename(systemctl.with_suffix(".real"))
    systemctl.write_text(SYSTEMCTL)
    systemctl.chmod(0o755)
    machine.path("/run/systemd/system").mkdir(parents=True, exist_ok=True)  # for the scripts, systemd runs
    return machine


def install(machine: Machine, file: Path) -> str:
    """Unattended: a question of dpkg would be an error. Returns what is printed."""
    shutil.copy(file, machine.path("/tmp"))
    command = f"apt-get install --yes --no-install-recommends /tmp/{file.name} < /dev/null 2>&1"
    printed = machine.run("sh", "-c", command)
    machine.path(f"/tmp/{file.name}").unlink()
    return printed


def systemctl_calls(machine: Machine) -> list[str]:
    """Since the last time, without options."""
    log = machine.path("/run/systemctl.log")
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return [re.sub(r"--\w+ ", "", line) for line in lines]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    yield (machine := new_machine(tmp_path_factory.mktemp("machine")))
    shutil.rmtree(machine.root)


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which no service may be started, as an image that is being built."""
    machine = new_machine(tmp_path_factory.mktemp("installed"))
    policy = machine.path("/usr/sbin/policy-rc.d")
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    install(machine, package)
    yield machine
    shutil.rmtree(machine.root)


# ---- a node of the package


@contextmanager
def unit_runs(machine: Machine, instance: str = "") -> Iterator[int]:
    """Run the command of the unit as its user, with the folders that systemd makes; yields the port."""
    file = machine.path(f"/lib/systemd/system/svcnode{'@' if instance else ''}.service")
    unit = parse_unit(file.read_text().replace("%i", instance))
    (user,), (command,) = unit["User"], unit["ExecStart"]
    (state,), (runtime,) = unit["StateDirectory"], unit["RuntimeDirectory"]
    folders = {"STATE_DIRECTORY": f"/var/lib/{state}", "RUNTIME_DIRECTORY": f"/run/{runtime}"}
    for folder in folders.values():
        machine.run("install", "-d", "-o", user, "-g", user, "-m", "700", folder)
    port = free_port()
    log = machine.root.parent / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            machine.command(
                *command.split(), user=user, environ={**folders, "SVCNODE_SERVER_LISTEN": f"127.0.0.1:{port}"}
            ),
            stderr=stderr,
        )
    try:
        wait_until(lambda: get(port, "/livez") is not None, "the node answers")
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def get(port: int, path: str) -> tuple[int, Any] | None:
    """The code and the content, or None while nothing answers."""
    with suppress(OSError):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, json.loads(body) if body.startswith(b"{") else body
    return None


def wait_for_health(port: int) -> None:
    wait_until(lambda: get(port, "/svc/node/health") == (200, b""), "the node is healthy")


def transitions(port: int) -> list[Any]:
    answered = get(port, "/history?id=disk&transitions=100")
    assert answered is not None
    assert answered[0] == 200
    return list(answered[1]["transitions"].get("disk", []))


def notes(machine: Machine, config_file: str) -> list[str]:
    items = json.loads(machine.run("svcnode", "history", "--config", config_file, "--json"))["items"]
    return [item["reason"] for item in items if item["kind"] == "note"]


# ---- installed


def test_the_command_runs_for_every_user_and_writes_nothing_beside_its_files(installed: Machine) -> None:
    before = installed.files()
    assert installed.run("svcnode", "--version", user="nobody").startswith(f"svcnode {__version__} ")
    installed.run("svcnode", "probe", "disk:/")
    modules = "aiormq, apprise, asyncmy, cryptography, h2, nats, nkeys, psycopg, redis, uvloop"
    installed.run("/usr/lib/svcnode/bin/python", "-B", "-c", f"import {modules}", user="nobody")
    assert {file for file in installed.files() - before if file.startswith(("/usr", "/etc"))} == set()
    for name in ("pyvenv.cfg", "bin/svcnode"):
        assert str(ROOT) not in installed.path(f"/usr/lib/svcnode/{name}").read_text()


def test_manual_completion_and_units_are_where_debian_expects_them(installed: Machine) -> None:
    assert "/usr/share/man/man1/svcnode.1.gz" in installed.run("man", "--where", "svcnode")
    assert "svcnode.toml" in installed.run("man", "5", "svcnode.toml")
    script = """
        source /usr/share/bash-completion/bash_completion
        _completion_loader svcnode
        COMP_WORDS=(svcnode wat) COMP_CWORD=1
        _svcnode
        echo "${COMPREPLY[@]}"
    """
    assert installed.run("bash", "-c", script) == "watch\n"
    for file in ("zsh/vendor-completions/_svcnode", "fish/vendor_completions.d/svcnode.fish"):
        assert installed.path(f"/usr/share/{file}").exists()
    units = [f"/lib/systemd/system/{name}" for name in ("svcnode.service", "svcnode@.service", "svcnode.socket")]
    installed.run("systemd-analyze", "verify", *units)
    assert systemctl_calls(installed) == [], "no service may be started here"
    assert is_enabled(installed, "svcnode.service")
    assert not is_enabled(installed, "svcnode.socket")
    config = installed.path(CONFIG_FILE)
    group = installed.run("stat", "--format=%U:%G", CONFIG_FILE).strip()
    assert (group, config.stat().st_mode & 0o777) == ("root:svcnode", 0o640), "it may get secrets"
    schema = config.read_text().splitlines()[0].removeprefix("#:schema file://")
    assert json.loads(installed.run("cat", schema, user="nobody"))["title"]


def test_lintian_accepts_the_package(package: Path) -> None:
    lintian = program("lintian", "lintian")
    command = [lintian, "--allow-root", "--display-info", "--fail-on=error,warning", str(package)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout
    for tag in ("extra-license-file", "systemd-service-file-missing-documentation-key"):
        assert tag not in done.stdout


def test_the_copyright_file_has_the_licenses_of_all_packages(installed: Machine) -> None:
    text = installed.path("/usr/share/doc/svcnode/copyright").read_text()
    pins = (ROOT / "requirements/runtime.txt").read_text()
    named = {re.sub("[-_.]+", "-", name).lower() for name in re.findall(r"(?m)^([\w.-]+) \S+\nLicense: \S", text)}
    packages = {
        path.name.partition("-")[0].lower().replace("_", "-")
        for path in installed.path("/usr/lib/svcnode/lib").glob("python3*/site-packages/*.dist-info")
    }
    assert named == packages - {"svcnode"}
    assert named <= set(re.findall(r"(?m)^([a-z0-9-]+)(?:\[.*\])?==", pins))
    assert "Permission is hereby granted" in text


# ---- its life


def is_enabled(machine: Machine, unit: str) -> bool:
    return any((folder / unit).is_symlink() for folder in machine.path("/etc/systemd/system").glob("*.wants"))


def test_configuration_and_history_outlive_an_upgrade_and_a_removal_but_not_a_purge(
    machine: Machine, package: Path, newer: Path
) -> None:
    accounts = [machine.path(f"/etc/{name}") for name in ("passwd", "group", "shadow", "gshadow")]
    before, accounts_before = machine.files(), [file.read_text() for file in accounts]

    install(machine, package)
    assert systemctl_calls(machine) == ["start svcnode.service"]
    machine.path(CONFIG_FILE).write_text(CONFIG)
    machine.path("/etc/svcnode/credentials").mkdir()
    machine.path("/etc/svcnode/credentials/ledger").write_text("secret")
    machine.path("/etc/systemd/system/svcnode.service.d").mkdir()  # systemctl edit
    machine.path("/etc/systemd/system/svcnode.service.d/override.conf").write_text("[Service]\n")
    machine.run("systemctl", "enable", "svcnode.socket", "svcnode@validator-8.service")
    other_file = "/etc/svcnode/validator-8.toml"
    machine.path(other_file).write_text(CONFIG.replace("validator-7", "validator-8"))
    with unit_runs(machine) as port, unit_runs(machine, "validator-8") as other:
        wait_for_health(port)
        wait_for_health(other)
        wait_until(lambda: transitions(port) != [] != transitions(other), "the history is written")
        recorded = transitions(port)
        machine.run("svcnode", "note", "--config", other_file, "new disk")  # as root, by the socket of this node
        wait_until(lambda: notes(machine, other_file) == ["new disk (by root)"], "the note is written")
    assert notes(machine, other_file) == ["new disk (by root)"], "also while it is stopped"
    assert notes(machine, CONFIG_FILE) == []

    install(machine, newer)
    assert machine.run("dpkg-query", "--show", "--showformat=${Version}", "svcnode") == f"{__version__}+1"
    assert machine.path(CONFIG_FILE).read_text() == CONFIG
    calls = ["restart svcnode.service", "start svcnode.socket", "try-restart svcnode@*.service"]
    assert systemctl_calls(machine) == calls, "the socket stays open"
    with unit_runs(machine) as port:
        wait_for_health(port)
        assert all(each in transitions(port) for each in recorded)

    machine.run("apt-get", "remove", "--yes", "svcnode")
    calls = ["stop svcnode@*.service", "stop svcnode.socket", "stop svcnode.service"]
    assert systemctl_calls(machine) == calls, "not started by the socket"
    assert machine.path(CONFIG_FILE).read_text() == CONFIG
    assert machine.path(HISTORY).exists()
    assert not machine.path("/usr/lib/svcnode").exists()
    assert not machine.path("/lib/systemd/system/svcnode.service").exists()

    machine.run("apt-get", "purge", "--yes", "svcnode")
    assert {file for file in machine.files() ^ before if not NOT_OURS.fullmatch(file)} == set()
    assert [file.read_text() for file in accounts] == accounts_before


def test_an_upgrade_with_an_invalid_configuration_succeeds_and_says_that_the_service_does_not_run(
    machine: Machine, package: Path, newer: Path
) -> None:
    def lines(printed: str) -> list[str]:
        return [line for line in printed.splitlines() if line.startswith("svcnode: ")]

    assert lines(install(machine, package)) == []
    machine.path(CONFIG_FILE).write_text("[server]\nlisten = 8420\n")
    (line,) = lines(install(machine, newer))
    assert CONFIG_FILE in line
    assert "journalctl -u svcnode" in line
    status = machine.run("dpkg-query", "--show", "--showformat=${Version} ${db:Status-Status}", "svcnode")
    assert status == f"{__version__}+1 installed"
    assert "restart svcnode.service" in systemctl_calls(machine)
    assert machine.path(CONFIG_FILE).read_text() == "[server]\nlisten = 8420\n"
    machine.run("apt-get", "purge", "--yes", "svcnode")
    systemctl_calls(machine)


def test_a_second_installation_keeps_the_configuration_and_a_purge_keeps_a_user_of_someone_else(
    machine: Machine, package: Path
) -> None:
    machine.run("useradd", "--system", "--create-home", "svcnode")
    machine.path("/etc/svcnode").mkdir()
    machine.path(CONFIG_FILE).write_text(CONFIG)
    install(machine, package)
    assert machine.path(CONFIG_FILE).read_text() == CONFIG
    machine.run("apt-get", "remove", "--yes", "svcnode")
    install(machine, package)
    assert machine.path(CONFIG_FILE).read_text() == CONFIG

    machine.run("apt-get", "purge", "--yes", "svcnode")
    assert not machine.path("/etc/svcnode").exists()
    assert machine.run("getent", "passwd", "svcnode").split(":")[5] == "/home/svcnode"
