from __future__ import annotations

import json

import pytest

from svcnode.core.encoding import compact_json


def test_json_has_no_blanks_and_keeps_letters_and_order() -> None:
    assert compact_json({"b": ["ü", 1, None], "a": {"x": 0.5}}) == '{"b":["ü",1,null],"a":{"x":0.5}}'


@pytest.mark.parametrize("value", ['say "no"\r\n', "\u2028", "", [], {}, True, -0.125, 10**20])
def test_whatever_is_written_is_read_again(value: object) -> None:
    assert json.loads(compact_json(value)) == value
