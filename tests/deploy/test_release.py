"""A release as a maintainer makes it: a clone, a tag, `make release`; and its files as users use them."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest

from svcnode.version import __version__
from tests.support.containers import IMAGE, ImageStore
from tests.support.debian import Machine, bare_debian
from tests.support.servers.base import wait_until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
NAMES = {
    "NOTES.md",
    "SHA256SUMS",
    "svcnode.pyz",
    f"svcnode-{__version__}-image.tar",
    f"svcnode-{__version__}-py3-none-any.whl",
    f"svcnode-{__version__}.cdx.json",
    f"svcnode-{__version__}.tar.gz",
}


class Made(NamedTuple):
    folder: Path
    output: str  # of `make release`


def git(clone: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    subprocess.run(["git", "-C", str(clone), *identity, *arguments], check=True, capture_output=True)


def tagged_clone(folder: Path) -> Path:
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-tags", str(ROOT), str(clone)], check=True)
    changelog = clone / "CHANGELOG.md"
    newest = re.compile("^## .*$", re.MULTILINE)
    changelog.write_text(newest.sub(f"## {__version__} - 2026-11-16", changelog.read_text(), count=1))
    git(clone, "commit", "--quiet", "--all", "--allow-empty", "--message", "Release")
    git(clone, "tag", "--annotate", f"v{__version__}", "--message", "Release")
    return clone


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("release")
    clone = tagged_clone(folder)
    store = ImageStore(tmp_path_factory.mktemp("images"))
    try:
        variables = [f"{name}={value}" for name, value in store.make_variables().items()]
        done = subprocess.run(
            ["make", "release", *variables], cwd=clone, capture_output=True, text=True, timeout=1200, check=False
        )
    finally:
        store.close()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Made(clone / "dist" / f"v{__version__}", done.stdout)


def test_a_release_has_all_files_and_their_checksums(made: Made) -> None:
    names = {file.name for file in made.folder.iterdir()}
    assert {name for name in names if not name.endswith(".deb")} == NAMES
    assert len(names) == len(NAMES) + 1
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=made.folder, check=True)
    assert len((made.folder / "SHA256SUMS").read_text().splitlines()) == len(NAMES)
    assert "a second build in another folder has the same bytes" in made.output
    assert re.search("^deb: a second build has", made.output, re.MULTILINE)


def test_the_sbom_names_svcnode_and_every_package_that_it_needs(made: Made) -> None:
    sbom = json.loads((made.folder / f"svcnode-{__version__}.cdx.json").read_text())
    root = sbom["metadata"]["component"]
    packages = {component["name"].lower(): component for component in sbom["components"]}
    assert (sbom["bomFormat"], root["name"], root["version"]) == ("CycloneDX", "svcnode", __version__)
    assert {"httptools", "uvloop", "psycopg", "redis", "cryptography"} <= packages.keys()
    assert all(component["purl"].startswith("pkg:pypi/") for component in packages.values())
    (direct,) = [row["dependsOn"] for row in sbom["dependencies"] if row["ref"] == root["bom-ref"]]
    assert len(direct) > 10


def test_the_image_can_be_loaded_by_its_name(made: Made) -> None:
    with tarfile.open(made.folder / f"svcnode-{__version__}-image.tar") as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest
        (image,) = json.loads(manifest.read())
    assert image["RepoTags"] == [f"{IMAGE}:{__version__}"]


# ---- svcnode.pyz on a machine that has Python and nothing else


@pytest.fixture(scope="module")
def machine(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(bare_debian("python3-venv"), tmp_path_factory.mktemp("bare"))
    machine.path("/opt/svcnode.pyz").write_bytes((made.folder / "svcnode.pyz").read_bytes())
    machine.path("/etc/svcnode.toml").write_text(
        '[[services]]\nid = "ledger"\nprobe = "postgresql://monitor@127.0.0.1:1/ledger"\n'
    )
    machine.run("useradd", "--create-home", "alice")
    return machine


def pyz(machine: Machine, *arguments: str) -> list[str]:
    command = ("python3", "-I", "/opt/svcnode.pyz", *arguments)
    return machine.command(*command, user="alice", environ={"HOME": "/home/alice"})


def finished(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_user_checks_a_configuration_and_services(machine: Machine) -> None:
    assert finished(pyz(machine, "check-config", "/etc/svcnode.toml"))[0] == 0
    for scheme in ("postgresql", "mysql", "redis", "amqp", "nats", "grpc", "http", "etcd"):
        user = "monitor@" if scheme in ("postgresql", "mysql") else ""
        code, output = finished(pyz(machine, "probe", f"{scheme}://{user}127.0.0.1:1"))
        assert (code, "connection refused" in output) == (3, True), output
    assert finished(pyz(machine, "probe", "disk:/"))[0] == 0


def test_the_default_node_of_a_user_is_healthy(machine: Machine) -> None:
    command = pyz(machine, "serve", "--listen", "127.0.0.1:18420")
    status = pyz(machine, "status", "http://127.0.0.1:18420")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: finished(status)[0] == 0, "health 200")
        finally:
            process.terminate()
            assert process.wait(60) == 0
