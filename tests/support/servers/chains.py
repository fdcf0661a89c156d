"""Clients of chains that follow a script: in sync, or wrong in one way.

The documents are those of the clients, without what no probe reads:

ethereum   the execution API specification: eth_chainId, eth_syncing, eth_getBlockByNumber, net_peerCount. On an OP
           Stack chain, the first transaction of a block has the type 0x7e (deposits.md of its specification)
cometbft   CometBFT's rpc/openapi/openapi.yaml, asked by JSON-RPC: status, net_info, commit. A commit has an entry for
           each validator; of one that did not vote, it has the flag 1 and no address (types/block.go)
solana     Agave's rpc crate: getHealth with the error -32005 of custom_error.rs; the account of the clock as
           account-decoder/src/parse_sysvar.rs shows it; getVoteAccounts
substrate  polkadot-sdk's sc-rpc-api: system_health, chain_getHeader; the key of Timestamp.Now in the state
bitcoin    Bitcoin Core's getblockchaininfo and getnetworkinfo, and its errors (src/rpc/protocol.h), with HTTP status
           404 for a method that it does not have, 500 for others; 401 with the realm "jsonrpc" without a login
           (src/httprpc.cpp)
opnode     op-service/eth/sync_status.go and op-node/rollup/types.go of the Optimism repository

Debian has no package of these clients.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from tests.support.backends import ReceivedRequest, http_response
from tests.support.servers.fake_http import COMMON, FakeHttpServer, Request, Response, now_s, serve
from tests.support.servers.http_request import http_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FIRST_BLOCK_S = 1_600_000_000  # of chains with one block a second
VALIDATOR = "5D6A51A8E9899C44079C6AF90618BA0369070E6E"
OTHER_VALIDATOR = "000001E443FD237E4B616E2FA69DF4EE3D49A94F"
VOTE_ACCOUNT = "i7NyKBMJCA9bLM2nsGyAGCKHECuR2L5eh4GqFciuwNT"
HASH = "0x" + "ab" * 32
DEFAULTS: dict[str, Any] = {
    **COMMON,
    "chain": None,  # another one than usual
    "age_s": 0,  # of the newest block
    "ahead_s": 0,  # the clock of the client
    "behind": 0,  # blocks that it does not know of, although the newest one is dated now
    "missing_blocks": 0,  # whose headers it has
    "is_syncing": False,
    "peers": 25,
    "errors": {},  # {method: [HTTP status, number, message, data]}
    "results": {},  # {method: result}
    "misses_every": 0,  # the validator does not sign each so many-th block
    "voting_power": "1000",
    "finalized_age_s": 0,
    "l1_age_s": 0,
    "votes": "current",
    "needs_login": False,
    "transaction_type": "0x2",  # of the first one of a block
}


class StubChain(FakeHttpServer):
    """`set(age_s=300)`: it goes on saying that it is in sync."""

    defaults: ClassVar[dict[str, Any]] = {"kind": "", **DEFAULTS}

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder)
        self.scheme = f"{kind}+http"
        self.set(kind=kind)

    def is_ready(self) -> bool:
        return http_request(self.port, "/", method="POST", body={"id": 1, "method": "any"})[0] in (200, 401, 404)


def respond_as(kind: str, **state: Any) -> Callable[[ReceivedRequest], bytes]:
    """The responses of such a client, for a server inside the test."""
    assert not state.keys() - DEFAULTS.keys(), state
    script = DEFAULTS | state

    def respond(request: ReceivedRequest) -> bytes:
        status, document = answer(kind, script, json.loads(request.body))
        return http_response(status, json.dumps(document), Content_Type="application/json")

    return respond


def handle_request(request: Request) -> Response:
    if request.state["needs_login"] and "authorization" not in request.headers:
        return Response(401, headers={"WWW-Authenticate": 'Basic realm="jsonrpc"'})
    return Response(*answer(request.state["kind"], request.state, json.loads(request.body)))


def answer(kind: str, state: Mapping[str, Any], call: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """The HTTP status and the document."""
    method, params = call["method"], call.get("params", [])
    if error := state["errors"].get(method):
        status, number, message, data = error
        return status, _envelope(call, error={"code": number, "message": message, "data": data})
    if method in state["missing"] or method not in METHODS[kind]:
        return 404 if kind == "bitcoin" else 200, _envelope(call, error={"code": -32601, "message": "Method not found"})
    if method in state["results"]:
        return 200, _envelope(call, result=state["results"][method])
    try:
        return 200, _envelope(call, result=METHODS[kind][method](state, params))
    except RpcFaultError as exc:
        number, message, data = exc.args
        return 200, _envelope(call, error={"code": number, "message": message, "data": data})


class RpcFaultError(Exception):
    """Number, message and data of an error."""


def _envelope(call: Mapping[str, Any], **content: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call.get("id"), **content}


def _head_s(state: Mapping[str, Any]) -> int:
    """By the clock of the client."""
    return int(now_s(state) + state["ahead_s"] - state["age_s"])


def _number(state: Mapping[str, Any]) -> int:
    number: int = _head_s(state) - FIRST_BLOCK_S - state["behind"]
    return number


def _block_time(state: Mapping[str, Any], age_s: int = 0) -> dict[str, Any]:
    return {"hash": HASH, "number": _number(state) - age_s, "parentHash": HASH, "timestamp": _head_s(state) - age_s}


# ---- CometBFT


def _status(state: Mapping[str, Any], _: Any) -> object:
    moment = datetime.fromtimestamp(_head_s(state), UTC).strftime("%Y-%m-%dT%H:%M:%S.818762194Z")
    return {
        "node_info": {"id": "5576458aef205977e18fd50b274e9b5d9014525a", "network": state["chain"] or "cosmoshub-4"},
        "sync_info": {
            "latest_block_hash": "790BA84C3545FCCC49A5C629CEE6EA58A6E875C3862175BDC11EE7AF54703501",
            "latest_block_height": str(_number(state)),
            "latest_block_time": moment,
            "earliest_block_height": "1",
            "catching_up": state["is_syncing"],
        },
        "validator_info": {"address": VALIDATOR, "voting_power": state["voting_power"]},
    }


def _commit(state: Mapping[str, Any], params: Any) -> object:
    height = int(params["height"])
    is_missed = state["misses_every"] and height % state["misses_every"] == 0
    absent = {"block_id_flag": 1, "validator_address": "", "timestamp": "0001-01-01T00:00:00Z", "signature": None}
    votes = [
        {"block_id_flag": 2, "validator_address": OTHER_VALIDATOR, "signature": "14ja"},
        absent if is_missed else {"block_id_flag": 2, "validator_address": VALIDATOR, "signature": "Fz0G"},
    ]
    commit = {"height": str(height), "round": 0, "block_id": {"hash": "790B"}, "signatures": votes}
    return {"signed_header": {"header": {"height": str(height)}, "commit": commit}, "canonical": True}


# ---- the others


def _health(state: Mapping[str, Any], _: Any) -> object:
    return {"peers": state["peers"], "isSyncing": state["is_syncing"], "shouldHavePeers": True}


def _storage(state: Mapping[str, Any], params: Any) -> object:
    """The time of the best block, or of the finalized one."""
    age_s = state["finalized_age_s"] if len(params) > 1 else 0
    return "0x" + ((_head_s(state) - age_s) * 1000).to_bytes(8, "little").hex()


def _node_health(state: Mapping[str, Any], _: Any) -> object:
    if state["is_syncing"]:
        raise RpcFaultError(-32005, "Node is behind by 420 slots", {"numSlotsBehind": 420})
    return "ok"


def _clock(state: Mapping[str, Any], _: Any) -> object:
    info = {"slot": _number(state), "epoch": 841, "unixTimestamp": _head_s(state), "leaderScheduleEpoch": 842}
    data = {"parsed": {"info": info, "type": "clock"}, "program": "sysvar", "space": 40}
    return {"context": {"slot": _number(state)}, "value": {"data": data, "lamports": 1169280}}


def _vote_accounts(state: Mapping[str, Any], params: Any) -> object:
    account = {"votePubkey": params[0]["votePubkey"], "activatedStake": 42, "lastVote": _number(state)}
    return {"current": [], "delinquent": []} | ({state["votes"]: [account]} if state["votes"] else {})


def _chain_info(state: Mapping[str, Any], _: Any) -> object:
    return {
        "chain": state["chain"] or "main",
        "blocks": _number(state),
        "headers": _number(state) + state["missing_blocks"],
        "bestblockhash": HASH[2:],
        "time": _head_s(state),
        "mediantime": _head_s(state) - 3600,
        "initialblockdownload": state["is_syncing"],
    }


def _sync_status(state: Mapping[str, Any], _: Any) -> object:
    if state["is_syncing"]:
        empty = {"hash": "0x" + "00" * 32, "number": 0, "parentHash": "0x" + "00" * 32, "timestamp": 0}
        return dict.fromkeys(("current_l1", "head_l1", "unsafe_l2", "safe_l2", "finalized_l2"), empty)
    l1 = _block_time(state, state["l1_age_s"])
    return {
        "current_l1": l1,
        "current_l1_finalized": l1,
        "head_l1": l1,
        "unsafe_l2": _block_time(state) | {"l1origin": {"hash": HASH, "number": 24_484_422}, "sequenceNumber": 2},
        "safe_l2": _block_time(state, 120),
        "finalized_l2": _block_time(state, 900 + state["finalized_age_s"]),
    }


METHODS: dict[str, dict[str, Callable[[Mapping[str, Any], Any], object]]] = {
    "ethereum": {
        "eth_chainId": lambda state, _: hex(state["chain"] or 1),
        "eth_syncing": lambda state, _: (
            {"currentBlock": "0x64", "highestBlock": "0xfa"} if state["is_syncing"] else False
        ),
        "eth_getBlockByNumber": lambda state, _: {"number": hex(_number(state)), "timestamp": hex(_head_s(state))},
        "eth_blockNumber": lambda state, _: hex(_number(state)),
        "net_peerCount": lambda state, _: hex(state["peers"]),
        "web3_clientVersion": lambda *_: "Geth/v1.16.3-stable/linux-amd64/go1.24.6",
        "eth_getTransactionByBlockNumberAndIndex": lambda state, _: {"hash": HASH, "type": state["transaction_type"]},
    },
    "cometbft": {
        "status": _status,
        "net_info": lambda state, _: {"listening": True, "n_peers": str(state["peers"]), "peers": []},
        "commit": _commit,
    },
    "solana": {
        "getHealth": _node_health,
        "getAccountInfo": _clock,
        "getGenesisHash": lambda state, _: state["chain"] or "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d",
        "getSlot": lambda state, _: _number(state),
        "getVoteAccounts": _vote_accounts,
        "getVersion": lambda *_: {"solana-core": "2.3.6", "feature-set": 3640012085},
    },
    "substrate": {
        "system_chain": lambda state, _: state["chain"] or "Polkadot",
        "system_health": _health,
        "state_getStorage": _storage,
        "chain_getFinalizedHead": lambda state, _: HASH,
        "chain_getHeader": lambda state, _: {"number": hex(_number(state)), "parentHash": HASH},
    },
    "bitcoin": {
        "getblockchaininfo": _chain_info,
        "getnetworkinfo": lambda state, _: {"version": 290000, "networkactive": True, "connections": state["peers"]},
        "getblockheader": lambda state, _: {"hash": HASH[2:], "height": _number(state), "time": _head_s(state)},
    },
    "opnode": {
        "optimism_rollupConfig": lambda state, _: {
            "block_time": 2,
            "seq_window_size": 3600,
            "l1_chain_id": 1,
            "l2_chain_id": state["chain"] or 10,
        },
        "optimism_syncStatus": _sync_status,
    },
}

if __name__ == "__main__":
    serve(handle_request)
