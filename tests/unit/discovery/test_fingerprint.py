"""Answers as real servers give them, whole and in parts, and answers that only look alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.discovery.fingerprint import (
    Matcher,
    is_amqp,
    is_beacon_node,
    is_etcd,
    is_execution_client,
    is_ipfs,
    is_memcached,
    is_mysql,
    is_nats,
    is_node,
    is_postgresql,
    is_redis,
)

MARIADB = b"[\x00\x00\x00\x0a5.5.5-10.11.6-MariaDB-0+deb12u1\x00" + bytes(40)
MYSQL = b"J\x00\x00\x00\x0a8.0.36\x00" + bytes(40)
TOO_MANY = b"\x17\x00\x00\x00\xff\x10\x04Too many connections"
HOST_BLOCKED = b"\x46\x00\x00\x00\xff\x69\x04Host '127.0.0.1' is blocked"
START = b"\x01\x00\x00\x00\x00\x02\x04\x00\x0a\x00\x0a\x00\x09" + bytes(20)
CLOSE = b"\x01\x00\x00\x00\x00\x02\x04\x00\x0a\x00\x32\x00\x09" + bytes(20)

SPOKEN: dict[str, tuple[Matcher, list[bytes]]] = {
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
    "memcached": (is_memcached, [b"VERSION 1.6.18\r\n"]),
    "amqp": (is_amqp, [START]),
    "nats": (is_nats, [b'INFO {"server_id":"N"} \r\n']),
}
OTHERS = {
    "ssh": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "smtp": b"220 mail.example.com ESMTP\r\n",
    "pop3": b"+OK ready\r\n",
    "a pop3 server that is not pleased": b"-ERR unknown command\r\n",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a tls alert": b"\x15\x03\x01\x00\x02\x02\x46",
    "another version of amqp": b"AMQP\x00\x01\x00\x00",
    "a broker that hangs up": CLOSE,
    "a later packet of mysql": MYSQL[:3] + b"\x01" + MYSQL[4:],
    "an older mysql": MYSQL[:4] + b"\x09" + MYSQL[5:],
    "mysql without a version": MYSQL[:5] + b"\x00" + MYSQL[6:],
    "an error of mysql without a number": TOO_MANY[:5] + b"\x00\x00" + TOO_MANY[7:],
    "nothing but zeros": bytes(64),
}
CASES = [(kind, said) for kind, (_, all_said) in SPOKEN.items() for said in all_said]


@pytest.mark.parametrize(("kind", "said"), CASES)
def test_a_service_is_known_by_what_it_says_and_is_no_other(kind: str, said: bytes) -> None:
    assert [name for name, (judge, _) in SPOKEN.items() if judge(said)] == [kind]


@pytest.mark.parametrize(("kind", "said"), CASES)
def test_an_answer_that_comes_in_parts_is_waited_for(kind: str, said: bytes) -> None:
    judge, _ = SPOKEN[kind]
    judged = [judge(said[:length]) for length in range(len(said) + 1)]
    assert judged[0] is None
    assert False not in judged, "it was given up before it had said everything"
    assert judged == sorted(judged, key=bool), "what was said afterwards took back what was known"


@pytest.mark.parametrize("said", OTHERS.values(), ids=list(OTHERS))
@pytest.mark.parametrize("kind", SPOKEN)
def test_what_another_server_says_is_no_sign_of_a_service(kind: str, said: bytes) -> None:
    judge, _ = SPOKEN[kind]
    assert judge(said) is False


@given(said=st.binary(max_size=64))
def test_no_bytes_are_too_strange_to_be_judged(said: bytes) -> None:
    for judge, _ in SPOKEN.values():
        assert judge(said) in (True, False, None)


DOCUMENTS = {
    is_etcd: {"etcdserver": "3.4.23", "etcdcluster": "3.4.0"},
    is_execution_client: {"jsonrpc": "2.0", "id": 1, "result": "Geth/v1.14.0-stable/linux-amd64/go1.22"},
    is_beacon_node: {"data": {"version": "Lighthouse/v5.1.0"}},
    is_ipfs: {"Version": "0.28.0", "Commit": "", "Repo": "15"},
    is_node: {"node_name": "validator-7", "spec_version": "v0.0.1", "node_version": "v1.4.2"},
}
ODD: list[object] = [
    None,
    [],
    {},
    "v0.0.1",
    5,
    True,
    {"etcdserver": 3},
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no such method"}},
    {"jsonrpc": "2.0", "id": 1, "result": ""},
    {"jsonrpc": "2.0", "id": 1, "result": True},
    {"result": "Geth"},
    {"data": "Lighthouse"},
    {"data": {"version": None}},
    {"version": "0.28.0"},
    {"Version": 1},
    {"node_name": "validator-7"},
    {"node_name": "validator-7", "spec_version": "0.0.1", "node_version": "v1.4.2"},
    {"node_name": 7, "spec_version": "v0.0.1", "node_version": "v1.4.2"},
]


@pytest.mark.parametrize("judge", DOCUMENTS)
def test_a_service_is_known_by_its_document_and_is_no_other(judge: object) -> None:
    document = DOCUMENTS[judge]  # type: ignore[index]
    assert [other for other in DOCUMENTS if other(document)] == [judge]


@pytest.mark.parametrize("document", ODD, ids=repr)
def test_a_document_that_only_looks_alike_is_no_sign_of_a_service(document: object) -> None:
    assert not [judge for judge in DOCUMENTS if judge(document)]
