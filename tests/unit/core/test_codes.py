"""Reason codes: names, and codes of other packages."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode, code_for_grpc_status, code_for_http_status, known_code


def test_every_code_is_known_as_its_name_in_snake_case_and_unlike_a_custom_one() -> None:
    assert len({code.value for code in ReasonCode}) == len(ReasonCode.__members__)
    for name, code in ReasonCode.__members__.items():
        assert code.value == name.lower()
        assert re.fullmatch(r"(?!x_)[a-z]+(_[a-z]+)*", code.value)
        assert known_code(code) is known_code(code.value) is code


@pytest.mark.parametrize(
    "code",
    ["", "x", "x_", "X_a", "x_A", "x_a b", "x_a\n", "x_é", f"x_{'a' * 63}", "timeout ", "TIMEOUT", None, 7, b"ok"],
)
def test_a_custom_code_is_known_and_any_other_value_becomes_other(code: object) -> None:
    for custom in ("x_ledger", "x_1", "x_a_b", f"x_{'a' * 62}"):
        assert known_code(custom) == custom
    assert known_code(code) is ReasonCode.OTHER


@given(st.text())
def test_every_text_becomes_a_code_that_is_safe_as_a_label(text: str) -> None:
    code = known_code(text)
    assert re.fullmatch(r"[a-z0-9_]{1,64}", code)
    assert known_code(code) == code


@pytest.mark.parametrize(
    ("code", "statuses"),
    [
        (ReasonCode.REDIRECTED, [300, 399]),
        (ReasonCode.AUTH_REQUIRED, [401]),
        (ReasonCode.NOT_FOUND, [404]),
        (ReasonCode.SERVER_ERROR, [500, 599]),
        (ReasonCode.UNEXPECTED_RESPONSE, [200, 299, 418, 600]),
    ],
)
def test_an_http_status_has_a_code(code: ReasonCode, statuses: list[int]) -> None:
    assert {code_for_http_status(status) for status in statuses} == {code}


@pytest.mark.parametrize(("status", "code"), [(5, ReasonCode.NOT_FOUND), (13, ReasonCode.SERVER_ERROR)])
def test_a_grpc_status_has_a_code(status: int, code: ReasonCode) -> None:
    assert code_for_grpc_status(status) is code
