"""Reasons and option errors of the kinds that check servers, produced with scripted servers."""

from __future__ import annotations

import asyncio
import json
import math
import re
import struct
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from asyncmy.errors import MySQLError
from pamqp import commands
from pamqp.frame import marshal

from svcnode.core.model import Verdict
from svcnode.core.url import Url
from svcnode.probes import libpq, make_probe, mysql
from svcnode.probes.libpq import PostgresqlError
from svcnode.probes.mysql import MysqlProbe
from svcnode.probes.postgresql import PostgresqlProbe
from svcnode.probes.redis import RedisProbe
from svcnode.probes.sql import Row
from tests.integration.probes.test_grpc import headers_only, reset_stream, with_body
from tests.integration.probes.test_memcached import answering
from tests.support.backends import Backend, Peer, ReceivedRequest, http_response, sending
from tests.support.http2_backend import Http2Backend
from tests.support.probe_assertions import KeepAliveBackend
from tests.support.servers.chains import VOTE_ACCOUNT, respond_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pytest

    from tests.wording.conftest import Snapshot


def line(verdict: Verdict, address: str = "") -> str:
    reason = verdict.reason.replace(address, "HOST:PORT") if address else verdict.reason
    return f"{verdict.outcome.value:<9}  {verdict.code:<20}  {reason}"


def check(url: str, **options: Any) -> Verdict:
    return asyncio.run(make_probe({"url": url, **options}).check())


def reasons(scheme: str, scripts: Iterable[Callable[[Peer], None]], path: str = "", **options: Any) -> str:
    lines = []
    for script in scripts:
        with Backend(script) as backend:
            lines.append(line(check(f"{scheme}://{backend.address}{path}", **options), backend.address))
    return "\n".join(lines)


def http_reasons(scheme: str, cases: Iterable[tuple[Callable[[ReceivedRequest], bytes], dict[str, Any]]]) -> str:
    lines = []
    for respond, options in cases:
        with KeepAliveBackend(respond) as backend:
            lines.append(line(check(f"{scheme}://{backend.address}", **options), backend.address))
    return "\n".join(lines)


# ---- HTTP


def beacon_node(health: int, distance: object = 0, **flags: bool) -> Callable[[ReceivedRequest], bytes]:
    sync = {"sync_distance": distance, "head_slot": "0", "is_syncing": False, **flags}
    chain = {"genesis_time": "1606824023", "SECONDS_PER_SLOT": "12", "connected": "0"}
    body = json.dumps({"data": sync | (chain if distance == 1 else {})})
    return lambda request: http_response(health) if request.target.endswith("/health") else http_response(200, body)


def test_beacon(snapshot: Snapshot) -> None:
    cases: list[Any] = [(beacon_node(status), {}) for status in (206, 401, 404, 503)]
    cases += [(beacon_node(200, 3), {"max_slot_lag": 2}), (beacon_node(200, "x"), {"max_slot_lag": 2})]
    cases += [(beacon_node(200, el_offline=True), {}), (beacon_node(200, is_optimistic=True), {})]
    cases += [(lambda request: http_response(200, "[]"), {})]
    text = http_reasons("beacon+http", cases)
    far_behind = re.sub("[0-9]{6,}", "N", http_reasons("beacon+http", [(beacon_node(200, 1), {})]))
    without_peers = http_reasons("beacon+http", [(beacon_node(200, 1), {"max_slot_lag": 10**9})])
    snapshot("beacon", f"{text}\n{far_behind}\n{without_peers}")


def ipfs_daemon(status: int, about: object, peers: object) -> Callable[[ReceivedRequest], bytes]:
    return lambda request: http_response(status, json.dumps(about if request.target.endswith("/id") else peers))


def test_ipfs(snapshot: Snapshot) -> None:
    cases: list[Any] = [
        (ipfs_daemon(403, {}, {}), {}),
        (ipfs_daemon(200, {}, {}), {}),
        (ipfs_daemon(200, {"ID": "a"}, {}), {"min_peers": 1}),
        (ipfs_daemon(200, {"ID": "a"}, {"Peers": [{}]}), {"min_peers": 2}),
    ]
    snapshot("ipfs", http_reasons("ipfs+http", cases))


def etcd_member(
    status: bytes, health: bytes = b"", login: bytes = b"", txn: bytes = b""
) -> Callable[[ReceivedRequest], bytes]:
    responses = {"/v3/maintenance/status": status, "/health": health, "/v3/auth/authenticate": login}
    return lambda request: (responses | {"/v3/kv/txn": txn})[request.target]


