"""Advice by reason code and kind of probe."""

from __future__ import annotations

import string

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.remedies import CUSTOM_CODE_MEANING, REMEDIES, advice_text, advised_code, find_remedy, meaning_text
from svcnode.probes import KINDS

PLACEHOLDERS = {"address", "host", "timeout", "id"}
OTHER_KINDS = {"beacon", "cometbft", "function", "reported", "svc"}


def test_every_code_has_a_remedy_of_sentences_and_known_placeholders() -> None:
    assert REMEDIES.keys() == set(ReasonCode)
    for remedy in REMEDIES.values():
        assert remedy.meaning
        assert not remedy.meaning.endswith(".")
        for text in (remedy.advice, *remedy.by_kind.values()):
            assert {name for _, name, _, _ in string.Formatter().parse(text) if name} <= PLACEHOLDERS
            assert text.endswith((".", "?"))
        assert remedy.by_kind.keys() <= KINDS.keys() | OTHER_KINDS
    assert find_remedy("x_ledger_full") is find_remedy("") is REMEDIES[ReasonCode.OTHER]
    assert meaning_text("x_ledger_full") == CUSTOM_CODE_MEANING
    assert meaning_text("timeout") == REMEDIES[ReasonCode.TIMEOUT].meaning


@pytest.mark.parametrize(
    ("code", "is_probed", "advised"),
    [
        (ReasonCode.CONNECTION_REFUSED, True, ReasonCode.CONNECTION_REFUSED),
        (ReasonCode.SYNCING, True, ReasonCode.OTHER),
        (ReasonCode.CONNECTION_REFUSED, False, ReasonCode.REPORTED),
        (ReasonCode.TTL_EXPIRED, False, ReasonCode.TTL_EXPIRED),
    ],
)
def test_a_program_knows_more_about_its_own_codes_and_a_failure_is_no_progress(
    code: ReasonCode, is_probed: bool, advised: ReasonCode
) -> None:
    assert advised_code(code, is_probed=is_probed, is_failure=True) == advised
    assert advised_code(ReasonCode.SYNCING, is_probed=True, is_failure=False) == ReasonCode.SYNCING


@pytest.mark.parametrize(
    ("probe", "address"),
    [
        (None, "the address of the service"),
        ("redis://db", "db (default port of redis)"),
        ("redis://[::1]:1/0", "[::1]:1"),
        ("disk:/var", "disk:/var"),
        ("redis://[", "redis://["),
    ],
)
def test_the_address_is_that_of_the_probe(probe: str | None, address: str) -> None:
    text = advice_text(ReasonCode.CONNECTION_REFUSED, "db", "redis", probe, 3.0)
    assert text == REMEDIES[ReasonCode.CONNECTION_REFUSED].advice.format(address=address)
    host = "db" if probe == "redis://db" else "::1" if address == "[::1]:1" else address
    text = advice_text(ReasonCode.HOST_NOT_FOUND, "db", "redis", probe, None)
    assert text == REMEDIES[ReasonCode.HOST_NOT_FOUND].advice.format(host=host)


@pytest.mark.parametrize(("kind", "own"), [("file", "file"), ("mariadb", "mysql"), ("svc+https", "svc")])
def test_some_kinds_have_advice_of_their_own(kind: str, own: str) -> None:
    (code,) = [
        code
        for code in (ReasonCode.TIMEOUT, ReasonCode.CLIENT_NOT_ALLOWED, ReasonCode.NOT_FOUND)
        if own in REMEDIES[code].by_kind
    ]
    expected = REMEDIES[code].by_kind[own].format(timeout="0.5 s", id="db")
    assert advice_text(code, "db", kind, None, 0.5) == expected
