"""The client of the shared registry against real members of real clusters of etcd."""

from __future__ import annotations

import asyncio
import functools
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from svcnode.core.address import RegistryAddress
from svcnode.core.errors import (
    RegistryCompactedError,
    RegistryError,
    RegistryFullError,
    RegistryLeaseLostError,
    RegistryLoginError,
    RegistryPermissionError,
    RegistryRestoredError,
    RegistryUnreachableError,
)
from svcnode.core.redaction import redacted
from svcnode.core.url import Url
from svcnode.net.connect import TcpEndpoint
from svcnode.net.etcd_json import (
    DELETE_PATH,
    GRANT_PATH,
    KEEP_ALIVE_PATH,
    OVERSIZED,
    PUT_PATH,
    RANGE_PATH,
    REVOKE_PATH,
    STATUS_PATH,
    TXN_PATH,
    WATCH_PATH,
    Compare,
    Delete,
    Event,
    KeyValue,
    Put,
    Range,
    WatchBatch,
)
from svcnode.net.tls import TlsOptions
from svcnode.sharing.etcd import EtcdClient
from tests.support.certificates import Certificate, make_certificate
from tests.support.ports import free_port
from tests.support.servers.etcd import PASSWORD, USER, EtcdCluster, EtcdServer
from tests.support.servers.etcd_gateway import GUARDED_PATHS, EtcdGateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

    from svcnode.net.etcd_json import RangePage
    from svcnode.sharing.pages import PageSize

DEADLINE_S = 60.0
TOKEN_TTL_S = 1
VERSIONS = ["3.4", pytest.param("3.5", marks=pytest.mark.wide)]
ROOMY = {"quota-backend-bytes": 1_000_000_000}
LARGE_VALUE = bytes(1_400_000)  # of another program; etcd accepts 1.5 MiB


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd"), version=request.param) as server:
        yield server


@pytest.fixture(scope="module", params=VERSIONS)
def auth_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    folder, flags = tmp_path_factory.mktemp("auth_server"), {"auth-token-ttl": TOKEN_TTL_S}
    with EtcdServer(folder, version=request.param, requires_auth=True, flags=flags) as server:
        server.grant("shared/")
        yield server


@pytest.fixture(scope="module", params=VERSIONS)
def roomy_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    folder, flags = tmp_path_factory.mktemp("roomy_server"), ROOMY
    with EtcdServer(folder, version=request.param, flags=flags) as server:
        yield server