def test_etcd(snapshot: Snapshot) -> None:
    member = http_response(200, '{"header": {}, "leader": "1"}')
    healthy = http_response(200, '{"health": "true"}')
    rejected = http_response(400, '{"code": 3, "message": "etcdserver: authentication failed"}')
    denied = http_response(403, '{"code": 7, "message": "etcdserver: permission denied"}')
    full = http_response(429, '{"code": 8, "message": "etcdserver: mvcc: database space exceeded"}')
    cases: list[Any] = [
        (etcd_member(http_response(404)), {}),
        (etcd_member(http_response(503, '{"code": 14, "message": "etcdserver: not capable"}')), {}),
        (etcd_member(http_response(200, "{}")), {}),
        (etcd_member(http_response(200, '{"header": {}, "isLearner": true}')), {}),
        (etcd_member(http_response(200, '{"header": {}}')), {}),
        (etcd_member(member, http_response(503, '{"health": "false", "reason": "ALARM NOSPACE"}')), {}),
        (etcd_member(member, healthy, rejected), {"username": "me", "password": "pw"}),
        (etcd_member(member, healthy, http_response(200, "{}")), {"username": "me", "password": "pw"}),
        (etcd_member(member, healthy, txn=full), {"write": True}),
        (etcd_member(member, healthy, txn=http_response(200, "{}")), {"write": True}),
        (etcd_member(member, healthy, txn=denied), {"write": True}),
    ]
    snapshot("etcd", http_reasons("etcd", cases))


def ethereum_client(**results: Any) -> Callable[[ReceivedRequest], bytes]:
    def respond(request: ReceivedRequest) -> bytes:
        block = {"timestamp": hex(int(time.time()))}
        result = ({"eth_chainId": "0x1", "eth_syncing": False, "eth_getBlockByNumber": block} | results).get(
            json.loads(request.body)["method"], "0x19"
        )
        return result if isinstance(result, bytes) else http_response(200, json.dumps({"id": 1, "result": result}))

    return respond


def test_ethereum(snapshot: Snapshot) -> None:
    error = http_response(200, '{"id": 1, "error": {"code": -32601, "message": "the method does not exist"}}')
    future = {"timestamp": hex(int(time.time()) + 10**9)}
    cases: list[Any] = [
        (ethereum_client(eth_chainId="0x5"), {"chain_id": 1}),
        (ethereum_client(eth_chainId="5"), {"chain_id": 1}),
        (ethereum_client(eth_syncing={"currentBlock": "0x64", "highestBlock": "0xfa"}), {}),
        (ethereum_client(eth_syncing=error), {}),
        (ethereum_client(eth_syncing=http_response(401)), {}),
        (ethereum_client(eth_getBlockByNumber=None), {"max_block_age": "60s"}),
        (ethereum_client(net_peerCount="0x1"), {"min_peers": 3}),
        (ethereum_client(net_peerCount="0x0"), {}),
    ]
    text = http_reasons("ethereum+http", cases)
    cases = [(ethereum_client(eth_getBlockByNumber=block), {"max_block_age": "60s"}) for block in (future, OLD_BLOCK)]
    cases.append((ethereum_client(eth_getBlockByNumber=OLD_BLOCK), {}))
    ages = re.sub("[0-9]{9,}", "N", http_reasons("ethereum+http", cases))
    snapshot("ethereum", f"{text}\n{ages}")


OLD_BLOCK = {"timestamp": "0x1"}


