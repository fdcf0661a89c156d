"""The image of deploy/container, built by `make image`, and what a node does in a container of it."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcnode.version import __version__
from tests.support.containers import BASE, IMAGE, Container, ImageStore
from tests.support.servers.base import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.containers import ImageConfig

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(300)]  # the first test builds the image

ROOT = Path(__file__).parents[2]
UID = 10001
CONFIG = """
[node]
name = "validator-7"
[server]
listen = "0.0.0.0:8420"
drain = "{drain}"
[[services]]
id = "ledger"
status = "{ledger}"
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageStore]:
    with closing(ImageStore(tmp_path_factory.mktemp("images"))) as store:
        store.make_image()
        yield store


@pytest.fixture(scope="module")
def config(store: ImageStore) -> ImageConfig:
    return store.config()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """An empty volume: it has the owner and the mode of its folder in the image."""
    folder = tmp_path / "volume"
    folder.mkdir(mode=0o700)
    os.chown(folder, UID, UID)
    return folder


@pytest.fixture
def start(store: ImageStore, config: ImageConfig, volume: Path) -> Callable[..., Container]:
    """Starts a new container with the volume of the test."""

    def start(*command: str, **options: object) -> Container:
        return Container(config, store.mount(), volume, *command, **options)  # type: ignore[arg-type]

    return start


@pytest.fixture
def config_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    return folder


def write(folder: Path, text: str) -> dict[str, Path]:
    (folder / "svcnode.toml").write_text(text)
    return {"/etc/svcnode": folder}


def test_the_image_says_what_it_is_and_how_it_runs(config: ImageConfig, store: ImageStore) -> None:
    assert config.labels["org.opencontainers.image.version"] == __version__
    assert re.fullmatch("[0-9a-f]{40}|unknown", config.labels["org.opencontainers.image.revision"])
    assert config.labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert (config.user, config.volumes, config.stop_signal) == (f"{UID}:{UID}", ["/var/lib/svcnode"], "SIGTERM")
    folder = (store.mount() / "var/lib/svcnode").stat()
    assert (folder.st_uid, folder.st_gid, folder.st_mode & 0o777) == (UID, UID, 0o700)


def test_the_image_has_the_pinned_packages_and_no_tools_to_build(store: ImageStore) -> None:
    (packages,) = (store.mount() / "opt/svcnode/lib").glob("python3*/site-packages")
    installed = {
        path.name.removesuffix(".dist-info").lower().replace("_", "-") for path in packages.glob("*.dist-info")
    }
    pins = (ROOT / "requirements/runtime.txt").read_text()
    pinned = {f"{name}-{version}" for name, version in re.findall(r"(?m)^([a-z0-9-]+)(?:\[.*\])?==([^ ]+)", pins)}
    assert installed - pinned == {f"svcnode-{__version__}"}
    for name in ("pip", "setuptools", "hatchling"):
        assert not (packages / name).exists()


def test_the_node_has_a_read_only_root_no_capabilities_and_no_other_user(start: Callable[..., Container]) -> None:
    with start(environ={"SVCNODE_NODE_NAME": "validator-7"}) as container:
        assert container.wait_for_event("started")["node"] == "validator-7"
        wait_until(lambda: container.get("/svc/node/health") == 200, "health")
        assert container.statuses() == {"store": "Up"}, "without any configuration, it serves its own store"
        assert container.get("/metrics") == 403, "no token is configured"
        assert (
            container.run("sh", "-c", "command -v svcnode && command -v readlink && command -v sleep").returncode == 0
        )
        status = Path(f"/proc/{container.process_1}/status").read_text()
        assert re.search(rf"Uid:\t{UID}\t{UID}\t{UID}\t{UID}\n", status)
        assert set(re.findall(r"(?m)^Cap\w+:\t(\w+)$", status)) == {"0" * 16}
        assert "NoNewPrivs:\t1" in status
        for path in ("/tmp/x", "/etc/svcnode/x", "/opt/svcnode/x"):
            assert container.run("touch", path).returncode != 0
        assert container.run("touch", "/var/lib/svcnode/x").returncode == 0


def test_both_ways_to_reload(start: Callable[..., Container], config_folder: Path) -> None:
    more = '[[services]]\nid = "{}"\nstatus = "Up"\n'
    with start(mounts=write(config_folder, CONFIG.format(drain="0s", ledger="Up"))) as container:
        container.wait_for_event("started")
        write(config_folder, CONFIG.format(drain="0s", ledger="Up") + more.format("a"))
        container.signal(signal.SIGHUP)
        container.wait_for_event("reloaded")
        assert list(container.statuses()) == ["ledger", "a"]
        write(config_folder, CONFIG.format(drain="0s", ledger="Down"))
        container.signal(signal.SIGHUP)
        wait_until(lambda: container.get("/svc/node/health") == 503, "health")
        assert container.healthcheck() == 0, "it is not node health"
        wrong = container.run("env", "SVCNODE_SERVER_LISTEN=127.0.0.1:8421", "svcnode", "ping")
        assert wrong.returncode == 1
        write(config_folder, CONFIG.format(drain="0s", ledger="Up") + more.format("b"))
        assert container.run("svcnode", "reload").returncode == 0
        assert list(container.statuses()) == ["ledger", "b"]
        write(config_folder, "[[services]]\nid = 5\n")
        assert container.run("svcnode", "reload").returncode == 1
        assert list(container.statuses()) == ["ledger", "b"]


def test_sigterm_drains_and_ends_the_container_with_0(start: Callable[..., Container], config_folder: Path) -> None:
    with start(mounts=write(config_folder, CONFIG.format(drain="3s", ledger="Up"))) as container:
        container.wait_for_event("started")
        assert container.get("/svc/node/health") == 200
        container.signal(signal.SIGTERM)
        container.wait_for_event("draining")
        assert container.get("/svc/node/health") == 503
        assert container.healthcheck() == 0, "a node that drains must not be killed"
        assert container.wait() == 0
        container.wait_for_event("stopped")


def test_the_volume_keeps_the_history_over_a_kill_and_a_new_container(
    start: Callable[..., Container], config_folder: Path, volume: Path
) -> None:
    mounts = write(config_folder, CONFIG.format(drain="0s", ledger="Up"))
    with start(mounts=mounts) as container:
        container.wait_for_event("started")
        write(config_folder, CONFIG.format(drain="0s", ledger="Down"))
        container.signal(signal.SIGHUP)
        wait_until(lambda: "Down" in recorded(volume), "a transition")
    before = recorded(volume)  # the container was killed
    with start(mounts=mounts) as container:  # with another root file system
        container.wait_for_event("started")
        write(config_folder, CONFIG.format(drain="0s", ledger="Initializing"))
        container.signal(signal.SIGHUP)
        wait_until(lambda: "Initializing" in recorded(volume)[len(before) :], "a transition")
    assert recorded(volume)[: len(before)] == before


def recorded(volume: Path) -> list[str]:
    """The statuses of all transitions in the history."""
    (file,) = volume.rglob("history.db")
    with closing(sqlite3.connect(file)) as database:
        return [status for (status,) in database.execute("SELECT after FROM transitions ORDER BY id")]


def test_the_documented_size_is_that_of_the_image(store: ImageStore) -> None:
    sizes = store.sizes_bytes()
    added_mb = (sizes[IMAGE] - sizes[BASE]) / 10**6
    page = (ROOT / "docs" / "operate.md").read_text()
    (documented_mb,) = re.findall(r"adds (\d+) MB to its base", page)
    assert added_mb == pytest.approx(int(documented_mb), rel=0.1)
