"""A probe kind of another package: built, installed and used; and a package with faults.

A pure Python wheel is installed by unpacking it into a folder on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.support import commands
from tests.support.example_apps import EXAMPLES
from tests.support.processes import DEADLINE_S, Agent

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = EXAMPLES / "svcnode-probe-spool"
SCHEDULE = {
    "SVCNODE_DEFAULTS_INTERVAL": "6s",
    "SVCNODE_DEFAULTS_TIMEOUT": "5s",
    "SVCNODE_DEFAULTS_TRANSITION_INTERVAL": "100ms",
    "SVCNODE_DEFAULTS_START_PERIOD": "0s",
}


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


def fill(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / f"{number}.msg").touch()


def install(folder: Path, name: str, **entries: str) -> None:
    """The metadata of a package with these kinds."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{scheme.replace('_', '-')} = {target}\n" for scheme, target in entries.items()]
    (about / "entry_points.txt").write_text("[svcnode.probes]\n" + "".join(lines))


@pytest.mark.wide
@pytest.mark.timeout(300)
def test_the_package_can_be_built_installed_tested_and_used(tmp_path: Path, spool: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(PACKAGE)]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("svcnode_probe_spool-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "site")}
    shutil.copytree(PACKAGE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    own_tests = [sys.executable, "-W", "error", "-m", "pytest", "-q", "tests"]
    tested = subprocess.run(own_tests, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    arguments = ("--listen", "127.0.0.1:0", "--service", f"outbox=spool:{spool}")
    with Agent(tmp_path, *arguments, environ={**environ, **SCHEDULE}) as agent:
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Up"})
        fill(spool, 100)
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Initializing"})
        shutil.rmtree(spool)
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Down"})
        spool.mkdir()
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Up"})


# ---- the kind in this process


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "svcnode_probe_spool", spool="svcnode_spool:SpoolProbe")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(PACKAGE / "src"))


@pytest.mark.usefixtures("_installed")
def test_the_command_runs_a_check_and_rejects_a_wrong_option_by_name(tmp_path: Path, spool: Path) -> None:
    for files, expected in ((2, (0, "ready", "ok")), (3, (1, "not_ready", "lagging"))):
        fill(spool, files)
        done = commands.svcnode("probe", f"spool:{spool}", "-o", "max_files=3", "--json", folder=tmp_path)
        result = json.loads(done.stdout)
        assert (result["url"], done.stderr) == (f"spool:{spool}", "")
        assert (done.returncode, result["outcome"], result["code"]) == expected
    for option, hint in (
        ("max_files=0", "1"),
        ("max_files=many", "string"),
        ("max_flies=3", '"max_files"?'),
        ("_thread=1", "unknown"),
    ):
        done = commands.svcnode("probe", f"spool:{spool}", "-o", option, folder=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"svcnode: {option.partition('=')[0]}: ")
        assert hint in done.stderr
    done = commands.svcnode("probe", "spool:outbox", folder=tmp_path)
    assert (done.returncode, "spool:/var/spool/app" in done.stderr) == (2, True)


@pytest.mark.usefixtures("_installed")
def test_the_scheme_is_suggested_and_listed_and_an_option_in_a_file_has_its_line(tmp_path: Path, spool: Path) -> None:
    assert '"spool"?' in commands.svcnode("probe", "spol:/tmp", folder=tmp_path).stderr
    assert ", spool, sqlite, " in commands.svcnode("probe", "quux:/tmp", folder=tmp_path).stderr
    text = f'[[services]]\nid = "outbox"\n[services.probe]\nurl = "spool:{spool}"\nmax_files = 20\n'
    (tmp_path / "svcnode.toml").write_text(text)
    assert commands.svcnode("check-config", folder=tmp_path).returncode == 0
    (tmp_path / "svcnode.toml").write_text(text.replace("20", '"20"'))
    done = commands.svcnode("check-config", folder=tmp_path)
    assert "services.outbox.probe.max_files: " in done.stderr
    assert "svcnode.toml:5" in done.stderr


def test_without_the_package_its_scheme_is_not_listed(tmp_path: Path) -> None:
    done = commands.svcnode("probe", "quux:/tmp", folder=tmp_path)
    assert ("spool" in done.stderr, "sqlite" in done.stderr) == (False, True)


# ---- a package with faults


@pytest.fixture
def _broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path,
        "broken",
        no_module="missing_module:Kind",
        no_class="broken:NoSuchKind",
        no_driver="broken_driver:Kind",
        no_form="broken",
        no_kind="broken:function",
        no_dataclass="broken:Plain",
        no_python="broken_python:Kind",
        no_import="broken_import:Kind",
        tcp="missing_module:Kind",
    )
    (tmp_path / "broken.py").write_text("def function(url): ...\n\nclass Plain:\n    def __init__(self, url): ...\n")
    (tmp_path / "broken_driver.py").write_text("import missing_driver\n")
    (tmp_path / "broken_python.py").write_text("class Kind(:\n")
    (tmp_path / "broken_import.py").write_text("raise RuntimeError('first\\nsecond')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken", raising=False)


@pytest.mark.usefixtures("_broken")
@pytest.mark.parametrize(
    ("scheme", "detail"),
    [
        ("no-module", "missing_module"),
        ("no-class", "'NoSuchKind'"),
        ("no-driver", "missing_driver"),
        ("no-form", '"module:Class"'),
        ("no-kind", '"broken:function"'),
        ("no-dataclass", '"broken:Plain"'),
        ("no-python", "SyntaxError"),
        ("no-import", r"RuntimeError: first\nsecond"),
    ],
)
def test_a_fault_of_a_package_is_one_line(tmp_path: Path, scheme: str, detail: str) -> None:
    for arguments in (("probe", f"{scheme}:x"), ("serve", "--service", f"x={scheme}:y")):
        done = commands.svcnode(*arguments, folder=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("svcnode: services.x.probe: " if arguments[0] == "serve" else "svcnode: ")
        assert scheme in done.stderr
        assert detail in done.stderr


@pytest.mark.usefixtures("_broken")
def test_a_package_can_neither_break_nor_replace_a_built_in_kind(tmp_path: Path) -> None:
    assert commands.svcnode("probe", f"file:{tmp_path}/broken.py", folder=tmp_path).returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert commands.svcnode("probe", url, folder=tmp_path).returncode == 0