def test_chains(snapshot: Snapshot) -> None:
    """One line for each fault that a kind reports with words of its own."""
    far_s, behind = 10**8, [200, -32005, "Node is behind by 42 slots", {"numSlotsBehind": 42}]
    reference = {"reference": ["http://127.0.0.1:1"]}
    cases: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
        "ethereum": [({}, reference), ({"missing": ["eth_chainId"]}, {})],
        "cometbft": [
            ({"is_syncing": True}, {}),
            ({"age_s": far_s}, {}),
            ({"peers": 0}, {}),
            ({}, {"chain_id": "osmosis-1"}),
            ({"voting_power": "0"}, {"validator": True}),
            ({"misses_every": 1}, {"validator": True}),
            ({"results": {"status": {}}}, {}),
        ],
        "solana": [
            ({"errors": {"getHealth": behind}}, {}),
            ({"age_s": far_s}, {}),
            ({"results": {"getHealth": "unknown"}}, {}),
            ({"votes": "delinquent"}, {"vote_account": VOTE_ACCOUNT}),
            ({"votes": ""}, {"vote_account": VOTE_ACCOUNT}),
        ],
        "substrate": [
            ({"is_syncing": True}, {}),
            ({"age_s": far_s}, {}),
            ({"finalized_age_s": far_s}, {}),
            ({"peers": 0}, {}),
            ({}, {"chain": "Kusama"}),
            ({"results": {"state_getStorage": None}}, {}),
            ({"results": {"state_getStorage": "0xzz"}}, {}),
        ],
        "bitcoin": [
            ({"is_syncing": True, "missing_blocks": 9}, {}),
            ({"errors": {"getblockchaininfo": [500, -28, "Loading block index…", None]}}, {}),
            ({"age_s": far_s}, {}),
            ({"peers": 0}, {}),
            ({}, {"chain": "signet"}),
        ],
        "opnode": [
            ({"is_syncing": True}, {}),
            ({"age_s": far_s}, {}),
            ({"l1_age_s": far_s}, {}),
            ({}, {"max_safe_age": "1m"}),
            ({}, {"chain_id": 8453}),
        ],
    }
    text = "\n".join(
        http_reasons(f"{kind}+http", [(respond_as(kind, **state), options) for state, options in rows])
        for kind, rows in cases.items()
    )
    snapshot("chains", re.sub("[0-9]{9,}|[0-9]+(?= s old)", "N", text))


def test_services_of_validators(snapshot: Snapshot) -> None:
    health = '{"outcome": "DOWN", "checks": [{"id": "default-check", "status": "UP"}, {"id": "db", "status": "DOWN"}]}'

    def signer(health: bytes, keys: bytes) -> Callable[[ReceivedRequest], bytes]:
        pages = {"upcheck": http_response(200, "OK"), "healthcheck": health, "publicKeys": keys}
        return lambda request: pages[request.target.rpartition("/")[2]]

    up = http_response(200, '{"outcome": "UP"}')
    cases: list[Any] = [
        (signer(http_response(503, health), b""), {}),
        (signer(up, http_response(200, "[]")), {}),
        (signer(up, http_response(200, '["0xab"]')), {"keys": ["0xcd", "0xab"]}),
        (signer(http_response(404), b""), {}),
    ]
    boost: list[Any] = [
        (lambda _: http_response(503, '{"code": 503, "message": "all relays are unavailable"}'), {}),
        (lambda _: http_response(404), {}),
        (lambda _: http_response(502), {}),
        (lambda _: http_response(200), {"relays": ["http://127.0.0.1:1"]}),
    ]
    snapshot("signers", http_reasons("web3signer+http", cases) + "\n" + http_reasons("mevboost+http", boost))


# ---- other protocols


def test_grpc(snapshot: Snapshot) -> None:
    lines = []
    for respond in (
        headers_only(status=b"404"),
        headers_only(),
        headers_only((b"grpc-status", b"5")),
        headers_only((b"grpc-status", b"12")),
        headers_only((b"grpc-status", b"14"), (b"grpc-message", b"going%20down")),
        headers_only((b"grpc-status", b"16")),
        with_body(b"\0\0\0\0\x02\x08\x02"),
        with_body(b"\0\0\0\0\x02\x08\x03"),
        with_body(b"<html>"),
        reset_stream,
    ):
        with Http2Backend(respond) as backend:
            lines.append(line(check(f"grpc://{backend.address}/ledger"), backend.address))
    lines.append(reasons("grpc", [sending(b"HTTP/1.1 400 Bad Request\r\n\r\n")]))
    snapshot("grpc", "\n".join(lines))


def test_memcached(snapshot: Snapshot) -> None:
    answers = [b"ERROR Too many open connections\r\n", b"SERVER_ERROR out of order\r\n", b"220 mail\r\n"]
    refusals = (b"SERVER_ERROR out of memory storing object\r\n", b"NOT_STORED\r\n")
    writes = [answering(b"VERSION 1.6\r\n", b"END\r\n", refusal) for refusal in refusals]
    incomplete = [answering(b"VERSION 1.6\r\n", b"STAT evictions off\r\nEND\r\n", b"END\r\n")]
    lines = [reasons("memcached", map(sending, answers)), reasons("memcached", writes, write=True)]
    snapshot("memcached", "\n".join([*lines, reasons("memcached", incomplete)]))


