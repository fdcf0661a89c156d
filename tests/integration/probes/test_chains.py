"""The kinds of chain clients against scripted clients: the same faults for all of them, then what only one kind has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.probes import make_probe
from tests.support.backends import Backend, HttpBackend, ReceivedRequest, closed_port, http_response, unresponsive
from tests.support.probe_assertions import KeepAliveBackend, assert_reused
from tests.support.servers.chains import METHODS, VALIDATOR, VOTE_ACCOUNT, respond_as
from tests.support.verdicts import READY, failed, not_ready, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.core.model import Verdict
    from tests.support.check_runner import CheckRunner

LAGGING = not_ready(ReasonCode.LAGGING)
TOO_FEW_PEERS = not_ready(ReasonCode.TOO_FEW_PEERS)
RATE_LIMITED = failed(ReasonCode.RATE_LIMITED)
DUTIES_MISSED = failed(ReasonCode.DUTIES_MISSED)
A_DAY_S = 86_400
# The methods of peers, of references and of `svcnode init`: without them, a check without options is the same.
OPTIONAL = {"net_peerCount", "net_info", "getnetworkinfo", "eth_blockNumber", "commit", "getGenesisHash", "getSlot"}
OPTIONAL |= {"getVoteAccounts", "chain_getHeader", "getblockheader", "web3_clientVersion", "getVersion"}
OPTIONAL |= {"eth_getTransactionByBlockNumberAndIndex"}
# How Besu, Nethermind (in two versions) and gateways say that they do not have a method.
NOT_SUPPORTED = [
    [200, -32604, "Method not enabled", None],
    [200, -32600, "net_peerCount found but the containing module is disabled", None],
    [200, -32600, "The method 'eth_chainId' is found but the namespace 'Eth' is disabled for http://[::]:8545", None],
    [200, -32000, "method not supported", None],
]
REFUSALS = [*NOT_SUPPORTED, [403, -32000, "forbidden", None], [200, -32600, "invalid request", None]]
NEEDED = [(kind, method) for kind, methods in METHODS.items() for method in methods if method not in OPTIONAL]


def run(check: CheckRunner, kind: str, options: dict[str, Any] | None = None, **state: Any) -> Verdict:
    """The verdict on a client with this script."""
    with KeepAliveBackend(respond_as(kind, **state)) as backend:
        return check(f"{kind}+http://{backend.address}", **(options or {}))


# ---- the same faults for all kinds

FAULTS: dict[str, tuple[dict[str, Any], object]] = {
    "in sync": ({}, READY),
    "claims synced, stands still": ({"age_s": A_DAY_S}, LAGGING),
    "clock wrong": ({"ahead_s": A_DAY_S}, not_ready(ReasonCode.CLOCK_SKEW)),
    "clocks that differ a little": ({"ahead_s": 30}, READY),
    "answers from a cache": ({"cached_at": time.time() - A_DAY_S}, LAGGING),
    "no peers": ({"peers": 0}, TOO_FEW_PEERS),
    "syncing": ({"is_syncing": True}, not_ready(ReasonCode.SYNCING)),
}
# A fault that a kind reports in its own way.
OWN_WAY: dict[tuple[str, str], tuple[dict[str, Any], object]] = {
    ("solana", "no peers"): ({"peers": 0}, READY),  # it has no such method
    ("opnode", "no peers"): ({"peers": 0}, READY),
    ("opnode", "syncing"): ({"is_syncing": True}, not_ready(ReasonCode.STARTING)),  # nothing is known yet
    ("solana", "syncing"): ({"is_syncing": True}, LAGGING),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", METHODS)
def test_a_client_is_ready_only_if_it_follows_its_chain(check: CheckRunner, kind: str, fault: str) -> None:
    state, expected = OWN_WAY.get((kind, fault), FAULTS[fault])
    assert run(check, kind, **state) == expected


@pytest.mark.parametrize(("kind", "method"), NEEDED)
def test_a_method_that_does_not_exist_says_nothing_about_the_client(check: CheckRunner, kind: str, method: str) -> None:
    verdict = run(check, kind, missing=[method])
    assert verdict == unknown(ReasonCode.NOT_SUPPORTED)
    assert method in verdict.reason
    for unsupported in NOT_SUPPORTED:
        assert run(check, kind, errors={method: unsupported}) == unknown(ReasonCode.NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("kind", "method"), [("ethereum", "net_peerCount"), ("cometbft", "net_info"), ("bitcoin", "getnetworkinfo")]
)
def test_the_method_of_peers_is_needed_only_with_the_option(check: CheckRunner, kind: str, method: str) -> None:
    assert run(check, kind, missing=[method]) == READY
    assert run(check, kind, {"min_peers": 1}, missing=[method]) == unknown(ReasonCode.NOT_SUPPORTED)
    for refused in REFUSALS:
        assert run(check, kind, errors={method: refused}) == READY
    for unsupported in NOT_SUPPORTED:
        assert run(check, kind, {"min_peers": 1}, errors={method: unsupported}) == unknown(ReasonCode.NOT_SUPPORTED)
    assert run(check, kind, {"min_peers": 26}) == TOO_FEW_PEERS
    assert run(check, kind, {"min_peers": 0}, peers=0) == READY


@pytest.mark.parametrize(("kind", "method"), NEEDED)
def test_a_client_that_limits_requests_says_so(check: CheckRunner, kind: str, method: str) -> None:
    for error in ([200, 429, "Too many requests", None], [429, -32000, "slow down", None], [200, -32097, "limit", {}]):
        assert run(check, kind, errors={method: error}) == RATE_LIMITED
    expected = LAGGING if kind == "solana" else RATE_LIMITED
    assert run(check, kind, errors={method: [200, -32005, "limit exceeded", None]}) == expected


@pytest.mark.parametrize(("kind", "method"), NEEDED)
def test_a_result_of_another_form_is_never_ready(check: CheckRunner, kind: str, method: str) -> None:
    texts = [] if method in {"system_chain", "chain_getFinalizedHead"} else ["", "x", "0x"]
    results: list[Any] = [None, True, 0, -1, [], {}, [None], *texts]
    for result in results:
        verdict = run(check, kind, results={method: result})
        assert verdict.outcome is not Outcome.READY, result
        assert verdict.code in {
            ReasonCode.UNEXPECTED_RESPONSE,
            ReasonCode.SYNCING,  # eth_syncing with anything but false
            ReasonCode.UNHEALTHY,  # getHealth with anything but ok
            ReasonCode.LAGGING,  # a time of 0
            ReasonCode.NOT_SUPPORTED,  # a state without a time
        }


@pytest.mark.parametrize("kind", METHODS)
def test_an_older_block_is_ready_if_the_option_allows_it(check: CheckRunner, kind: str) -> None:
    others = {option: "off" for option in ("max_finalized_age", "max_safe_age", "max_l1_age") if kind == "opnode"}
    others |= {"max_finalized_age": "off"} if kind == "substrate" else {}
    assert run(check, kind, {"max_block_age": "5m", **others}, age_s=200) == READY
    assert run(check, kind, {"max_block_age": "5m", **others}, age_s=400) == LAGGING
    assert run(check, kind, {"max_block_age": "off", **others}, age_s=A_DAY_S) == READY


@pytest.mark.parametrize(
    ("kind", "option", "other"),
    [
        ("ethereum", {"chain_id": 1}, 5),
        ("cometbft", {"chain_id": "cosmoshub-4"}, "theta-testnet-001"),
        ("substrate", {"chain": "Polkadot"}, "Kusama"),
        ("bitcoin", {"chain": "main"}, "testnet4"),
        ("opnode", {"chain_id": 10}, 8453),
    ],
)
def test_a_client_of_another_chain_is_failed(
    check: CheckRunner, kind: str, option: dict[str, Any], other: object
) -> None:
    assert run(check, kind, option) == READY
    assert run(check, kind, option, chain=other) == failed(ReasonCode.WRONG_CHAIN)


@pytest.mark.parametrize("kind", METHODS)
def test_the_login_is_sent_and_the_connection_can_be_reused(check: CheckRunner, kind: str) -> None:
    with KeepAliveBackend(respond_as(kind)) as backend:
        assert check(f"{kind}+http://me:swordfish@{backend.address}/") == READY
        assert {request.headers["authorization"] for request in backend.requests} == {"Basic bWU6c3dvcmRmaXNo"}
        assert len(backend.requests_per_connection) == 1
        assert_reused(check, f"{kind}+http://{backend.address}", backend.port)
    with HttpBackend(http_response(401)) as backend:
        verdict = check(f"{kind}+http://me:swordfish@{backend.address}/")
        assert verdict == failed(ReasonCode.AUTH_FAILED)
        assert "swordfish" not in verdict.reason


# ---- references


def compare(check: CheckRunner, kind: str, behind: int, *others: dict[str, Any], **options: Any) -> Verdict:
    """The verdict on a client that is so many blocks behind; a reference for each of the other scripts."""
    backends = [KeepAliveBackend(respond_as(kind, **state)) for state in others]
    own = KeepAliveBackend(respond_as(kind, behind=behind))
    for backend in (own, *backends):
        backend.__enter__()
    try:
        references = [f"http://{backend.address}" for backend in backends]
        return check(f"{kind}+http://{own.address}", reference=references, **options)
    finally:
        for backend in (own, *backends):
            backend.__exit__()


@pytest.mark.parametrize("kind", METHODS)
def test_a_client_that_is_behind_the_majority_of_its_references_is_not_ready(check: CheckRunner, kind: str) -> None:
    late = {"behind": 200}
    assert compare(check, kind, 0, {}, {}) == READY
    assert compare(check, kind, 200, {}, {}) == LAGGING
    assert compare(check, kind, 200, {}, {}, max_behind=300) == READY
    # One of three is not the majority, and neither is one of two.
    assert compare(check, kind, 200, {}, late, late) == READY
    assert compare(check, kind, 200, {}, late) == READY
    assert compare(check, kind, 200, {}, {}, late) == LAGGING


def test_references_that_do_not_answer_are_named_and_are_no_bad_news(check: CheckRunner) -> None:
    with KeepAliveBackend(respond_as("ethereum")) as client, closed_port() as port:
        url, silent = f"ethereum+http://{client.address}", f"http://127.0.0.1:{port}"
        verdict = check(url, reference=[silent])
        assert (verdict.outcome, verdict.code, str(port) in verdict.reason) == (Outcome.READY, ReasonCode.OK, True)
        with KeepAliveBackend(respond_as("ethereum", missing=["eth_blockNumber"])) as broken:
            verdict = check(url, reference=[f"http://{broken.address}", silent])
            assert (verdict.outcome, broken.address in verdict.reason) == (Outcome.READY, True)
        with KeepAliveBackend(respond_as("ethereum", ahead_s=500, chain=5)) as other_chain:
            verdict = check(url, reference=[f"http://{other_chain.address}"])
            assert (verdict.outcome, other_chain.address in verdict.reason) == (Outcome.READY, True)
        with KeepAliveBackend(respond_as("ethereum", ahead_s=500)) as ahead:
            verdict = check(url, reference=[silent, f"http://{ahead.address}", f"http://127.0.0.2:{port}"])
            assert verdict == LAGGING
            assert str(port) in verdict.reason


def test_references_that_hang_leave_time_for_the_client(check: CheckRunner) -> None:
    with KeepAliveBackend(respond_as("ethereum")) as client, Backend(unresponsive) as hanging:
        verdict = check.with_timeout(1.0, f"ethereum+http://{client.address}", reference=[f"http://{hanging.address}"])
        assert verdict.outcome is Outcome.READY
        assert hanging.address in verdict.reason


def test_a_reference_gets_nothing_of_the_login_of_the_client(check: CheckRunner) -> None:
    with KeepAliveBackend(respond_as("bitcoin")) as client, KeepAliveBackend(respond_as("bitcoin")) as other:
        url, headers = f"bitcoin+http://me:swordfish@{client.address}", {"X-Api-Key": "swordfish"}
        assert check(url, reference=[f"http://{other.address}"], headers=headers) == READY
        assert not any(request.headers.keys() & {"authorization", "x-api-key"} for request in other.requests)


@pytest.mark.parametrize(("chain", "expected"), [(1, 3), (8453, 15), (42161, 120), (999_999, 30)])
def test_the_distance_of_ethereum_clients_depends_on_the_time_of_a_block(chain: int, expected: int) -> None:
    probe: Any = make_probe("ethereum+http://127.0.0.1:8545")
    assert probe.default_max_behind(chain) == expected


# ---- cometbft


def test_a_validator_without_voting_power_is_failed(check: CheckRunner) -> None:
    for validator in (True, VALIDATOR):
        assert run(check, "cometbft", {"validator": validator}) == READY
        verdict = run(check, "cometbft", {"validator": validator}, voting_power="0")
        assert verdict == failed(ReasonCode.WRONG_ROLE)
    assert run(check, "cometbft", {"validator": False}, voting_power="0") == READY


def test_a_validator_that_misses_blocks_is_failed(check: CheckRunner) -> None:
    assert run(check, "cometbft", {"validator": True}, misses_every=10) == READY
    assert run(check, "cometbft", {"validator": True}, misses_every=2) == DUTIES_MISSED
    assert run(check, "cometbft", {"validator": True, "max_missed": "1/10"}, misses_every=5) == DUTIES_MISSED
    assert run(check, "cometbft", {"validator": True, "max_missed": "15/20"}, misses_every=2) == READY
    unreadable = {"commit": None}
    assert run(check, "cometbft", {"validator": True}, results=unreadable) == failed(ReasonCode.UNEXPECTED_RESPONSE)
    # One that is not in the set signs nothing.
    assert run(check, "cometbft", {"validator": "00" * 20}) == DUTIES_MISSED


def test_missed_blocks_are_counted_over_several_checks(check: CheckRunner) -> None:
    state: dict[str, Any] = {"cached_at": time.time()}

    def respond(request: ReceivedRequest) -> bytes:
        return respond_as("cometbft", **state)(request)

    with KeepAliveBackend(respond) as backend:

        def later(seconds: int, misses_every: int = 0) -> None:
            state.update(cached_at=state["cached_at"] + seconds, misses_every=misses_every)

        results = check.sequence(
            f"cometbft+http://{backend.address}",
            lambda: later(3, misses_every=1),
            lambda: later(3, misses_every=1),
            lambda: later(95),
            lambda: later(20),
            lambda: later(-1000),  # another node, which lags behind
            lambda: state.update(behind=10**6, cached_at=state["cached_at"] + 2000),  # and a chain that has begun again
            validator=True,
            max_block_age="off",
        )
        assert [verdict for verdict, _ in results] == [READY, READY, *[DUTIES_MISSED] * 4, READY]
        commits = sum(b'"commit"' in request.body for request in backend.requests)
        assert commits == 20 + 3 + 3 + 20 + 20 + 0 + 20


def test_missed_blocks_are_counted_behind_a_balancer_of_nodes_of_which_one_lags(check: CheckRunner) -> None:
    state: dict[str, Any] = {"cached_at": time.time(), "misses_every": 8}

    def respond(request: ReceivedRequest) -> bytes:
        return respond_as("cometbft", **state)(request)

    def later(seconds: int) -> Callable[[], None]:
        return lambda: state.update(cached_at=state["cached_at"] + seconds)

    with KeepAliveBackend(respond) as backend:
        url = f"cometbft+http://{backend.address}"
        steps = [later(-2 if number % 2 else 12) for number in range(16)]
        results = check.sequence(url, *steps, validator=True, max_block_age="off")
        assert results[-1][0] == DUTIES_MISSED


def test_a_node_with_many_peers_has_a_long_list_of_them(check: CheckRunner) -> None:
    assert run(check, "cometbft", results={"net_info": {"n_peers": "900", "peers": ["x" * 2500] * 900}}) == READY


# ---- solana


@pytest.mark.parametrize(
    ("votes", "expected"),
    [("current", READY), ("delinquent", DUTIES_MISSED), ("", failed(ReasonCode.NOT_FOUND))],
)
def test_a_vote_account_must_vote(check: CheckRunner, votes: str, expected: object) -> None:
    assert run(check, "solana", {"vote_account": VOTE_ACCOUNT}, votes=votes) == expected
    verdict = run(check, "solana", {"vote_account": VOTE_ACCOUNT}, results={"getVoteAccounts": {}})
    assert verdict == failed(ReasonCode.UNEXPECTED_RESPONSE)


def test_an_unhealthy_node_is_not_ready(check: CheckRunner) -> None:
    error = [200, -32005, "Node is unhealthy", {"numSlotsBehind": None}]
    assert run(check, "solana", errors={"getHealth": error}) == LAGGING


# ---- substrate


def test_a_finalized_block_that_stands_still_is_not_ready(check: CheckRunner) -> None:
    assert run(check, "substrate", finalized_age_s=200) == READY
    assert run(check, "substrate", finalized_age_s=400) == LAGGING
    assert run(check, "substrate", {"max_finalized_age": "10m"}, finalized_age_s=400) == READY


def test_a_chain_that_needs_no_peers_is_ready_without_them(check: CheckRunner) -> None:
    alone = {"system_health": {"peers": 0, "isSyncing": False, "shouldHavePeers": False}}
    assert run(check, "substrate", results=alone) == READY
    assert run(check, "substrate", {"min_peers": 1}, results=alone) == TOO_FEW_PEERS


# ---- bitcoin


@pytest.mark.parametrize(
    ("state", "options", "expected"),
    [
        ({"age_s": 7000}, {}, READY),
        ({"age_s": 7400}, {}, LAGGING),
        ({"age_s": 7400, "chain": "regtest"}, {}, READY),
        ({"ahead_s": 7000}, {}, READY),  # miners set the time
        ({"ahead_s": 7400}, {}, not_ready(ReasonCode.CLOCK_SKEW)),
        ({"missing_blocks": 3}, {}, READY),
        ({"missing_blocks": 4}, {}, not_ready(ReasonCode.SYNCING)),
        (
            {"errors": {"getblockchaininfo": [500, -28, "Loading block index…", None]}},
            {},
            not_ready(ReasonCode.STARTING),
        ),
        ({"errors": {"getblockchaininfo": [500, -7, "Out of memory", None]}}, {}, failed(ReasonCode.SERVER_ERROR)),
    ],
)
def test_a_bitcoin_node(check: CheckRunner, state: dict[str, Any], options: dict[str, Any], expected: object) -> None:
    assert run(check, "bitcoin", options, **state) == expected


def test_an_older_bitcoin_node_has_the_time_in_the_header_of_its_newest_block(check: CheckRunner) -> None:
    info = {"chain": "main", "blocks": 9, "headers": 9, "bestblockhash": "ab", "initialblockdownload": False}
    assert run(check, "bitcoin", results={"getblockchaininfo": info}) == READY
    assert run(check, "bitcoin", results={"getblockchaininfo": info}, age_s=A_DAY_S) == LAGGING


# ---- opnode


OPNODE_AGES = ("max_block_age", "max_safe_age", "max_finalized_age", "max_l1_age")


@pytest.mark.parametrize(
    ("state", "options", "expected"),
    [
        ({"l1_age_s": 400}, {}, LAGGING),
        ({"l1_age_s": 400}, {"max_l1_age": "10m"}, READY),
        ({"finalized_age_s": 3000}, {}, LAGGING),
        ({"finalized_age_s": 3000, "chain": 7777777}, {}, READY),  # its batches may take hours
        ({"finalized_age_s": 50_000, "chain": 7777777}, {}, LAGGING),
        ({"is_syncing": True}, dict.fromkeys(OPNODE_AGES, "off"), READY),
        ({}, {"max_safe_age": "1m"}, LAGGING),
        ({}, {"max_finalized_age": "1m"}, LAGGING),
    ],
)
def test_an_op_node(check: CheckRunner, state: dict[str, Any], options: dict[str, Any], expected: object) -> None:
    assert run(check, "opnode", options, **state) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [({}, not_ready(ReasonCode.STARTING)), ({"max_finalized_age": "off"}, READY)]
)
def test_an_op_node_that_has_finalized_nothing(check: CheckRunner, limit: dict[str, Any], expected: object) -> None:
    names = ("unsafe_l2", "head_l1", "current_l1", "safe_l2", "finalized_l2")
    heads = {name: {"timestamp": 0 if name == "finalized_l2" else int(time.time())} for name in names}
    assert run(check, "opnode", limit, results={"optimism_syncStatus": heads}) == expected


def test_an_op_node_cannot_make_its_own_limits_meaningless(check: CheckRunner) -> None:
    config = {"l2_chain_id": 7777777, "block_time": 10**19, "seq_window_size": 10**19}
    verdict = run(check, "opnode", age_s=1_000_000, chain=7777777, results={"optimism_rollupConfig": config})
    assert verdict == LAGGING
