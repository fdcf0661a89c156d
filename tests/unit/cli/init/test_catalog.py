"""Responses of real servers, whole and in parts, and similar responses of other servers."""

from __future__ import annotations

import pytest

from svcnode.cli.init.catalog import (
    Matcher,
    is_amqp,
    is_beacon_node,
    is_bitcoin,
    is_cometbft,
    is_etcd,
    is_execution_client,
    is_ipfs,
    is_memcached,
    is_mev_boost,
    is_mysql,
    is_nats,
    is_node,
    is_op_node,
    is_op_stack,
    is_postgresql,
    is_redis,
    is_sentinel,
    is_solana,
    is_substrate,
    is_web3signer,
)
from svcnode.net.http_response import HttpResponse

MARIADB = b"[\x00\x00\x00\x0a5.5.5-10.11.6-MariaDB-0+deb12u1\x00" + bytes(40)
MYSQL = b"J\x00\x00\x00\x0a8.0.36\x00" + bytes(40)
TOO_MANY = b"\x17\x00\x00\x00\xff\x10\x04Too many connections"
HOST_BLOCKED = b"\x46\x00\x00\x00\xff\x69\x04Host '127.0.0.1' is blocked"
START = b"\x01\x00\x00\x00\x00\x02\x04\x00\x0a\x00\x0a\x00\x09" + bytes(20)
CLOSE = b"\x01\x00\x00\x00\x00\x02\x04\x00\x0a\x00\x32\x00\x09" + bytes(20)

PROTOCOLS: dict[str, tuple[Matcher, list[bytes]]] = {
    "postgresql": (is_postgresql, [b"S", b"N"]),
    "mysql": (is_mysql, [MARIADB, MYSQL, TOO_MANY, HOST_BLOCKED]),
    "redis": (
        is_redis,
        [
            b"+PONG\r\n",
            b"-NOAUTH Authentication required.\r\n",
            b"-LOADING Redis is loading the dataset in memory\r\n",
            b"-DENIED Redis is running in protected mode\r\n",
            b"-MASTERDOWN Link with MASTER is down\r\n",
            b"-ERR max number of clients reached\r\n",
        ],
    ),
    "sentinel": (is_sentinel, [b"*1\r\n*40\r\n$4\r\nname\r\n", b"*0\r\n"]),
    "memcached": (is_memcached, [b"VERSION 1.6.18\r\n"]),
    "amqp": (is_amqp, [START]),
    "nats": (is_nats, [b'INFO {"server_id":"N"} \r\n']),
}
OTHERS = {
    "ssh": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "pop3": b"+OK ready\r\n",
    "a pop3 error": b"-ERR unknown command\r\n",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a tls alert": b"\x15\x03\x01\x00\x02\x02\x46",
    "another version of amqp": b"AMQP\x00\x01\x00\x00",
    "a broker that closes": CLOSE,
    "a later packet of mysql": MYSQL[:3] + b"\x01" + MYSQL[4:],
    "an older mysql": MYSQL[:4] + b"\x09" + MYSQL[5:],
    "mysql without a version": MYSQL[:5] + b"\x00" + MYSQL[6:],
    "an error of mysql without a number": TOO_MANY[:5] + b"\x00\x00" + TOO_MANY[7:],
    "nothing but zeros": bytes(64),
}
CASES = [(kind, received) for kind, (_, responses) in PROTOCOLS.items() for received in responses]


@pytest.mark.parametrize(("kind", "received"), CASES)
def test_a_response_matches_exactly_its_service_and_a_part_of_it_needs_more_bytes(kind: str, received: bytes) -> None:
    assert [name for name, (matcher, _) in PROTOCOLS.items() if matcher(received)] == [kind]
    matcher, _ = PROTOCOLS[kind]
    results = [matcher(received[:length]) for length in range(len(received) + 1)]
    assert results[0] is None
    assert False not in results, "a partial response was refused"
    assert results == sorted(results, key=bool), "more bytes changed a match"


@pytest.mark.parametrize("received", OTHERS.values(), ids=list(OTHERS))
@pytest.mark.parametrize("kind", PROTOCOLS)
def test_a_response_of_another_server_does_not_match(kind: str, received: bytes) -> None:
    matcher, _ = PROTOCOLS[kind]
    assert matcher(received) is False