def test_redis(snapshot: Snapshot) -> None:
    answers = [
        b"-NOAUTH Authentication required.\r\n",
        b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
        b"-NOPERM this user has no permissions to run the 'ping' command\r\n",
        b"-DENIED Redis is running in protected mode\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-MASTERDOWN Link with MASTER is down\r\n",
        b"-ERR max number of clients reached\r\n",
        b"+HELLO\r\n",
        b"+PONG\r\n-NOPERM no permissions to run the 'info' command\r\n",
        b"+PONG\r\n" * 5,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-MISCONF Errors writing to the AOF file: No space left on device\r\n",
        redis_info("redis_mode:sentinel"),
        redis_info("role:master", "maxmemory:1", "used_memory:2", "maxmemory_policy:noeviction"),
        redis_info("role:master", "min_slaves_good_slaves:0"),
        redis_info("role:master", "cluster_enabled:1") + b"$18\r\ncluster_state:fail\r\n",
    ]
    master = redis_info("role:master")
    writes = [
        redis_info("role:slave", "master_link_status:up"),
        *(master + answer for answer in (b"-NOPERM no\r\n", b"-NEW reason\r\n", b"+QUEUED\r\n")),
        redis_info("role:master", "cluster_enabled:1")
        + b"$16\r\ncluster_state:ok\r\n"
        + b"-MOVED 1 10.0.0.2:6379\r\n" * 1024,
    ]
    probe = make_probe({"url": "redis://HOST:1", "role": "primary"})
    assert isinstance(probe, RedisProbe)
    roles = [probe._role_verdict({"role": "slave", "master_link_status": link}) for link in ("up", "down")]
    lines = [reasons("redis", map(sending, answers)), reasons("redis", map(sending, writes), write=True)]
    lags = [
        redis_info("role:slave", "master_link_status:up", *each) for each in ((), ("master_last_io_seconds_ago:31",))
    ]
    lines.append(reasons("redis", map(sending, lags), max_lag="30s"))
    snapshot("redis", "\n".join([*lines, *(line(verdict) for verdict in roles if verdict is not None)]))


def redis_info(*lines: str) -> bytes:
    """The responses to PING and to INFO, which the probe sends together."""
    info = "\r\n".join(lines).encode()
    return b"+PONG\r\n" + b"$%d\r\n%b\r\n" % (len(info), info) * 4


def test_redis_sentinel(snapshot: Snapshot) -> None:
    answers = [
        *(b"*-1\r\n", b"*0\r\n", b"-ERR unknown command 'SENTINEL'\r\n", b"-NOAUTH Authentication required.\r\n"),
        b"-NOPERM no permissions\r\n",
    ]
    snapshot("redis_sentinel", reasons("redis+sentinel", map(sending, answers), path="/mymaster"))


def mysql_error(number: int, text: bytes) -> bytes:
    payload = b"\xff" + struct.pack("<H", number) + b"#08004" + text
    return struct.pack("<I", len(payload))[:3] + b"\0" + payload


def test_mysql(snapshot: Snapshot) -> None:
    answers = [
        mysql_error(1040, b"Too many connections"),
        mysql_error(1045, b"Access denied for user 'me'@'192.0.2.1' (using password: NO)"),
        mysql_error(1129, b"Host '192.0.2.1' is blocked because of many connection errors"),
        mysql_error(1130, b"Host '192.0.2.1' is not allowed to connect to this MySQL server"),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ]
    snapshot("mysql", reasons("mysql", map(sending, answers), username="me"))


MysqlRow = dict[str, object]


def answering_from(answers: list[Any]) -> Callable[..., Any]:
    """Instead of a query: returns the next answer, or raises it."""

    async def query(*_: object, **__: object) -> Any:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    return query


