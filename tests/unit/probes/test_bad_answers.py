"""Answers of chain clients in which one field is wrong: every check ends with a verdict, and none is fooled."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Verdict
from svcnode.core.text import MAX_REASON_CHARS
from svcnode.net.connect import TcpEndpoint
from svcnode.net.http1 import Http1Client, HttpSession, PreparedRequest
from svcnode.net.http_response import HttpResponse
from svcnode.probes import ethereum_ws, make_probe
from svcnode.probes.run import run_check
from tests.support.servers import beacon, signers
from tests.support.servers.chains import DEFAULTS, METHODS, VOTE_ACCOUNT, answer
from tests.support.servers.fake_http import COMMON, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Path = tuple[str | int, ...]
    Change = Callable[[str, Any], Any]  # of the answer to a request

GONE = object()
INFINITE, NOT_A_NUMBER = "1e400", "NaN"  # JSON text, written in place of a marker
CLIENT, REFERENCE = 1, 2  # ports
ADDRESS = "0x" + "aB" * 20
ACCOUNT = {"account": ADDRESS, "min_balance": "1 wei", "warn_balance": "2 wei"}
CALL = {"to": ADDRESS, "data": "0x00", "expect": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "ethereum+http": {**ACCOUNT, "call": CALL},
    "ethereum+ws": {**ACCOUNT, "call": CALL},
    "cometbft+http": {"validator": True},
    "solana+http": {"vote_account": VOTE_ACCOUNT},
    "substrate+http": {},
    "bitcoin+http": {},
    "opnode+http": {},
    "beacon+http": {"validators": [7]},
    "web3signer+http": {},
    "mevboost+http": {},
}
CHAINS = [scheme for scheme in OPTIONS if scheme.partition("+")[0] in METHODS]
SIGNERS = {"web3signer": signers.Web3SignerServer, "mevboost": signers.MevBoostServer}
DUTIES = {"eth_getBalance": "0x5", "eth_call": f"0x{1:064x}", "eth_subscribe": "0x1"}


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


BAD: dict[str, Any] = {
    "missing": GONE,
    "null": None,
    "true": True,
    "false": False,
    "-1": -1,
    "0": 0,
    "infinite": {"raw": INFINITE},
    "not a number": {"raw": NOT_A_NUMBER},
    "huge": 10**400,
    "0x": "0x",
    "huge in hex": "0x" + "f" * 5000,
    "empty": "",
    "long": "x" * 100_000,
    "controls": "\x1b[31m\r\n\u202e\ud800",
    "[]": [],
    "{}": {},
    "nested": nested(500),
}

# The fields that the kinds document as noticed, and which of the bad values are good ones there.
BLOCK_TIMES = ("unsafe_l2", "head_l1", "current_l1", "safe_l2", "finalized_l2")
ETHEREUM: dict[str, dict[str, set[str]]] = {
    "eth_chainId": {"/result": set()},
    "eth_syncing": {"/result": {"false"}},
    "eth_getBlockByNumber": {"/result": set(), "/result/timestamp": set()},
    "net_peerCount": {"/result": set()},
    "eth_call": {"/result": set()},
    "eth_getBalance": {"/result": set()},
}
NOTICED: dict[str, dict[str, dict[str, set[str]]]] = {
    "ethereum+http": ETHEREUM,
    "ethereum+ws": {**ETHEREUM, "head": {"/params": set(), "/params/result": set(), "/params/result/timestamp": set()}},
    "cometbft+http": {
        "status": {
            "/result/sync_info": set(),
            "/result/sync_info/latest_block_height": set(),
            "/result/sync_info/latest_block_time": set(),
            "/result/sync_info/earliest_block_height": {"0"},
            "/result/sync_info/catching_up": {"false"},
            "/result/validator_info/address": set(),
            "/result/validator_info/voting_power": set(),
        },
        "net_info": {"/result/n_peers": set()},
        "commit": {
            "/result/signed_header/commit/signatures": set(),
            "/result/signed_header/commit/signatures/1": set(),
            "/result/signed_header/commit/signatures/1/block_id_flag": set(),
            "/result/signed_header/commit/signatures/1/validator_address": set(),
        },
    },
    "solana+http": {
        "getHealth": {"/result": set()},
        "getAccountInfo": {"/result": set(), "/result/value/data/parsed/info/unixTimestamp": set()},
        "getVoteAccounts": {"/result": set(), "/result/current": set(), "/result/current/0/votePubkey": set()},
    },
    "substrate+http": {
        "system_health": {
            "/result/peers": set(),
            "/result/isSyncing": {"false"},
            "/result/shouldHavePeers": {"true", "false"},
        },
        "state_getStorage": {"/result": set()},
    },
    "bitcoin+http": {
        "getblockchaininfo": {
            "/result/blocks": set(),
            "/result/headers": {"0"},
            "/result/time": {"missing"},  # then it is read from the header of the block
            "/result/initialblockdownload": {"false"},
        },
        "getnetworkinfo": {"/result/connections": set()},
    },
    "opnode+http": {
        "optimism_rollupConfig": {"/result": set(), "/result/block_time": {"0"}, "/result/l2_chain_id": {"0"}},
        "optimism_syncStatus": {
            f"/result/{name}{field}": set() for name in BLOCK_TIMES for field in ("", "/timestamp")
        },
    },
    "beacon+http": {
        "node/syncing": {
            "/data": set(),
            "/data/head_slot": set(),
            "/data/sync_distance": {"0"},
            "/data/is_syncing": {"false"},
            "/data/is_optimistic": {"false", "missing"},  # of older clients
            "/data/el_offline": {"false", "missing"},
        },
        "node/peer_count": {"/data/connected": set()},
        "beacon/genesis": {"/data/genesis_time": set()},
        "config/spec": {"/data/SECONDS_PER_SLOT": set(), "/data/SLOTS_PER_EPOCH": set()},
        "beacon/states/head/validators": {
            "/data": set(),
            "/data/0": set(),
            "/data/0/index": set(),
            "/data/0/status": set(),
            "/data/0/validator/slashed": {"false"},
            "/execution_optimistic": {"false", "missing"},
        },
        "validator/liveness": {"/data": set(), "/data/0/is_live": {"true"}},
    },
    "web3signer+http": {
        "healthcheck": {
            "/status": {"missing"},  # newer signers have the outcome too
            "/checks": {"missing", "[]"},
            "/checks/1/status": set(),
        },
        "publicKeys": {"": set(), "/0": {"huge in hex"}},
    },
    "mevboost+http": {"builder/status": {"": {"missing", "{}"}}},
}
TIMES = {
    "ethereum+http": {"eth_getBlockByNumber": ["/result/timestamp"]},
    "solana+http": {"getAccountInfo": ["/result/value/data/parsed/info/unixTimestamp"]},
    "bitcoin+http": {"getblockchaininfo": ["/result/time"]},
    "opnode+http": {"optimism_syncStatus": [f"/result/{name}/timestamp" for name in BLOCK_TIMES]},
}


WHOLE: dict[str, Callable[[Any], Any]] = {
    "html": lambda _: b"<html><body>Login</body></html>",
    "empty": lambda _: b"",
    "truncated": lambda document: json.dumps(document).encode()[:-2] or b"{",
    "not UTF-8": lambda _: b'{"result": "\xff"}',
    "a field twice": lambda _: b'{"result": 1, "id": 1, "id": 1, "data": [], "data": []}',
    "an error": lambda _: {"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "no"}},
    "an error with a text as its code": lambda _: {"jsonrpc": "2.0", "id": 1, "error": {"code": "E", "message": "no"}},
    "an error of REST": lambda _: {"code": 500, "message": "no" * 100_000},
    "an error of REST with a text as its code": lambda _: {"code": "500", "message": "no"},
    "an error of REST with a huge code": lambda _: {"code": 10**400, "message": "no"},
    "an error of REST with a flag as its code": lambda _: {"code": True, "message": "no"},
    "checks without end": lambda _: {"status": "UP", "checks": [1] * 100_000},
}


# ---- a client without a connection


class Client:
    """Answers every request of a probe as the scripted servers do, with a change."""

    def __init__(self, scheme: str) -> None:
        self.kind = scheme.partition("+")[0]
        self.port = CLIENT  # whose answers are changed
        self.change: Change = lambda _, document: document
        self.answers: dict[str, Any] = {}  # as they were before the change

    def send(self, request: PreparedRequest) -> HttpResponse:
        head, _, body = request.payload.partition(b"\r\n\r\n")
        assert isinstance(request.endpoint, TcpEndpoint)
        port = request.endpoint.port
        if self.kind in METHODS:
            return self.respond(port, *self.call(json.loads(body)))
        path = head.split()[1].decode()
        module, server = (beacon, beacon.BeaconServer) if self.kind == "beacon" else (signers, SIGNERS[self.kind])
        response = module.handle_request(Request("GET", path, {}, {}, {**COMMON, **server.defaults}, body))
        return self.respond(port, _name_of(path), response.code, response.body)

    def call(self, call: dict[str, Any]) -> tuple[str, int, Any]:
        method = call["method"]
        if method in DUTIES:
            return method, 200, {"jsonrpc": "2.0", "id": call["id"], "result": DUTIES[method]}
        return method, *answer(self.kind, DEFAULTS, call)

    def respond(self, port: int, name: str, status: int, document: Any) -> HttpResponse:
        if port == self.port:
            self.answers.setdefault(name, document)
            document = self.change(name, document)
        return HttpResponse(status, {}, _encode(document))


def _name_of(path: str) -> str:
    name = path.removeprefix("/eth/v1/").removeprefix("/api/v1/eth2/").strip("/")
    return "validator/liveness" if name.startswith("validator/liveness") else name


def _encode(document: Any) -> bytes:
    if isinstance(document, bytes):
        return document
    text = json.dumps(document)
    for raw in (INFINITE, NOT_A_NUMBER):
        text = text.replace(json.dumps({"raw": raw}), raw)
    return text.encode()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Client]:
    """Probes reach this client, whatever their URL."""
    clients: list[Client] = []

    async def send(_: object, request: PreparedRequest) -> HttpResponse:
        return clients[-1].send(request)

    def send_text(socket: ethereum_ws.RpcSocket, text: bytes) -> None:
        client, loop = clients[-1], asyncio.get_running_loop()
        name, status, document = client.call(json.loads(text))
        loop.call_soon(socket.message_received, client.respond(CLIENT, name, status, document).body)
        if name == "eth_subscribe":
            head = {"method": "eth_subscription", "params": {"result": {"timestamp": hex(int(time.time()))}}}
            loop.call_soon(socket.message_received, client.respond(CLIENT, "head", 200, head).body)

    async def open_websocket(_: object, make: Callable[[], ethereum_ws.RpcSocket]) -> ethereum_ws.RpcSocket:
        return make()

    for client in (Http1Client, HttpSession):
        monkeypatch.setattr(client, "send", send)
    monkeypatch.setattr(ethereum_ws.RpcSocket, "send_text", send_text)
    monkeypatch.setattr(ethereum_ws, "open_websocket", open_websocket)

    def connect_to(scheme: str) -> Client:
        clients.append(Client(scheme))
        return clients[-1]

    return connect_to


async def check(scheme: str, timeout_s: float = 60.0, **options: Any) -> Verdict:
    """A verdict that can be shown: not one about the probe itself."""
    verdict, error = await run_check(make_probe({"url": f"{scheme}://127.0.0.1:{CLIENT}", **options}), timeout_s)
    assert error is None
    assert len(verdict.reason) <= MAX_REASON_CHARS
    assert verdict.reason.isprintable()
    return verdict


# ---- changes


def changed(document: Any, path: Path, value: object) -> Any:
    if not path:
        return b"" if value is GONE else value
    document = inner = copy.deepcopy(document)
    for part in path[:-1]:
        inner = inner[part]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return document


def with_value(name: str, path: Path, value: object) -> Change:
    return lambda asked, document: changed(document, path, value) if asked == name else document


def with_form(name: str, change: Callable[[Any], Any]) -> Change:
    return lambda asked, document: change(document) if asked == name else document


def deadline_s(name: str) -> float:
    """A check waits for a head until then."""
    return 0.05 if name == "head" else 60.0


def path_of(pointer: str) -> Path:
    return tuple(int(part) if part.isdigit() else part for part in pointer.split("/")[1:])


def every_path(document: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, inner in items:
        yield from every_path(inner, (*path, key))


# ---- tests


@pytest.mark.parametrize("scheme", OPTIONS)
def test_a_client_with_a_bad_value_in_a_field_that_counts_is_not_ready(
    connect: Callable[[str], Client], scheme: str
) -> None:
    async def main() -> None:
        client = connect(scheme)
        assert (await check(scheme, **OPTIONS[scheme])).outcome is Outcome.READY
        for name, fields in NOTICED[scheme].items():
            for pointer, good in fields.items():
                for label, value in BAD.items():
                    client.change = with_value(name, path_of(pointer), value)
                    verdict = await check(scheme, timeout_s=deadline_s(name), **OPTIONS[scheme])
                    assert (verdict.outcome is Outcome.READY) == (label in good), (name, pointer, label, verdict)

    asyncio.run(main())


@pytest.mark.parametrize("scheme", OPTIONS)
def test_an_answer_of_another_form_is_not_ready(connect: Callable[[str], Client], scheme: str) -> None:
    good = {("mevboost+http", "empty"), ("mevboost+http", "checks without end")}  # any document without an error

    async def main() -> None:
        client = connect(scheme)
        for name in NOTICED[scheme]:
            for label, change in WHOLE.items():
                client.change = with_form(name, change)
                verdict = await check(scheme, timeout_s=deadline_s(name), **OPTIONS[scheme])
                assert (verdict.outcome is Outcome.READY) == ((scheme, label) in good), (name, label, verdict)

    asyncio.run(main())


@pytest.mark.parametrize("scheme", TIMES)
def test_an_old_time_in_another_unit_is_still_old(connect: Callable[[str], Client], scheme: str) -> None:
    async def main() -> None:
        client = connect(scheme)
        for name, pointers in TIMES[scheme].items():
            for pointer in pointers:
                for unit in (10**3, 10**6, 10**9):
                    time_of_block = int(time.time() - 86_400 * 30) * unit
                    value = hex(time_of_block) if scheme.startswith("ethereum") else time_of_block
                    client.change = with_value(name, path_of(pointer), value)
                    assert (await check(scheme)).code is ReasonCode.LAGGING

    asyncio.run(main())


REFERENCES = [f"http://127.0.0.1:{port}" for port in (REFERENCE, REFERENCE + 1, REFERENCE + 2)]


@pytest.mark.parametrize(
    "scheme", ["ethereum+http", *(pytest.param(one, marks=pytest.mark.wide) for one in CHAINS[1:])]
)
def test_one_of_three_references_that_answers_anything_does_not_count_against_the_client(
    connect: Callable[[str], Client], scheme: str
) -> None:
    async def main() -> None:
        client = connect(scheme)
        client.port = REFERENCE
        assert (await check(scheme, reference=REFERENCES)) == Verdict.ready()
        for name, document in [*client.answers.items()]:
            for path in every_path(document):
                for label, value in {**BAD, "a large number": 10**19, "a large text": hex(2**63)}.items():
                    client.change = with_value(name, path, value)
                    verdict = await check(scheme, reference=REFERENCES)
                    assert verdict.outcome is Outcome.READY, (name, path, label, verdict)

    asyncio.run(main())


@pytest.mark.wide
@pytest.mark.parametrize("scheme", OPTIONS)
def test_a_bad_value_anywhere_gives_a_verdict(connect: Callable[[str], Client], scheme: str) -> None:
    options = OPTIONS[scheme] | ({"reference": REFERENCES} if scheme in CHAINS else {})

    async def main() -> None:
        client = connect(scheme)
        assert (await check(scheme, **options)) == Verdict.ready()
        for name, document in [*client.answers.items()]:
            for path in every_path(document):
                for value in BAD.values():
                    client.change = with_value(name, path, value)
                    await check(scheme, timeout_s=deadline_s(name), **options)

    asyncio.run(main())