@pytest.fixture
def gateway(auth_server: EtcdServer) -> Iterator[EtcdGateway]:
    with EtcdGateway(auth_server) as gateway:
        yield gateway


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path) as cluster:
        yield cluster


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    async def with_deadline(fixtures: dict[str, Any]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test(**fixtures)

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        uvloop.run(with_deadline(fixtures))

    return run


def endpoint_of(server: EtcdServer) -> TcpEndpoint:
    return TcpEndpoint.of(server.host, server.port)


def client_of(*servers: EtcdServer | EtcdGateway, **options: Any) -> EtcdClient:
    """Its calls may take longer than those of a replica: the machine may be busy."""
    return EtcdClient([(server.host, server.port) for server in servers], timeout_s=10.0, **options)


def user_of(server: EtcdServer | EtcdGateway, password: str = PASSWORD) -> EtcdClient:
    return client_of(server, username=USER, password=password)


@asynccontextmanager
async def using(cluster: EtcdCluster, member: EtcdServer) -> AsyncIterator[EtcdClient]:
    """A client of all members that has just used this one."""
    async with client_of(*cluster.members) as client:
        while client.endpoint != endpoint_of(member):
            client._current += 1
            client._current %= len(client.endpoints)
        await client.put("a/used", b"")
        assert client.endpoint == endpoint_of(member)
        yield client


async def next_batch(batches: AsyncIterator[WatchBatch]) -> WatchBatch:
    async with asyncio.timeout(DEADLINE_S):
        return await anext(batches)


async def until_it_works(call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """As a replica does, which calls again after a delay."""
    while True:
        try:
            await call()
        except RegistryUnreachableError:
            await asyncio.sleep(0.1)
        else:
            return


# ---- one member


@on_uvloop
async def test_a_key_has_its_value_revisions_and_lease_and_traffic_is_counted(server: EtcdServer) -> None:
    async with EtcdClient([("localhost", server.port)], timeout_s=10.0) as client:
        lease = await client.grant_lease(30)
        created = await client.put("kv/é", b"\0\xff", lease_id=lease.id)
        changed = await client.put("kv/é", bytes(1000))
        assert await client.get("kv/é") == KeyValue("kv/é", bytes(1000), created.revision, changed.revision, 0)
        assert (client.traffic.requests, client.traffic.writes) == (4, 2)
        assert client.traffic.sent_bytes > 1000
        assert client.traffic.received_bytes > 1000
        await client.delete("kv/é")
        assert await client.get("kv/é") is None
        key = b"odd/\xff".decode(errors="surrogateescape")
        await client.put(key, b"x")
        assert [kv.key for kv in (await client.range("odd/")).kvs] == [key]
        await client.delete("odd/", is_prefix=True)
        assert (await client.range("odd/")).kvs == []
        status = await client.status(client.endpoint)
        assert status.version.startswith("3.")
        assert status.leader_id == status.header.member_id
        assert (status.db_bytes > 0, status.errors) == (True, [])


@on_uvloop
async def test_a_transaction_writes_all_or_nothing(server: EtcdServer) -> None:
    async with client_of(server) as client:
        put = await client.put("txn/old", b"")
        operations: list[Put | Delete] = [Put("txn/new", b"1"), Delete("txn/old")]
        failed = await client.txn(operations, [Compare("txn/old", put.revision - 1)])
        assert not failed.succeeded
        assert await client.get("txn/new") is None
        done = await client.txn(operations, [Compare("txn/old", put.revision), Compare("txn/new", 0)])
        assert done.succeeded
        kvs = (await client.range("txn/")).kvs
        assert [(kv.key, kv.mod_revision) for kv in kvs] == [("txn/new", done.header.revision)]


@on_uvloop
async def test_a_range_of_many_keys_is_read_in_pages_of_one_revision(server: EtcdServer) -> None:
    async with client_of(server) as client, client_of(server) as other:
        keys = [f"pages/{number:04}" for number in range(250)]
        for start in range(0, len(keys), 100):
            await client.txn([Put(key, b"before") for key in keys[start : start + 100]])
        read_page = client._range_page

        async def change_between_pages(keys: dict[str, str], revision: int, size: PageSize) -> RangePage:
            page = await read_page(keys, revision, size)
            await other.put("pages/0249", b"after")
            return page

        client._range_page = change_between_pages  # type: ignore[method-assign]
        before = client.traffic.requests
        found = await client.range("pages/")
        assert client.traffic.requests - before == 3  # of 32, 128 and the other keys
        assert [(kv.key, kv.value) for kv in found.kvs] == [(key, b"before") for key in keys]
        assert found.header.revision < (await other.fence("pages/")).revision
        before = client.traffic.requests
        assert len((await client.range("pages/")).kvs) == len(keys)
        assert client.traffic.requests - before == 1, "the sizes are known now"


@on_uvloop
async def test_a_range_with_large_values_of_others_is_read(roomy_server: EtcdServer) -> None:
    async with client_of(roomy_server) as client:
        keys = [f"large/{number:03}" for number in range(200)]
        for start in range(0, len(keys), 100):
            await client.txn([Put(key, b"small") for key in keys[start : start + 100]])
        large = keys[40:54]
        for key in large:
            roomy_server.put(key, LARGE_VALUE)
        for _ in range(2):
            before = replace(client.traffic)
            found = {kv.key: kv.value for kv in (await client.range("large/")).kvs}
            assert found == {key: OVERSIZED if key in large else b"small" for key in keys}
            assert client.traffic.requests - before.requests > len(large)
            assert client.traffic.received_bytes - before.received_bytes < 1.5 * len(large) * len(LARGE_VALUE)
        whole = Range("large/"), Range("large/", keys_only=True)
        values, only_keys = await client.ranges(whole)
        assert [kv.key for kv in values] == [kv.key for kv in only_keys] == keys


@on_uvloop
async def test_keys_are_there_until_their_lease_is_revoked(server: EtcdServer) -> None:
    async with client_of(server) as client:
        lease = await client.grant_lease(30)
        await client.put("leased", b"", lease_id=lease.id)
        assert await client.keep_alive(lease.id) == lease.ttl_s == 30
        await client.revoke(lease.id)
        assert await client.get("leased") is None
        assert await client.keep_alive(lease.id) == 0
        with pytest.raises(RegistryLeaseLostError):
            await client.put("leased", b"", lease_id=lease.id)
        with pytest.raises(RegistryLeaseLostError):
            await client.revoke(lease.id)


@on_uvloop
async def test_a_full_registry_refuses_writes_and_serves_reads(server: EtcdServer) -> None:
    async with client_of(server) as client:
        await client.put("a/1", b"")
        with server.storage_full():
            with pytest.raises(RegistryFullError):
                await client.put("a/1", b"")
            with pytest.raises(RegistryFullError):
                await client.grant_lease(30)
            assert await client.get("a/1") is not None
            assert any("NOSPACE" in error for error in (await client.status(client.endpoint)).errors)
        await client.put("a/1", b"")


# ---- watches


@on_uvloop
async def test_a_watch_has_each_change_from_its_revision_on(server: EtcdServer) -> None:
    async with client_of(server) as client:
        before = len(asyncio.all_tasks())
        first = await client.put("watched/1", b"1")
        await client.put("other", b"")
        async with client.watch("watched/", first.revision) as batches:
            kv = KeyValue("watched/1", b"1", first.revision, first.revision, 0)
            assert await next_batch(batches) == WatchBatch(first.revision, [Event("watched/1", first.revision, kv)])
            server.compact()  # it has received everything
            done = await client.txn([Delete("watched/1"), Put("watched/2", b"2")])
            batch = await next_batch(batches)
            assert batch.revision == done.header.revision
            assert [(event.key, event.put is None) for event in batch.events] == [
                ("watched/1", True),
                ("watched/2", False),
            ]
            waiting = asyncio.ensure_future(next_batch(batches))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert len(asyncio.all_tasks()) == before, "its connection is closed"


@on_uvloop
async def test_a_watch_that_is_behind_gets_large_values_in_pieces_of_whole_revisions(roomy_server: EtcdServer) -> None:
    half = bytes(700_000)
    async with client_of(roomy_server) as client:
        first = await client.put("pieces/0", b"")
        for number in range(1, 5):
            await client.txn([Put(f"pieces/{number}{part}", half) for part in "ab"])
        async with client.watch("pieces/", first.revision) as batches:
            received: list[tuple[int, str]] = []
            while len(received) < 9:
                batch = await next_batch(batches)
                assert batch.revision == batch.events[-1].mod_revision
                assert all(event.mod_revision > last for event in batch.events for last, _ in received)
                received += [(event.mod_revision, event.key) for event in batch.events]
        expected = [(first.revision + number, f"pieces/{number}{part}") for number in range(1, 5) for part in "ab"]
        assert received == [(first.revision, "pieces/0"), *expected]


@on_uvloop
async def test_a_range_and_a_watch_at_a_compacted_revision_fail(server: EtcdServer) -> None:
    async with client_of(server) as client:
        old = await client.put("compacted/1", b"1")
        await client.put("compacted/1", b"2")
        server.compact()
        with pytest.raises(RegistryCompactedError):
            await client.range("compacted/", at_revision=old.revision)
        with pytest.raises(RegistryCompactedError):
            async with client.watch("compacted/", old.revision) as batches:
                await next_batch(batches)


# ---- failover


@on_uvloop
async def test_calls_and_watches_go_to_another_member_when_one_is_killed(cluster: EtcdCluster) -> None:
    member = cluster.followers()[0]
    async with using(cluster, member) as client:
        async with client.watch("a/", 0) as batches:
            member.kill()
            with pytest.raises(RegistryUnreachableError):
                await next_batch(batches)
        async with client.watch("a/", 0) as batches:
            assert client.endpoint != endpoint_of(member)
            put = await client.put("a/1", b"")
            assert (await next_batch(batches)).revision == put.revision
        leader = cluster.leader()
        member.start()
        member.wait_until_ready()
        leader.kill()
        await until_it_works(lambda: client.put("a/2", b"2"))
        found = await client.range("a/")
        assert [kv.key for kv in found.kvs] == ["a/1", "a/2", "a/used"]
        assert found.header.cluster_id == put.cluster_id


@pytest.mark.wide
@on_uvloop
async def test_without_a_majority_each_call_and_each_watch_fails(cluster: EtcdCluster) -> None:
    member, *others = cluster.members
    async with using(cluster, member) as client:
        lease = await client.grant_lease(30)
        async with client.watch("a/", 0) as batches:
            for other in others:
                other.kill()
            with pytest.raises(RegistryUnreachableError):
                await next_batch(batches)
        member.wait_until_leaderless()
        for call in (
            lambda: client.put("a/1", b""),
            lambda: client.fence("a/"),
            lambda: client.keep_alive(lease.id),
            lambda: client.watch("a/", 0).__aenter__(),
        ):
            with pytest.raises(RegistryUnreachableError):
                await call()
        assert (await client.status(endpoint_of(member))).leader_id == 0
        for other in others:
            other.start()
        await until_it_works(lambda: client.put("a/1", b""))


@pytest.mark.wide
@on_uvloop
async def test_data_restored_from_a_snapshot_is_noticed_once(cluster: EtcdCluster, tmp_path: Path) -> None:
    async with client_of(*cluster.members) as client:
        await client.put("a/old", b"")
        cluster.leader().save_snapshot(tmp_path / "snapshot")
        lost = await client.put("a/lost", b"")
        cluster.restore_snapshot(tmp_path / "snapshot")
        with pytest.raises(RegistryRestoredError):
            await until_it_works(lambda: client.fence("a/"))
        assert client.fences.written_after_s(lost.revision - 1) is None
        found = await client.range("a/")
        assert [kv.key for kv in found.kvs] == ["a/old"]
        assert found.header.revision < lost.revision


@on_uvloop
async def test_the_error_names_each_endpoint_also_if_it_is_not_etcd() -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found")
        writer.close()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client closes
        writer.close()

    silent = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with silent, EtcdClient([silent.sockets[0].getsockname()], timeout_s=0.5) as client:
        with pytest.raises(RegistryUnreachableError, match=r"no response within 0\.5 s"):
            await client.fence("a/")
    async with await asyncio.start_server(respond, "127.0.0.1", 0) as other:
        not_etcd = other.sockets[0].getsockname()
        endpoints = [("127.0.0.1", free_port()), ("nowhere.invalid", 2379), not_etcd]
        async with EtcdClient(endpoints) as client:
            for call in (lambda: client.fence("a/"), lambda: client.watch("a/", 0).__aenter__()):
                with pytest.raises(RegistryUnreachableError) as error:
                    await call()
                assert all(f"{host}:{port}" in str(error.value) for host, port in endpoints)


# ---- users


@on_uvloop
async def test_a_user_may_use_the_keys_that_it_has_permission_for(auth_server: EtcdServer) -> None:
    async with user_of(auth_server) as client:
        put = await client.put("shared/1", b"")
        async with client.watch("shared/", put.revision) as batches:
            assert (await next_batch(batches)).revision == put.revision
        auth_server.withdraw("shared/")
        for _ in range(2):
            with pytest.raises(RegistryPermissionError):
                await client.put("shared/1", b"")
        with pytest.raises(RegistryPermissionError):
            await client.watch("shared/", 0).__aenter__()
        auth_server.grant("shared/")
        await client.put("shared/1", b"")


@on_uvloop
async def test_a_wrong_or_missing_password_is_refused_and_not_shown(auth_server: EtcdServer) -> None:
    for client in (user_of(auth_server, "not-the-password"), client_of(auth_server)):
        async with client:
            for call in (lambda: client.fence("shared/"), lambda: client.watch("shared/", 0).__aenter__()):  # noqa: B023
                with pytest.raises(RegistryLoginError) as error:
                    await call()
                assert "not-the-password" not in str(error.value)


@on_uvloop
async def test_an_expired_token_is_replaced(auth_server: EtcdServer) -> None:
    async with user_of(auth_server) as client:
        await client.put("shared/1", b"")
        first = client._login.token
        await asyncio.sleep(TOKEN_TTL_S + 1.5)
        async with client.watch("shared/", 1) as batches:
            await next_batch(batches)
        assert client._login.token != first


@on_uvloop
async def test_calls_at_the_same_time_share_one_login(auth_server: EtcdServer) -> None:
    async with user_of(auth_server) as client:
        await asyncio.gather(*(client.fence("shared/") for _ in range(5)))
        assert client.traffic.requests == 5 + 1
        client._login.token = "expired"
        await asyncio.gather(*(client.fence("shared/") for _ in range(5)))
        assert client.traffic.requests == 6 + 5 + 1 + 5  # each call is refused and repeated
    async with user_of(auth_server, "not-the-password") as client:
        results = await asyncio.gather(*(client.fence("shared/") for _ in range(5)), return_exceptions=True)
        assert {type(result) for result in results} == {RegistryLoginError}


@on_uvloop
async def test_the_errors_of_etcd_3_6_are_understood(auth_server: EtcdServer, gateway: EtcdGateway) -> None:
    """A token that the member does not know after a restart; no permission; a lease that is over; a refused login."""
    async with user_of(gateway) as client:
        await client.put("shared/1", b"")
        auth_server.restart()
        await asyncio.sleep(TOKEN_TTL_S + 1.5)  # etcd restores tokens from its log, for this time
        await until_it_works(lambda: client.put("shared/1", b""))
        assert gateway.error_paths == [PUT_PATH]
        with pytest.raises(RegistryPermissionError):
            await client.put("other/1", b"")
        with pytest.raises(RegistryLeaseLostError):
            await client.put("shared/1", b"", lease_id=1)
    for client in (user_of(gateway, "not-the-password"), client_of(gateway)):
        async with client:
            for call in (lambda: client.fence("shared/"), lambda: client.status(client.endpoint)):  # noqa: B023
                with pytest.raises(RegistryLoginError):
                    await call()


@on_uvloop
async def test_every_call_logs_in_again_when_its_token_is_lost(auth_server: EtcdServer, gateway: EtcdGateway) -> None:
    """By etcd itself, and in the form of 3.6. Some calls of older versions need no token."""
    for server in (auth_server, gateway):
        async with user_of(server) as client:
            first = await client.put("shared/1", b"")
            lease = await client.grant_lease(30)
            calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
                RANGE_PATH: lambda: client.range("shared/"),
                PUT_PATH: lambda: client.put("shared/1", b""),
                DELETE_PATH: lambda: client.delete("shared/2"),
                TXN_PATH: lambda: client.txn([Put("shared/1", b"")]),
                GRANT_PATH: lambda: client.grant_lease(30),
                KEEP_ALIVE_PATH: lambda: client.keep_alive(lease.id),  # noqa: B023
                STATUS_PATH: lambda: client.status(client.endpoint),
                WATCH_PATH: lambda: first_batch(client, "shared/", first.revision),  # noqa: B023
                REVOKE_PATH: lambda: client.revoke(lease.id),  # noqa: B023
            }
            gateway.error_paths.clear()
            for path, call in calls.items():
                client._login.token = "expired"
                await call()
                assert client._login.token != "expired" or (server is auth_server and path in GUARDED_PATHS)
            assert {*gateway.error_paths} == (set() if server is auth_server else {*calls})


@pytest.mark.parametrize("version", VERSIONS)
@on_uvloop
async def test_a_token_that_is_younger_than_a_restored_snapshot_is_replaced(tmp_path: Path, version: str) -> None:
    """etcd answers no request with it: it waits for what the token was made after."""
    with EtcdServer(tmp_path / "etcd", version=version, requires_auth=True) as server:
        server.grant("shared/")
        server.save_snapshot(tmp_path / "snapshot")
        address = [(server.host, server.port)]
        async with EtcdClient(address, username=USER, password=PASSWORD) as client, client.watch("shared/", 1):
            for _ in range(100):
                await client.put("shared/key", b"")
            client._login.drop(client._login.token)
            await client.put("shared/key", b"")
            token = client._login.token
            server.kill()
            server.restore_snapshot(tmp_path / "snapshot")
            server.start()
            server.wait_until_ready()
            with pytest.raises(RegistryUnreachableError, match="no response"):
                await client.put("shared/key", b"")
            with pytest.raises(RegistryRestoredError):
                await client.put("shared/key", b"")
            assert client._login.token not in (token, None)
            assert [kv.key for kv in (await client.range("shared/")).kvs] == ["shared/key"]
            client._login.token = token
            assert [kv.key for kv in (await client.range("shared/")).kvs] == ["shared/key"], "it asks again by itself"
            client._login.token = token
            with pytest.raises(RegistryUnreachableError):
                await first_batch(client, "shared/", 1)
            assert (await first_batch(client, "shared/", 1)).events


async def first_batch(client: EtcdClient, prefix: str, revision: int) -> WatchBatch:
    async with client.watch(prefix, revision) as batches:
        return await next_batch(batches)


@on_uvloop
async def test_a_user_where_authentication_is_off_is_refused(server: EtcdServer) -> None:
    with EtcdGateway(server) as newer:
        for each in (server, newer):
            async with user_of(each) as client:
                for call in (lambda: client.put("shared/1", b""), lambda: client.watch("shared/", 0).__aenter__()):
                    with pytest.raises(RegistryLoginError) as error:
                        await call()
                    assert error.type is RegistryLoginError
                    assert PASSWORD not in str(error.value)


@pytest.mark.parametrize("ignores_tokens", [False, True])
@on_uvloop
async def test_a_client_notices_that_authentication_was_turned_off_and_on(
    auth_server: EtcdServer, ignores_tokens: bool
) -> None:
    """Older versions then refuse a token, as if it had expired; newer ones ignore it."""
    with EtcdGateway(auth_server, ignores_tokens=ignores_tokens) as gateway:
        async with user_of(gateway) as client, client_of(gateway) as anonymous:
            await client.put("shared/1", b"")
            await client.check_login("shared/")
            auth_server.disable_auth()
            try:
                if ignores_tokens:
                    await client.put("shared/1", b"")
                    with pytest.raises(RegistryLoginError):
                        await client.check_login("shared/")
                with pytest.raises(RegistryLoginError):
                    await client.put("shared/1", b"")
                await anonymous.put("shared/1", b"")
            finally:
                auth_server.enable_auth()
            await client.put("shared/1", b"")
            await client.check_login("shared/")
            with pytest.raises(RegistryLoginError):
                await anonymous.put("shared/1", b"")


@pytest.mark.parametrize("is_url_file", [False, True])
@on_uvloop
async def test_a_password_in_a_file_is_read_again_when_etcd_refuses_it(
    auth_server: EtcdServer, tmp_path: Path, is_url_file: bool
) -> None:
    def write(password: str) -> None:
        url = f"etcd://{USER}:{password}@{auth_server.host}:{auth_server.port}"
        file.write_text(f"{url}\n" if is_url_file else f"{password}\n")

    file = tmp_path / "secret"
    registry = RegistryAddress(((auth_server.host, auth_server.port),), username=USER, password="first-secret")
    path = str(file)
    registry = registry._replace(url_file=path) if is_url_file else registry._replace(password_file=path)
    try:
        write("first-secret")
        auth_server.set_password("first-secret")
        async with EtcdClient.at(registry, None) as client:
            client._timeout_s = 10.0
            await client.put("shared/1", b"")
            auth_server.set_password("second-secret")
            with pytest.raises(RegistryLoginError):
                await client.put("shared/1", b"")
            write("second-secret")
            await client.put("shared/1", b"")
            assert redacted("second-secret") != "second-secret"
            file.unlink()
            auth_server.set_password("third-secret")
            with pytest.raises(RegistryLoginError, match="secret: "):
                await client.put("shared/1", b"")
            client.set_access(registry._replace(password="third-secret"), None)  # a reload
            await client.put("shared/1", b"")
    finally:
        auth_server.set_password(PASSWORD)


# ---- TLS


@on_uvloop
async def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    trusted = TlsOptions(
        Url(scheme="etcd", host="127.0.0.1"),
        ca=str(made.certificate),
        client_certificate=str(made.certificate),
        client_key=str(made.key),
    )
    with EtcdServer(tmp_path / "server", certificate=made, client=made) as own_server:
        async with client_of(own_server, tls=trusted) as client:
            put = await client.put("a/1", b"")
            async with client.watch("a/", put.revision) as batches:
                assert (await next_batch(batches)).revision == put.revision
        for options in (
            replace(trusted, ca=""),
            replace(trusted, client_certificate="", client_key=""),
            replace(trusted, server_name="other.example"),
            None,
        ):
            async with client_of(own_server, tls=options) as client:
                with pytest.raises(RegistryUnreachableError):
                    await client.fence("a/")
    with pytest.raises(RegistryError):
        await EtcdClient([("127.0.0.1", 1)], tls=replace(trusted, ca=str(tmp_path / "missing.pem"))).__aenter__()


@on_uvloop
async def test_a_replaced_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    for name in ("server", "old", "new"):
        (tmp_path / name).mkdir()
    made, old, new = (make_certificate(tmp_path / name) for name in ("server", "old", "new"))
    used = Certificate(tmp_path / "client.pem", tmp_path / "client.key")
    used.certificate.write_bytes(old.certificate.read_bytes())
    used.key.write_bytes(old.key.read_bytes())
    tls = TlsOptions(
        Url(scheme="etcd", host="127.0.0.1"),
        ca=str(made.certificate),
        client_certificate=str(used.certificate),
        client_key=str(used.key),
    )
    # The gateway of etcd is a client of etcd itself, with the certificate of the server.
    trusted = Certificate(tmp_path / "trusted.pem", new.key)
    trusted.certificate.write_bytes(new.certificate.read_bytes() + made.certificate.read_bytes())
    with EtcdServer(tmp_path / "etcd", certificate=made, client=trusted) as own_server:
        async with client_of(own_server, tls=tls) as client:
            with pytest.raises(RegistryUnreachableError):
                await client.fence("a/")
            used.certificate.unlink()
            with pytest.raises(RegistryUnreachableError, match=re.escape(str(used.certificate))):
                await client.fence("a/")
            used.certificate.write_bytes(new.certificate.read_bytes())
            used.key.write_bytes(new.key.read_bytes())
            await until_it_works(lambda: client.fence("a/"))
            client.set_access(RegistryAddress(()), replace(tls, ca=str(old.certificate)))
            with pytest.raises(RegistryUnreachableError):
                await client.fence("a/")
            client.set_access(RegistryAddress(()), tls)
            await client.fence("a/")