def test_mysql_states(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = []
    rows_of = answering_from(answers)

    async def query_row(*given: Any) -> Row:
        rows = await rows_of(*given)
        return Row.of(rows[0], rows[0].values()) if rows else Row()

    monkeypatch.setattr(mysql, "_rows", rows_of)
    monkeypatch.setattr(mysql, "_query_row", query_row)
    connection: Any = SimpleNamespace(thread_id=lambda: 1)
    url = Url.parse("mysql://me@HOST/ledger")

    def verdict(*given: list[MysqlRow] | Exception, **options: Any) -> Verdict:
        answers[:] = given
        return asyncio.run(MysqlProbe(url, **options).check_connection(connection)) or Verdict.ready()

    writable: list[MysqlRow] = [{"read_only": 0, "innodb_read_only": 0}]
    read_only: list[MysqlRow] = [{"read_only": 1, "innodb_read_only": 0}]
    lagging: MysqlRow = {"Channel_Name": "east", "Replica_IO_Running": "Yes", "Seconds_Behind_Source": 70}
    verdicts = [
        verdict(read_only, role="primary"),
        verdict(read_only, [], []),
        verdict(read_only, [], MySQLError(1227, "Access denied; you need the SLAVE MONITOR privilege")),
        verdict(writable, galera("non-Primary", "0", "OFF")),
        verdict(writable, galera("Primary", "1", "OFF")),
        verdict(writable, [], [], role="replica"),
        verdict(writable, [], [{"Seconds_Behind_Source": None}], role="replica"),
        verdict(writable, [], [lagging], max_lag=60.0),
        verdict(writable, [], [], [], [{"1": 0}], [], query="SELECT 1 = 0"),
        verdict(writable, [], [], [], [], [], query="SELECT 1 WHERE FALSE"),
    ]
    for error in (
        MySQLError(1146, "Table 'ledger.svcnode_write' doesn't exist"),
        MySQLError(1114, "The table 'svcnode_write' is full"),
        MySQLError(1969, "Query execution was interrupted (max_statement_time exceeded)"),
    ):
        verdicts += [verdict(writable, [], [], error, write="svcnode_write")]
    probe = MysqlProbe(url, max_lag=60.0, primary="mysql://me:secret@PRIMARY")
    assert probe._primary is not None
    refused = ConnectionRefusedError(111, "Connection refused")
    verdicts += [probe._primary_error_verdict(probe._primary, each) for each in (refused, TimeoutError())]
    snapshot("mysql-states", "\n".join(map(line, verdicts)))


def galera(cluster: str, state: str, ready: str) -> list[MysqlRow]:
    status = {"provider_name": "Galera", "cluster_status": cluster, "local_state": state, "ready": ready}
    return [{"Variable_name": f"wsrep_{name}", "Value": value} for name, value in status.items()]


def test_postgresql(snapshot: Snapshot) -> None:
    texts = [
        "the database system is starting up",
        "the database system is shutting down",
        "sorry, too many clients already",
        'password authentication failed for user "me"',
        'role "me" does not exist',
        'database "ledger" does not exist',
        'no pg_hba.conf entry for host "192.0.2.1", user "me", database "ledger", no encryption',
        "server does not support SSL, but SSL was required",
        "Connection refused",
        'Connection refused\nconnection to server at "::1", port 5432 failed: Connection refused',
        "could not create socket: Too many open files",
        'could not read root certificate file "/ca.pem": no certificate or crl found',
    ]
    probe = PostgresqlProbe(Url.parse("postgresql://me@HOST/ledger"))
    verdicts = [probe.verdict_for_driver_error(PostgresqlError(text)) for text in texts]
    verdicts += [probe.verdict_for_driver_error(PostgresqlError("division by zero", "22012"))]
    snapshot("postgresql", "\n".join(map(line, verdicts)))


class PostgresqlResult:
    ntuples = 1

    def __init__(self, *values: bytes) -> None:
        self._values = values
        self.nfields = len(values)

    def get_value(self, _: int, column: int) -> bytes:
        return self._values[column]


PRIMARY = PostgresqlResult(b"f", b"off", b"", b"on")
READ_ONLY = PostgresqlResult(b"f", b"on", b"", b"on")
REPLICA = PostgresqlResult(b"t", b"on", b"", b"on")


def test_postgresql_states(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = []
    monkeypatch.setattr(libpq, "execute", answering_from(answers))
    connection: Any = SimpleNamespace(user=b"me", status=0, backend_pid=1)
    url = Url.parse("postgresql://me@HOST/ledger")

    def verdict(*given: PostgresqlResult | Exception, **options: Any) -> Verdict:
        answers[:] = given
        return asyncio.run(PostgresqlProbe(url, **options).check_connection(connection)) or Verdict.ready()

    missing = PostgresqlError('relation "svcnode_write" does not exist', "42P01")
    denied = PostgresqlError("permission denied for table svcnode_write", "42501")
    full = PostgresqlError('could not write to file "base/pgsql_tmp/1": No space left on device', "53100")
    verdicts = [
        verdict(REPLICA, role="primary"),
        verdict(PRIMARY, role="replica"),
        verdict(REPLICA, write="svcnode_write"),
        verdict(READ_ONLY, PostgresqlResult(b"configuration file")),
        verdict(READ_ONLY, PostgresqlResult(b"user"), write="svcnode_write"),
        verdict(PostgresqlResult(b"f", b"off", b"ANY 2 (a, b, c)", b"on"), PostgresqlResult(b"1", b"0")),
        verdict(PostgresqlResult(b"f", b"off", b"ANY 2 (a, b, c)", b"on"), PostgresqlResult(b"0", b"2")),
        verdict(PRIMARY, missing, write="svcnode_write"),
        verdict(PRIMARY, full, write="svcnode_write"),
        verdict(PRIMARY, denied, write="svcnode_write"),
        verdict(PRIMARY, denied, write="monitoring.svcnode_write"),
    ]
    probe = PostgresqlProbe(url, max_lag=60.0, primary="postgresql://me:secret@PRIMARY/ledger")
    assert probe._primary is not None
    lags = [
        probe._verdict_for_lag(lag, age, 60.0) for lag, age in ((70.0, 70.0), (math.inf, None), (math.inf, -3600.0))
    ]
    rejected = PostgresqlError('connection to server failed: FATAL: role "me" does not exist')
    errors = [PostgresqlError("connection to server failed: Connection refused"), TimeoutError(), rejected]
    verdicts += [each for each in lags if each]
    verdicts += [probe._primary_error_verdict(probe._primary, each) for each in errors]
    snapshot("postgresql-states", "\n".join(map(line, verdicts)))


def nats_server(error: str) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.send(b'INFO {"server_id": "n1"}\r\n')
        peer.read_until(b"PING\r\n")
        peer.send(f"-ERR '{error}'\r\n".encode())

    return script


def deny_publishing(peer: Peer) -> None:
    peer.send(b'INFO {"server_id": "n1"}\r\n')
    for _ in range(2):
        peer.read_until(b"PING\r\n")
        peer.send(b"PONG\r\n")
    peer.read_until(b"PUB $JS.API.INFO")
    peer.send(b"-ERR 'Permissions Violation for Publish to \"$JS.API.INFO\"'\r\n")


def test_nats(snapshot: Snapshot) -> None:
    errors = ["Authorization Violation", "maximum connections exceeded", "Permissions Violation for Publish"]
    scripts = [*map(nats_server, errors), sending(b'INFO {"tls_required": true}\r\n'), sending(b"220 mail\r\n")]
    without_tls = reasons("nats", [sending(b"INFO {}\r\n")], tls=True)
    options: list[dict[str, Any]] = [{"jetstream": True}, {"write": True}]
    denied = [reasons("nats", [deny_publishing], "", **each) for each in options]
    snapshot("nats", "\n".join([reasons("nats", scripts), without_tls, *denied]))


def amqp_broker(reply_code: int, text: str) -> Callable[[Peer], None]:
    start = marshal(commands.Connection.Start(server_properties={}, mechanisms="PLAIN"), 0)
    return lambda peer: peer.send(start + marshal(commands.Connection.Close(reply_code, text, 0, 0), 0))


def test_amqp(snapshot: Snapshot) -> None:
    cases = [
        (403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."),
        (530, "NOT_ALLOWED - vhost nowhere not found"),
        (530, "NOT_ALLOWED - access to vhost 'ledger' refused for user 'me'"),
        (530, "NOT_ALLOWED - access to vhost 'ledger' refused for user 'me': connection limit (12) is reached"),
        (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"),
        (541, "INTERNAL_ERROR"),
    ]
    external = marshal(commands.Connection.Start(server_properties={}, mechanisms="EXTERNAL"), 0)
    scripts = [*(amqp_broker(*case) for case in cases), sending(external), sending(b"AMQP\x00\x01\x00\x00")]
    login = marshal(commands.Connection.Tune(1, 131_072, 0), 0) + marshal(commands.Connection.OpenOk(), 0)
    start = marshal(commands.Connection.Start(server_properties={}, mechanisms="PLAIN"), 0)
    blocked = marshal(commands.Connection.Blocked("low on memory"), 0)
    scripts += [sending(start + login + blocked)]
    snapshot("amqp", reasons("amqp", scripts))
