"""The Debian package in a bare Debian: installed, used, upgraded, removed and purged."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.version import __version__
from tests.support.debian import Machine, bare_debian
from tests.support.servers.base import free_port, wait_until
from tests.support.servers.provision import program, skip_or_fail
from tests.support.unit_sandbox import parse_unit

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600
# What the package depends on, and what a new user has to read the manual and to complete commands.
PACKAGES = ("adduser", "bash-completion", "man-db", "python3", "tzdata")
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
# What dpkg, adduser and the caches of other packages write; it is not of this package.
NOT_OURS = re.compile(
    r"/var/(cache|log|lib/(apt|dpkg))/.*|/etc/\.pwd\.lock|/etc/(passwd|group|shadow|gshadow|subuid|subgid)-"
)
# Records what the scripts of the package ask systemd to do. A unit is enabled as for the real one: by a link.
SYSTEMCTL = """#!/bin/sh
case " $* " in
*" is-enabled "*) for unit; do :; done; ls /etc/systemd/system/*.wants/"$unit" > /dev/null 2>&1 && echo enabled ;;
*) echo "$*" >> /run/systemctl.log ;;
esac
"""


@pytest.fixture(scope="session")
def package() -> Path:
    """Built as a contributor builds it."""
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    program("dpkg-buildpackage", "dpkg-dev")
    program("dh", "debhelper")
    make = ["make", "--old-file=.venv/.ready", "deb"]  # the environment of the tests is not installed again
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
    with (folder / CONFIG_FILE.lstrip("/")).open("a") as config:
        config.write("\n# Of the next release.\n")
    file = folder.with_suffix(".deb")
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", folder, file], check=True, capture_output=True
    )
    return file


def new_machine(folder: Path) -> Machine:
    machine = Machine(bare_debian(*PACKAGES), folder)
    systemctl = machine.path("/usr/bin/systemctl")
    systemctl.write_text(SYSTEMCTL)
    systemctl.chmod(0o755)
    machine.path("/run/systemd/system").mkdir(parents=True)  # systemd runs, for the scripts of packages
    return machine


def install(machine: Machine, file: Path) -> None:
    shutil.copy(file, machine.path("/tmp"))
    machine.run("apt-get", "install", "--yes", "--no-download", "--no-install-recommends", f"/tmp/{file.name}")
    machine.path(f"/tmp/{file.name}").unlink()


def systemctl_calls(machine: Machine) -> list[str]:
    """Since the last time, without options."""
    log = machine.path("/run/systemctl.log")
    calls = [" ".join(word for word in line.split() if word[0] != "-") for line in log.read_text().splitlines()]
    log.unlink()
    return calls


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Only read by the tests that share it."""
    machine = new_machine(tmp_path_factory.mktemp("installed"))
    install(machine, package)
    return machine


@pytest.fixture
def machine(package: Path, tmp_path: Path) -> Iterator[Machine]:
    yield (machine := new_machine(tmp_path))
    shutil.rmtree(machine.root)


# ---- a node of the package


@contextmanager
def unit_runs(machine: Machine) -> Iterator[int]:
    """Run the command of the unit as its user, with the folders that systemd makes; yields the port."""
    unit = parse_unit(machine.path("/lib/systemd/system/svcnode.service").read_text())
    (user,), (command,) = unit["User"], unit["ExecStart"]
    assert (unit["StateDirectory"], unit["RuntimeDirectory"]) == (["svcnode"], ["svcnode"])
    for folder in ("/var/lib/svcnode", "/run/svcnode"):
        machine.run("install", "-d", "-o", user, "-g", user, "-m", "700", folder)
    port = free_port()
    log = machine.root.parent / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            machine.command(*command.split(), user=user, environ=unit_environ(port)), stderr=stderr
        )
    try:
        wait_until(lambda: get(port, "/livez") is not None, "the node answers")
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def unit_environ(port: int) -> dict[str, str]:
    folders = {"STATE_DIRECTORY": "/var/lib/svcnode", "RUNTIME_DIRECTORY": "/run/svcnode"}
    return {**folders, "SVCNODE_SERVER_LISTEN": f"127.0.0.1:{port}"}


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
    return list(answered[1]["services"][0]["transitions"])


# ---- installed


def test_the_command_runs_for_every_user(installed: Machine) -> None:
    assert json.loads(installed.run("svcnode", "version", "--json", user="nobody"))["version"] == __version__


def test_the_drivers_of_all_probes_are_there(installed: Machine) -> None:
    code = "from svcnode.probes import KINDS, make_probe\nfor scheme in KINDS: __import__(KINDS[scheme].split(':')[0])"
    installed.run("/usr/lib/svcnode/bin/python", "-W", "error", "-c", code, user="nobody")
    code = (
        "import aiormq, apprise, asyncmy, cryptography, h2, nats, nkeys, psycopg, redis, uvloop; psycopg.pq.version()"
    )
    installed.run("/usr/lib/svcnode/bin/python", "-c", code, user="nobody")


def test_the_manual_pages_are_found(installed: Machine) -> None:
    assert "/usr/share/man/man1/svcnode.1.gz" in installed.run("man", "--where", "svcnode")
    assert "svcnode.toml" in installed.run("man", "5", "svcnode.toml")


def test_the_shells_find_their_completion(installed: Machine) -> None:
    script = """
        source /usr/share/bash-completion/bash_completion
        _completion_loader svcnode
        COMP_WORDS=(svcnode ver) COMP_CWORD=1
        _svcnode
        echo "${COMPREPLY[@]}"
    """
    assert installed.run("bash", "-c", script) == "version\n"
    folders = {"zsh": "zsh/vendor-completions/_svcnode", "fish": "fish/vendor_completions.d/svcnode.fish"}
    for shell, file in folders.items():
        assert installed.path(f"/usr/share/{file}").read_text() == installed.run("svcnode", "completion", shell)


def test_the_shipped_configuration_is_valid(installed: Machine) -> None:
    installed.run("svcnode", "check-config", CONFIG_FILE, user="svcnode")
    schema = installed.path(CONFIG_FILE).read_text().splitlines()[0].removeprefix("#:schema file://")
    assert json.loads(installed.run("cat", schema, user="nobody"))["title"]


def test_the_package_has_its_changelog_and_copyright(installed: Machine) -> None:
    folder = "/usr/share/doc/svcnode"
    assert installed.run("zcat", f"{folder}/changelog.gz").startswith(f"svcnode ({__version__})")
    assert installed.run("zcat", f"{folder}/CHANGELOG.md.gz") == (ROOT / "CHANGELOG.md").read_text()
    assert installed.path(f"{folder}/copyright").exists()


def test_nothing_of_the_builder_is_in_the_package(installed: Machine) -> None:
    for name in ("pyvenv.cfg", "bin/svcnode"):
        assert str(ROOT) not in installed.path(f"/usr/lib/svcnode/{name}").read_text()
    assert sorted(os.listdir(installed.path("/usr/lib/svcnode/bin"))) == ["python", "svcnode"]


def test_no_process_writes_beside_its_files(installed: Machine) -> None:
    before = installed.files()
    installed.run("svcnode", "--help")
    installed.run("svcnode", "probe", "disk:/")
    assert {file for file in installed.files() - before if file.startswith(("/usr", "/etc"))} == set()


def test_lintian_accepts_the_package(package: Path) -> None:
    lintian = program("lintian", "lintian")
    command = [lintian, "--allow-root", "--fail-on=error,warning", str(package)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout


# ---- its life


def test_an_installation_starts_the_service_and_not_the_socket(machine: Machine, package: Path) -> None:
    install(machine, package)
    assert "start svcnode.service" in systemctl_calls(machine)
    assert machine.path("/etc/systemd/system/multi-user.target.wants/svcnode.service").is_symlink()
    assert not machine.path("/etc/systemd/system/sockets.target.wants").exists()
    with unit_runs(machine) as port:
        wait_for_health(port)
        answered = get(port, "/svc/node/services")
    assert answered is not None
    assert [(each["id"], each["status"]) for each in answered[1]["services"]] == [("store", "Up")]


def test_a_service_that_may_not_be_started_is_only_enabled(machine: Machine, package: Path) -> None:
    """As in an image that is being built."""
    policy = machine.path("/usr/sbin/policy-rc.d")
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    install(machine, package)
    assert [call for call in systemctl_calls(machine) if "svcnode" in call] == []
    assert machine.path("/etc/systemd/system/multi-user.target.wants/svcnode.service").is_symlink()


def test_an_upgrade_keeps_configuration_and_history_and_restarts_the_service(
    machine: Machine, package: Path, newer: Path
) -> None:
    install(machine, package)
    machine.path(CONFIG_FILE).write_text(CONFIG)
    with unit_runs(machine) as port:
        wait_for_health(port)
        before = transitions(port)
    assert before
    systemctl_calls(machine)

    install(machine, newer)
    assert machine.run("dpkg-query", "--show", "--showformat=${Version}", "svcnode") == f"{__version__}+1"
    assert machine.path(CONFIG_FILE).read_text() == CONFIG
    assert "restart svcnode.service" in systemctl_calls(machine)
    with unit_runs(machine) as port:
        wait_for_health(port)
        assert transitions(port)[-len(before) :] == before


def test_an_upgrade_brings_a_new_configuration_to_who_did_not_change_it(
    machine: Machine, package: Path, newer: Path
) -> None:
    install(machine, package)
    install(machine, newer)
    assert "Of the next release" in machine.path(CONFIG_FILE).read_text()


def test_a_socket_that_is_used_stays_open_in_an_upgrade(machine: Machine, package: Path, newer: Path) -> None:
    install(machine, package)
    wants = machine.path("/etc/systemd/system/sockets.target.wants")
    wants.mkdir()
    (wants / "svcnode.socket").symlink_to("/lib/systemd/system/svcnode.socket")  # systemctl enable
    systemctl_calls(machine)
    install(machine, newer)
    calls = [call for call in systemctl_calls(machine) if "svcnode" in call]
    assert calls == ["restart svcnode.service", "start svcnode.socket"]


def test_a_removal_keeps_configuration_and_history_and_a_purge_leaves_nothing(machine: Machine, package: Path) -> None:
    accounts = [machine.path(f"/etc/{name}") for name in ("passwd", "group", "shadow", "gshadow")]
    before, accounts_before = machine.files(), [file.read_text() for file in accounts]
    install(machine, package)
    machine.path(CONFIG_FILE).write_text(CONFIG)
    machine.path("/etc/svcnode/credentials").mkdir()
    machine.path("/etc/svcnode/credentials/ledger").write_text("secret")
    machine.path("/etc/systemd/system/svcnode.service.d").mkdir()  # systemctl edit
    machine.path("/etc/systemd/system/svcnode.service.d/override.conf").write_text("[Service]\n")
    with unit_runs(machine) as port:
        wait_for_health(port)
    systemctl_calls(machine)

    machine.run("apt-get", "remove", "--yes", "svcnode")
    assert machine.path(CONFIG_FILE).read_text() == CONFIG
    assert machine.path(HISTORY).exists()
    assert not machine.path("/usr/lib/svcnode").exists()
    assert not machine.path("/lib/systemd/system/svcnode.service").exists()
    calls = systemctl_calls(machine)
    assert calls.index("stop svcnode.socket") < calls.index("stop svcnode.service")

    machine.run("apt-get", "purge", "--yes", "svcnode")
    machine.path("/run/svcnode").rmdir()  # by systemd
    left = {file for file in machine.files() ^ before if not NOT_OURS.fullmatch(file)}
    assert left == {"/run/systemctl.log"}
    assert [file.read_text() for file in accounts] == accounts_before
