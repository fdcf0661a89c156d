"""The options of ethereum+http:// about an account and a contract, against real clients and scripted ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.probes import make_probe
from tests.integration.probes.test_ethereum import error, node
from tests.support.servers.anvil import AnvilServer
from tests.support.servers.ethereum import ACCOUNT, CONTRACT, ETHER, EthereumServer, returning, reverting, word
from tests.support.servers.ganache import GanacheServer
from tests.support.verdicts import READY, failed, not_ready, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.core.model import Verdict
    from tests.support.check_runner import CheckRunner

TOO_LOW, LOW = failed(ReasonCode.LOW_BALANCE), not_ready(ReasonCode.LOW_BALANCE)
NOT_REGISTERED = failed(ReasonCode.UNEXPECTED_RESPONSE)
IS_REGISTERED = "0xc3c5a547"  # the selector of isRegistered(address)
OWNER = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"


@pytest.fixture(scope="module", params=[GanacheServer, pytest.param(AnvilServer, marks=pytest.mark.wide)])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[EthereumServer]:
    with request.param(tmp_path_factory.mktemp("client")) as started:
        yield started


def run(check: CheckRunner, server: EthereumServer, **options: Any) -> Verdict:
    server.mine()
    return check(server.url, min_peers=0, **options)


def call(expect: object) -> dict[str, Any]:
    return {"to": CONTRACT, "data": IS_REGISTERED, "expect": expect}


def test_an_account_with_too_little_money_is_failed_and_with_little_is_not_ready(
    check: CheckRunner, server: EthereumServer
) -> None:
    options = {"account": ACCOUNT, "min_balance": "0.1 ether", "warn_balance": "0.5 ether"}
    tenth = ETHER // 10
    for wei, expected in (
        (0, TOO_LOW),
        (tenth - 1, TOO_LOW),
        (tenth, LOW),
        (5 * tenth - 1, LOW),
        (5 * tenth, READY),
        (2**200 + 1, READY),
    ):
        server.set_balance(wei)
        assert run(check, server, **options) == expected
    server.set_balance(tenth)
    assert run(check, server, account=ACCOUNT, min_balance="100000000 gwei") == READY
    verdict = run(check, server, account=ACCOUNT, min_balance="100000000000000001 wei")
    assert verdict == TOO_LOW
    assert {ACCOUNT, "0.100000000000000001"} <= set(verdict.reason.replace(";", "").split())


def test_a_contract_must_return_what_is_expected(check: CheckRunner, server: EthereumServer) -> None:
    for data, good, bad in (
        (word(1), (True, "0x01", f"0x{word(1).hex()}"), (False, "0x02", "0x")),
        (word(0), (False, "0x00"), (True, "0x01")),
        (word(int(OWNER, 16)), (OWNER, OWNER.lower()), ("0x01", True)),
        (word(1) + word(2), (f"0x{(word(1) + word(2)).hex()}",), ("0x01", True, f"0x{word(1).hex()}")),
        (b"\x01", ("0x01",), ("0x0001",)),
    ):
        server.set_contract(returning(data))
        for expect in good:
            assert run(check, server, call=call(expect)) == READY
        for expect in bad:
            if expect != "0x":
                assert run(check, server, call=call(expect)) == NOT_REGISTERED


def test_a_call_that_is_reverted_is_failed_with_its_reason(check: CheckRunner, server: EthereumServer) -> None:
    server.set_contract(reverting("operator is not registered"))
    verdict = run(check, server, call=call(expect=True))
    assert verdict.outcome == NOT_REGISTERED.outcome
    assert "operator is not registered" in verdict.reason


def test_an_address_without_a_contract_is_not_found(check: CheckRunner, server: EthereumServer) -> None:
    server.set_contract(b"")
    for expect in (True, False, "0x00"):
        assert run(check, server, call=call(expect)) == failed(ReasonCode.NOT_FOUND)


def test_a_client_that_does_not_follow_its_chain_is_not_asked(check: CheckRunner, server: EthereumServer) -> None:
    """What it says of an account or a contract is as old as its newest block."""
    server.set_balance(0)
    server.set_contract(b"")
    options = {"account": ACCOUNT, "min_balance": "1 ether", "call": call(expect=True)}
    server.mine()
    assert check(server.url, min_peers=1, **options).code in {ReasonCode.TOO_FEW_PEERS, ReasonCode.NOT_SUPPORTED}
    assert check(server.url, min_peers=0, chain_id=1, **options) == failed(ReasonCode.WRONG_CHAIN)


# ---- scripted clients


OLD = {"eth_getBlockByNumber": {"timestamp": "0x1"}}
NO_RESULTS: list[Any] = [None, True, "", "1", "0x1", "0x" + "z" * 64, "0x" + "0" * 62 + " 1", {}]
BALANCE = {"account": ACCOUNT, "min_balance": "1 ether"}


@pytest.mark.parametrize(
    ("answers", "options", "expected"),
    [
        (OLD | {"eth_getBalance": "0x0"}, BALANCE, not_ready(ReasonCode.LAGGING)),
        ({"eth_syncing": True, "eth_getBalance": "0x0"}, BALANCE, not_ready(ReasonCode.SYNCING)),
        ({"eth_getBalance": None}, BALANCE, failed(ReasonCode.UNEXPECTED_RESPONSE)),
        ({"eth_getBalance": 10**19}, BALANCE, failed(ReasonCode.UNEXPECTED_RESPONSE)),
        ({"eth_getBalance": error(-32601, "no")}, BALANCE, unknown(ReasonCode.NOT_SUPPORTED)),
        ({"eth_getBalance": error(-32000, "missing trie node")}, BALANCE, failed(ReasonCode.SERVER_ERROR)),
        *(({"eth_call": result}, {"call": call(expect="0x01")}, NOT_REGISTERED) for result in NO_RESULTS),
        ({"eth_call": error(3, "execution reverted")}, {"call": call(expect="0x01")}, NOT_REGISTERED),
        # The worse of two problems counts.
        (
            {"eth_call": "0x00", "eth_getBalance": "0x1"},
            {"account": ACCOUNT, "warn_balance": "1 wei", "call": call(expect="0x01")},
            NOT_REGISTERED,
        ),
    ],
)
def test_a_scripted_client(
    check: CheckRunner, answers: dict[str, Any], options: dict[str, Any], expected: Verdict
) -> None:
    with node(**answers) as backend:
        assert check(f"ethereum+http://{backend.address}", **options) == expected


@pytest.mark.parametrize(
    ("text", "wei"),
    [
        ("1 wei", 1),
        ("1.5 gwei", 15 * 10**8),
        ("0.000000000000000001 ether", 1),
        ("0.1ether", 10**17),
        ("1.10 wei", None),
        ("1.0 wei", 1),
        ("0.0000000001 gwei", None),
        ("123456789012345678901234567890 ether", 123456789012345678901234567890 * ETHER),
        ("0 ether", None),
        ("-1 ether", None),
        ("1", None),
        ("1 eth", None),
        ("1e18 wei", None),
        ("٣ wei", None),
        (1, None),
    ],
)
def test_an_amount_is_exact(text: object, wei: int | None) -> None:
    config = {"url": "ethereum+http://127.0.0.1:1", "account": ACCOUNT, "min_balance": text}
    if wei is None:
        with pytest.raises(OptionError):
            make_probe(config)
    else:
        assert getattr(make_probe(config), "min_balance") == wei  # noqa: B009  a field of this kind
