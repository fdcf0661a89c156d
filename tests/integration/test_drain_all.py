"""Drains and maintenance of all replicas: the commands, the control socket and real etcd, with two replicas."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.control.client import ControlClient
from svcnode.core.errors import ControlError
from tests.support import commands
from tests.support.processes import DEADLINE_S, Agent
from tests.support.replicas import NODE, Replica, Replicas
from tests.support.servers.base import wait_until
from tests.support.servers.etcd import EtcdServer

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = 'lease = "2s"\n[[services]]\nid = "db"\nstatus = "Up"\n'


@pytest.fixture
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def replicas(etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("r")  # the path of a socket is short
    with Replicas(folder, etcd.url, [{}, {}], SETTINGS) as replicas:
        replicas.wait_for({"db": "Up"})
        wait_until(lambda: all(len(sharing(one)["replicas"]) == 2 for one in replicas), "both replicas")
        yield replicas


def sharing(replica: Replica) -> Any:
    return node(replica)["sharing"]


def node(replica: Replica) -> Any:
    return replica.ask("/details").json["node"]


def works(replica: Replica) -> list[tuple[str | None, str, str | None]]:
    """Who, what, and of which service, as the replica shows it."""
    return [(work["replica"], work["kind"], work["service_id"]) for work in sharing(replica)["work"]]


def cache_of(replica: Replica) -> str:
    """What it last read from the registry, on its disk."""
    return "".join(file.read_text() for file in replica.folder.rglob("registry.json"))


def at(replica: Replica, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command at the control socket of a replica."""
    options = ("--socket", str(replica.folder / "c.sock"), "--by", "alice")
    return commands.svcnode(command, *options, *arguments, folder=replica.folder)


