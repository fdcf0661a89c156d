from __future__ import annotations

import pytest

from svcnode.core.errors import InvalidValueError
from svcnode.core.option_types import find_option_type, option_type, public_text, show_url, url_text


def test_a_function_without_a_description_accepts_all_and_shows_nothing() -> None:
    assert find_option_type(str) == ({}, None)


def test_a_described_function_stays_the_same_function() -> None:
    def convert(value: object) -> object:
        return value

    assert option_type({"type": "string"})(convert) is convert
    assert find_option_type(convert).schema == {"type": "string"}


@pytest.mark.parametrize("convert", [public_text, url_text])
def test_a_text_is_a_string(convert: object) -> None:
    assert convert("a") == "a"  # type: ignore[operator]
    with pytest.raises(InvalidValueError):
        convert(1)  # type: ignore[operator]


def test_a_url_is_shown_without_secrets() -> None:
    assert show_url("http://me:pass-word@h:1/x?key=1") == "http://me:***@h:1/x?***"
    assert show_url("not a URL") == "***"


def test_a_text_that_is_no_secret_is_shown_as_it_is() -> None:
    show = find_option_type(public_text).show
    assert show is not None
    assert show("block 812") == "block 812"
