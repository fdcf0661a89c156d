from __future__ import annotations

import json
import re

import pytest

from svcnode.core.redaction import register_secret
from svcnode.core.strict_json import compact_json, json_error_detail, parse_strict_json


def test_json_is_written_without_spaces_and_escapes_in_order() -> None:
    assert compact_json({"b": ["ü", 1, None], "a": {"x": 0.5}}) == '{"b":["ü",1,null],"a":{"x":0.5}}'


@pytest.mark.parametrize("value", ["ü", {"a": [{"a": 1}, {"a": None}]}, 10**3999])
@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_json_is_parsed_in_every_unicode_encoding(value: object, charset: str) -> None:
    assert parse_strict_json(json.dumps(value, ensure_ascii=False).encode(charset)) == value


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"status": "down", "status": "ok"}', "duplicate field status"),
        (rb'{"status": "down", "st\u0061tus": "ok"}', "duplicate field status"),
        (b'{"a\\u001b\\n": 1, "a\\u001b\\n": 2}', r"duplicate field a\x1b"),
        (b'{"lag": NaN}', "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"[" + b"9" * 4001 + b"]", "4001"),
        (b'"\xff"', "UTF-8"),
        (b"[" * 100_000, "nested"),
    ],
)
def test_json_that_parsers_read_differently_is_rejected(body: bytes, detail: str) -> None:
    with pytest.raises(ValueError, match=re.escape(detail)):
        parse_strict_json(body)


def test_texts_may_be_anything_where_that_is_asked_for() -> None:
    body = b'{"status": "down", "reason": "line 1\nline \xff\\ud800"}'
    assert parse_strict_json(body, any_text=True) == {"status": "down", "reason": "line 1\nline \ufffd\ud800"}
    register_secret("hunter23")
    with pytest.raises(ValueError, match=r"duplicate.*\*\*\*"):
        parse_strict_json(b'{"hunter23": 1, "hunter23": 1}', any_text=True)


@pytest.mark.parametrize("body", [b"", b"ok", b"{", b"{} {}", b'{"a": }', b"'a'"])
def test_other_text_is_rejected(body: bytes) -> None:
    with pytest.raises(ValueError, match="line 1 column"):
        parse_strict_json(body)


@pytest.mark.parametrize(
    ("body", "detail"), [(b' {"a"', "why"), (b"\n[", "why"), (b"<html>", ""), (b"NaN", ""), (b"", "")]
)
def test_the_detail_is_given_only_for_text_that_looks_like_json(body: bytes, detail: str) -> None:
    assert json_error_detail(body, ValueError("why")) == detail
