"""The table of remedies."""

from __future__ import annotations

import string

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.probes import KINDS
from svcnode.terminal.explain.hints import find_remedy
from svcnode.terminal.explain.remedies import REMEDIES

PLACEHOLDERS = {"address", "host", "timeout", "id"}
OTHER_KINDS = {"function", "reported", "svc"}


def test_every_code_has_a_remedy() -> None:
    assert REMEDIES.keys() == set(ReasonCode)


@pytest.mark.parametrize("code", ["x_ledger_full", "x_", "not a code", ""])
def test_a_code_of_another_package_has_the_general_remedy(code: str) -> None:
    assert find_remedy(code) is REMEDIES[ReasonCode.OTHER]


@pytest.mark.parametrize("code", ReasonCode)
def test_a_remedy_has_sentences_and_known_placeholders(code: ReasonCode) -> None:
    remedy = REMEDIES[code]
    assert remedy.meaning
    assert not remedy.meaning.endswith(".")
    for advice in (remedy.advice, *remedy.by_kind.values()):
        assert {name for _, name, _, _ in string.Formatter().parse(advice) if name} <= PLACEHOLDERS
        assert advice.endswith((".", "?"))


def test_advice_by_kind_is_for_kinds_that_exist() -> None:
    kinds = {kind for remedy in REMEDIES.values() for kind in remedy.by_kind}
    assert kinds <= KINDS.keys() | OTHER_KINDS