def by_registry(etcd: EtcdServer, folder: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command on a machine without a replica."""
    options = ("--registry", etcd.url, "--node", NODE, "--by", "bob")
    return commands.svcnode(command, *options, *arguments, folder=folder)


def test_all_replicas_drain_until_any_of_them_is_told_to_end_it(
    etcd: EtcdServer, replicas: Replicas, tmp_path: Path
) -> None:
    one, two = replicas
    assert at(one, "drain", "--all-replicas", "--reason", "kernel update").returncode == 0
    wait_until(lambda: [one.health(), two.health()] == [503, 503], "the drain of all")
    for replica in replicas:
        (work,) = sharing(replica)["work"]
        assert (work["replica"], work["kind"], work["via"]) == (None, "drain", "replica:host-1")
        assert "alice" in work["by"]
        assert (work["reason"], work["until"]) == ("kernel update", None)
        assert work["at"] is not None
        assert work["text"] in replica.ask("/").body.decode().replace("&#x27;", "'")
    shown = commands.svcnode("registry", "show", "--registry", etcd.url, "--json", folder=tmp_path)
    assert [work["kind"] for work in json.loads(shown.stdout)["nodes"][0]["work"]] == ["drain"]
    assert "kernel update" in commands.svcnode("registry", "show", "--registry", etcd.url, folder=tmp_path).stdout
    explained = commands.svcnode("explain", f"unix:{two.folder}/n.sock", folder=tmp_path)
    assert "All replicas: draining" in explained.stdout
    assert at(two, "drain", "--undo").returncode == 1  # that of the replica alone
    assert at(two, "drain", "--undo", "--all-replicas").returncode == 0
    wait_until(lambda: [one.health(), two.health()] == [200, 200], "the end of the drain")
    assert at(one, "drain", "--undo", "--all-replicas").returncode == 1
    assert by_registry(etcd, tmp_path, "drain", "--undo").returncode == 1


def test_a_drain_by_the_registry_holds_without_etcd_also_after_a_restart(
    etcd: EtcdServer, replicas: Replicas, tmp_path: Path
) -> None:
    one, two = replicas
    assert by_registry(etcd, tmp_path, "drain").returncode == 0
    wait_until(lambda: [one.health(), two.health()] == [503, 503], "the drain of all")
    wait_until(lambda: "/drains/all" in cache_of(two), "the drain on the disk")
    etcd.kill()
    one.wait_until(lambda: not sharing(one)["connected"])
    refused = at(one, "drain", "--undo", "--all-replicas")
    assert (refused.returncode, one.health()) == (1, 503)
    assert by_registry(etcd, tmp_path, "drain", "--undo").returncode == 1
    two.process.send_signal(signal.SIGKILL)
    two.process.wait(DEADLINE_S)
    replicas.start_again(1)
    two = replicas[1]
    replicas.wait_until_started()
    assert two.health() == 503
    etcd.start()
    wait_until(lambda: all(sharing(replica)["connected"] for replica in replicas), "the registry again")
    assert [one.health(), two.health()] == [503, 503]
    assert by_registry(etcd, tmp_path, "drain", "--undo").returncode == 0
    wait_until(lambda: [one.health(), two.health()] == [200, 200], "the end of the drain")
    wait_until(lambda: "/drains/all" not in cache_of(two), "the end of the drain on the disk")
    two.process.send_signal(signal.SIGKILL)
    two.process.wait(DEADLINE_S)
    etcd.kill()
    replicas.start_again(1)  # what has ended is not remembered
    replicas.wait_until_started()
    assert replicas[1].health() == 206


def test_a_drain_survives_a_wipe_of_etcd_while_all_replicas_are_off(
    etcd: EtcdServer, replicas: Replicas, tmp_path: Path
) -> None:
    assert by_registry(etcd, tmp_path, "drain").returncode == 0
    wait_until(lambda: [each.health() for each in replicas] == [503, 503], "the drain of all")
    for replica in replicas:
        wait_until(lambda one=replica: "/drains/all" in cache_of(one), "the drain on the disk")  # type: ignore[misc]
        replica.process.send_signal(signal.SIGKILL)
        replica.process.wait(DEADLINE_S)
    etcd.wipe()
    for index in range(2):
        replicas.start_again(index)
    replicas.wait_until_started()
    wait_until(lambda: all(sharing(each)["connected"] and len(works(each)) == 1 for each in replicas), "the registry")
    assert [each.health() for each in replicas] == [503, 503]
    assert at(replicas[0], "drain", "--undo", "--all-replicas").returncode == 0
    wait_until(lambda: [each.health() for each in replicas] == [200, 200], "the end of the drain")


def test_each_replica_shows_the_drain_and_the_maintenance_of_the_other(replicas: Replicas) -> None:
    one, two = replicas
    at(one, "drain", "--reason", "disk")
    at(two, "maintain", "db", "--for", "1h", "--reason", "upgrade")
    expected = [("host-1", "drain", None), ("host-2", "maintenance", "db")]
    for replica in replicas:
        wait_until(lambda one=replica: sorted(works(one)) == expected, "what both show")  # type: ignore[misc]
    assert [one.health(), two.health()] == [503, 200]
    assert at(one, "drain", "--undo").returncode == 0
    at(two, "maintain", "db", "--end")
    for replica in replicas:
        wait_until(lambda one=replica: works(one) == [], "the end of both")  # type: ignore[misc]


def test_maintenance_of_all_replicas_is_set_planned_ended_and_cancelled(
    etcd: EtcdServer, replicas: Replicas, tmp_path: Path
) -> None:
    one, two = replicas

    def maintained() -> list[bool]:
        return [node(replica)["maintenance"] is not None for replica in replicas]

    assert at(one, "maintain", "--all-replicas", "--for", "1h", "--reason", "upgrade").returncode == 0
    wait_until(lambda: maintained() == [True, True], "the maintenance of all")
    assert node(two)["maintenance"]["source"] == "all_replicas"
    assert at(two, "maintain", "--end").returncode == 1  # this replica has none of its own
    assert by_registry(etcd, tmp_path, "maintain", "--end").returncode == 0
    wait_until(lambda: maintained() == [False, False], "its end")
    assert at(two, "maintain", "--all-replicas", "--end").returncode == 1

    planned = ("--from", "+1h", "--for", "2h")
    assert by_registry(etcd, tmp_path, "maintain", "db", *planned).returncode == 0
    wait_until(lambda: works(one) == works(two) == [(None, "planned_maintenance", "db")], "the plan")
    assert at(one, "maintain", "db", "--all-replicas", "--cancel").returncode == 0
    wait_until(lambda: works(one) == works(two) == [], "the end of the plan")
    assert at(one, "maintain", "db", "--all-replicas", "--cancel").returncode == 1

    assert at(one, "maintain", "db", "--all-replicas", "--until", "+1h").returncode == 0  # begun, and so ended
    assert at(one, "maintain", "db", "--all-replicas", "--end").returncode == 0
    assert at(one, "maintain", "other", "--all-replicas", "--for", "1h").returncode == 1
    assert by_registry(etcd, tmp_path, "maintain", "--for", "99d").returncode == 1


def test_a_mistyped_node_is_said(etcd: EtcdServer, tmp_path: Path) -> None:
    made = by_registry(etcd, tmp_path, "drain")
    assert made.returncode == 0
    assert "no replica" in made.stderr


def test_a_node_on_one_machine_has_no_other_replicas(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("n")
    config = f'[control]\nlisten = "unix:{folder}/c.sock"\npath = "{folder}/c.db"\n'
    with Agent(folder, "--listen", f"unix:{folder}/n.sock", config=config) as agent:
        agent.wait_for_event("control_socket")
        for arguments in (["drain"], ["drain", "--undo"], ["maintain", "--for", "1h"], ["maintain", "--cancel"]):
            made = commands.svcnode(*arguments, "--all-replicas", "--socket", str(folder / "c.sock"), folder=folder)
            assert made.returncode == 1, arguments
            assert "sharing" in made.stderr
        with ControlClient(folder / "c.sock") as client, pytest.raises(ControlError) as caught:
            client.drain(all_replicas=True)
        assert caught.value.status == 409
