"""Clients of the registry that are no replicas: what they write, and what they do if others write at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.core.errors import ControlError, RegistryError
from svcnode.net.etcd_json import Header, Put, RangeResult, TxnResult
from svcnode.sharing.client import RegistryClient, accept_losses, forget_replica, read_nodes
from svcnode.sharing.format import IgnoredKind, KeyKind, service_document
from tests.support.registry_keys import ROOT, RegistryKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from svcnode.net.etcd_json import Compare, Delete
    from svcnode.sharing.etcd import EtcdClient


class KeysClient:
    """An `EtcdClient` of a registry in memory. `before_txn` is called before each transaction."""

    def __init__(self, keys: RegistryKeys, before_txn: Callable[[], object] = lambda: None) -> None:
        self.keys = keys
        self.before_txn = before_txn

    async def range(self, prefix: str) -> RangeResult:
        return RangeResult(self._header(), [kv for kv in self.keys.range() if kv.key.startswith(prefix)])

    async def txn(self, operations: Iterable[Put | Delete], compares: Iterable[Compare] = ()) -> TxnResult:
        self.before_txn()
        revisions = {kv.key: kv.mod_revision for kv in self.keys.range()}
        if any(revisions.get(compare.key, 0) != compare.mod_revision for compare in compares):
            return TxnResult(self._header(), succeeded=False)
        for operation in operations:
            if isinstance(operation, Put):
                self.keys.put_raw(operation.key, operation.value)
                continue
            for key in revisions:
                if key == operation.key or (operation.is_prefix and key.startswith(operation.key)):
                    self.keys.delete(key)
        return TxnResult(self._header(), succeeded=True)

    def _header(self) -> Header:
        return Header(1, 1, self.keys.revision, 1)


@pytest.fixture
def keys() -> RegistryKeys:
    return RegistryKeys()


def names(keys: RegistryKeys) -> list[str]:
    return [kv.key.removeprefix(ROOT) for kv in keys.range()]


def client(keys: RegistryKeys, before_txn: Callable[[], object] = lambda: None) -> RegistryClient:
    return RegistryClient(cast("EtcdClient", KeysClient(keys, before_txn)), ROOT, "me")


def register(service_id: str, **options: Any) -> Callable[[RegistryClient], Coroutine[Any, Any, object]]:
    return lambda registry: registry.register(service_id, service_document(service_id, options, 0))


def status_of(coroutine: Coroutine[Any, Any, object]) -> int:
    with pytest.raises(ControlError) as caught:
        asyncio.run(coroutine)
    return caught.value.status


def test_a_change_by_another_client_is_read_again(keys: RegistryKeys) -> None:
    owners = ["other", "me"]
    registry = client(keys, lambda: owners and keys.define("job", owners.pop(), ttl="1s"))
    asyncio.run(register("job", ttl="60s")(registry))
    assert names(keys) == ["services/job/me", "services/job/other"]
    (mine,) = (kv.value for kv in keys.range() if kv.key.endswith("/me"))
    assert b'"60s"' in mine


def test_a_report_is_refused_if_the_service_is_deregistered_meanwhile(keys: RegistryKeys) -> None:
    keys.define("job", "other", ttl="1s")
    registry = client(keys, lambda: keys.delete_key(KeyKind.SERVICES, "job", "other"))
    assert status_of(registry.report("job", "up")) == 404
    assert names(keys) == []


def test_a_service_that_changes_all_the_time_is_an_error(keys: RegistryKeys) -> None:
    registry = client(keys, lambda: keys.define("job", "me", ttl="1s"))
    with pytest.raises(RegistryError):
        asyncio.run(register("job", ttl="60s")(registry))


def test_a_service_of_a_replica_is_not_registered(keys: RegistryKeys) -> None:
    keys.define("job", "replica:a", ttl="1s")
    assert status_of(register("job", ttl="60s")(client(keys))) == 409


@pytest.mark.parametrize("options", [{"probe": "tcp://a:1"}, {"status": "Up"}])
def test_only_a_service_that_reports_by_itself_is_reported(keys: RegistryKeys, options: dict[str, Any]) -> None:
    keys.define("job", "other", **options)
    assert status_of(client(keys).report("job", "up")) == 409


def test_a_code_is_checked(keys: RegistryKeys) -> None:
    keys.define("job", "other", ttl="1s")
    assert status_of(client(keys).report("job", "up", code="mine")) == 400
    assert names(keys) == ["services/job/other"]
    asyncio.run(client(keys).report("job", "down", b"\xff\n", code="mine"))
    assert "reports/job/me" in names(keys)


def test_an_invalid_definition_of_the_same_owner_is_replaced(keys: RegistryKeys) -> None:
    keys.put(KeyKind.SERVICES, ("job", "me"), {"version": 1})
    asyncio.run(register("job", ttl="60s")(client(keys)))
    content = asyncio.run(read_nodes(cast("EtcdClient", KeysClient(keys)), "/svcnode"))
    assert [service.id for service in content.nodes["n"].services()] == ["job"]
    assert content.nodes["n"].ignored == {}


def test_a_replica_that_joins_meanwhile_is_not_forgotten(keys: RegistryKeys) -> None:
    keys.define("job", "replica:a", ttl="1s")
    etcd = cast("EtcdClient", KeysClient(keys, lambda: keys.join("a")))
    with pytest.raises(RegistryError):
        asyncio.run(forget_replica(etcd, ROOT, "a"))
    assert "services/job/replica%3Aa" in names(keys)


def test_a_replica_without_a_lease_is_not_live_and_is_forgotten_with_its_key(keys: RegistryKeys) -> None:
    keys.join("a", lease_id=0)
    for number in range(150):
        keys.define(f"s{number}", "replica:a")
    etcd = cast("EtcdClient", KeysClient(keys))
    view = asyncio.run(read_nodes(etcd, "/svcnode")).nodes["n"]
    assert view.replicas == {}
    assert view.ignored_counts()[IgnoredKind.INVALID_VALUE] == 1
    assert len(asyncio.run(forget_replica(etcd, ROOT, "a"))) == 151
    assert names(keys) == []


def test_a_replica_is_no_reason_to_keep_a_registration(keys: RegistryKeys) -> None:
    keys.define("job", "me", ttl="1s")
    keys.define("job", "replica:a", ttl="1s")
    asyncio.run(client(keys).deregister("job"))
    assert names(keys) == ["services/job/replica%3Aa"]


def test_the_owner_of_a_lost_service_may_deregister_it(keys: RegistryKeys) -> None:
    keys.define("job", "lost:me", ttl="1s")
    keys.define("of-other", "lost:other", ttl="1s")
    asyncio.run(client(keys).deregister("job"))
    assert names(keys) == ["services/of-other/lost%3Aother"]
    assert status_of(client(keys).deregister("of-other")) == 404


def test_what_a_forgotten_replica_has_lost_goes_with_it(keys: RegistryKeys) -> None:
    keys.define("job", "lost:replica:a", ttl="1s")
    keys.define("of-b", "lost:replica:b", ttl="1s")
    keys.put(KeyKind.ISSUES, ("no key", "lost:replica:a"), {"version": 1})
    asyncio.run(forget_replica(cast("EtcdClient", KeysClient(keys)), ROOT, "a"))
    assert names(keys) == ["services/of-b/lost%3Areplica%3Ab"]


def test_losses_that_are_accepted_go_with_their_reports(keys: RegistryKeys) -> None:
    keys.define("job", "lost:me", ttl="1s")
    keys.put(KeyKind.REPORTS, ("job", "me"), {"version": 1, "status": "up"})
    keys.define("web", "lost:me", ttl="1s")
    keys.define("back", "lost:me", ttl="1s")
    keys.define("back", "me", ttl="1s")
    keys.put(KeyKind.REPORTS, ("back", "me"), {"version": 1, "status": "up"})
    keys.put(KeyKind.ISSUES, ("no key", "lost:me"), {"version": 1})
    etcd = cast("EtcdClient", KeysClient(keys))
    with pytest.raises(RegistryError):
        asyncio.run(accept_losses(etcd, ROOT, ["job", "unknown"]))
    assert "services/job/lost%3Ame" in names(keys), "all or nothing"
    assert [key.names for key in asyncio.run(accept_losses(etcd, ROOT, ["job"]))] == [("job", "lost:me")]
    assert not [name for name in names(keys) if "/job/" in name]
    accepted = {key.names[0] for key in asyncio.run(accept_losses(etcd, ROOT))}
    assert accepted == {"web", "back", "no key"}, "also what another owner keeps"
    assert names(keys) == ["reports/back/me", "services/back/me"]
    assert asyncio.run(accept_losses(etcd, ROOT)) == []


def test_a_node_that_is_named_is_there_without_keys(keys: RegistryKeys) -> None:
    etcd = cast("EtcdClient", KeysClient(keys))
    assert asyncio.run(read_nodes(etcd, "/svcnode")).nodes == {}
    assert set(asyncio.run(read_nodes(etcd, "/svcnode", "n")).nodes) == {"n"}
