"""What operators see of three replicas on real etcd: /details, /metrics and `svcnode explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_metrics import documented_metrics, exported_metrics
from tests.support import commands
from tests.support.replicas import Backends, Replica, Replicas
from tests.support.servers.base import wait_until
from tests.support.servers.etcd import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.replicas import Options

NAMES = {"host-1", "host-2", "host-3"}
SETTINGS = 'lease = "4s"\n[defaults]\ninterval = "1s"\nstale_after = "6s"\nstart_period = "0s"\n'


class Shared:
    def __init__(self, etcd: EtcdServer, backends: Backends, replicas: Replicas) -> None:
        self.etcd, self.backends, self.replicas = etcd, backends, replicas


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("r")  # the path of a socket is short
    with Backends() as backends, EtcdServer(folder / "etcd") as etcd:
        files: list[dict[str, Options]] = [
            {f"s-{number}": {"probe": backends.url(f"s-{number}")}} for number in range(3)
        ]
        files[0]["all"] = {"probe": backends.url("all"), "observers": 3}
        with Replicas(folder, etcd.url, files, SETTINGS) as replicas:
            replicas.wait_for(dict.fromkeys(["s-0", "all", "s-1", "s-2"], "Up"))
            yield Shared(etcd, backends, replicas)


def details(replica: Replica) -> Any:
    return replica.ask("/details").json


def metrics(replica: Replica) -> dict[str, float]:
    lines = replica.ask("/metrics").body.decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def explain(replica: Replica, *arguments: str) -> str:
    return commands.svcnode("explain", f"unix:{replica.folder}/n.sock", *arguments, folder=replica.folder).stdout


def test_operators_see_the_replicas_who_checks_what_and_the_loss_of_the_registry(shared: Shared) -> None:
    wait_until(lambda: all(is_settled(details(replica)) for replica in shared.replicas), "who checks what", 60)
    documents = [details(replica) for replica in shared.replicas]
    checks = {replica["name"]: replica["checks"] for replica in documents[0]["node"]["sharing"]["replicas"]}
    assert checks.keys() == NAMES
    assert sum(checks.values()) == 3 + 3  # three services with one observer, one with three
    for replica, document in zip(shared.replicas, documents, strict=True):
        sharing = document["node"]["sharing"]
        assert (sharing["replica"], sharing["connected"], sharing["problem"]) == (replica.name, True, None)
        found = metrics(replica)
        assert found["svcnode_sharing_connected"] == 1
        assert found["svcnode_sharing_replicas"] == 3
        assert found["svcnode_sharing_checked_services"] == checks[replica.name]
        assert found["svcnode_sharing_requests_total"] > found["svcnode_sharing_writes_total"] > 0
        assert found["svcnode_sharing_sent_bytes_total"] > 0
        assert found["svcnode_sharing_received_bytes_total"] > 0
        service = next(service for service in document["services"] if service["id"] == "all")
        assert {*service["checked_by"]} == {state["observer"] for state in service["observed"]} == NAMES
        assert "host-2 observed Up" in explain(replica, "--service", "all")
        assert "(this one)" in explain(replica)
    first = shared.replicas[0]
    exported = exported_metrics(first.ask("/metrics").body.decode())
    assert all(exported.get(name) == row for name, row in documented_metrics().items() if "_sharing_" in name)
    assert {name for name in exported if "_sharing_" in name} <= documented_metrics().keys()
    of_others = next(service for service in documents[0]["services"] if first.name not in service["checked_by"])
    assert (of_others["kind"], of_others["probe"]) == ("http", shared.backends.url(of_others["id"]))
    shared.etcd.kill()
    wait_until(lambda: not details(first)["node"]["sharing"]["connected"], "the loss of the registry", 60)
    wait_until(lambda: first.statuses()[of_others["id"]] == "Initializing", "the end of the evidence", 60)
    assert metrics(first)["svcnode_sharing_connected"] == 0
    assert "registry_lost" in explain(first, "--service", of_others["id"])
    assert shared.etcd.url.removeprefix("etcd://") in explain(first)
    shared.etcd.start()
    wait_until(lambda: details(first)["node"]["sharing"]["connected"], "the registry again", 60)
    first.wait_for_event("registry_recovered")


def is_settled(document: Any) -> bool:
    by_all = next(service for service in document["services"] if service["id"] == "all")
    return all(len(service["observed"]) == len(service["checked_by"]) for service in document["services"]) and (
        len(by_all["observed"]) == len(NAMES)
    )