def result(value: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "result": value}


DOCUMENTS = {
    is_etcd: {"etcdserver": "3.4.23", "etcdcluster": "3.4.0"},
    is_execution_client: {"jsonrpc": "2.0", "id": 1, "result": "Geth/v1.14.0-stable/linux-amd64/go1.22"},
    is_beacon_node: {"data": {"version": "Lighthouse/v5.1.0"}},
    is_ipfs: {"Version": "0.28.0", "Commit": "", "Repo": "15"},
    is_node: {"node_name": "validator-7", "spec_version": "v0.0.1", "node_version": "v1.4.2"},
    is_op_stack: result({"blockHash": "0x1", "transactionIndex": "0x0", "type": "0x7e"}),
    is_op_node: result({"genesis": {}, "block_time": 2, "l1_chain_id": 1, "l2_chain_id": 10}),
    is_cometbft: result({"node_info": {"network": "cosmoshub-4"}, "sync_info": {"catching_up": False}}),
    is_solana: result({"feature-set": 3640012085, "solana-core": "2.3.6"}),
    is_substrate: result({"peers": 0, "isSyncing": False, "shouldHavePeers": True}),
    is_web3signer: {"status": "DOWN", "checks": [{"id": "default-check", "status": "UP"}], "outcome": "DOWN"},
}
ODD: list[object] = [
    *(None, [], {}, 5),
    {"etcdserver": 3},
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no such method"}},
    {"jsonrpc": "2.0", "id": 1, "result": ""},
    {"result": "Geth"},
    {"data": "Lighthouse"},
    {"data": {"version": None}},
    {"version": "0.28.0"},
    {"Version": 1},
    result({"type": "0x2"}),
    result(None),
    result({"l2_chain_id": "10", "block_time": 2}),
    result({"node_info": {}, "sync_info": {}}),
    result({"version": "2.3.6"}),
    result({"peers": 3, "isSyncing": False}),
    {"status": "UP", "checks": [], "outcome": "UP"},
    {"status": "UP", "checks": [{"id": "database", "status": "UP"}], "outcome": "UP"},
    {"node_name": "validator-7"},
    {"node_name": "validator-7", "spec_version": "0.0.1", "node_version": "v1.4.2"},
    {"node_name": 7, "spec_version": "v0.0.1", "node_version": "v1.4.2"},
]


@pytest.mark.parametrize("matcher", DOCUMENTS)
def test_a_document_matches_exactly_its_service(matcher: object) -> None:
    document = DOCUMENTS[matcher]  # type: ignore[index]
    assert [other for other in DOCUMENTS if other(document)] == [matcher]


@pytest.mark.parametrize("document", ODD, ids=repr)
def test_a_similar_document_does_not_match(document: object) -> None:
    assert not [matcher for matcher in DOCUMENTS if matcher(document)]


INFO = b'{"result": {"chain": "main", "blocks": 5, "initialblockdownload": false}, "error": null, "id": 1}'


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (401, {"www-authenticate": 'Basic realm="jsonrpc"'}, b"", True),
        (401, {"www-authenticate": 'Basic realm="router"'}, b"", False),
        (401, {}, b"", False),
        (200, {}, INFO, True),
        (503, {}, INFO, False),
        (200, {}, b'{"jsonrpc": "2.0", "id": 1, "error": {"code": -32601}}', False),
        (200, {}, b"<html></html>", False),
    ],
)
def test_bitcoin_is_recognized_by_its_realm_or_its_document(
    status: int, headers: dict[str, str], body: bytes, expected: bool
) -> None:
    assert is_bitcoin(HttpResponse(status, headers, body)) is expected


def test_mev_boost_is_recognized_by_its_header() -> None:
    for status in (200, 503):
        assert is_mev_boost(HttpResponse(status, {"x-mevboost-version": "1.9"}, b"{}"))
        assert is_mev_boost(HttpResponse(status, {"x-commitboost-version": "0.8.0"}, b""))
        assert not is_mev_boost(HttpResponse(status, {}, b"{}"))
