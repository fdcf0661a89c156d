from __future__ import annotations

import json

import pytest

from svcnode.core.redaction import register_secret
from svcnode.core.strict_json import compact_json, json_error_detail, parse_strict_json


def test_json_has_no_blanks_and_keeps_letters_and_order() -> None:
    assert compact_json({"b": ["ü", 1, None], "a": {"x": 0.5}}) == '{"b":["ü",1,null],"a":{"x":0.5}}'


@pytest.mark.parametrize("value", ['say "no"\r\n', "\u2028", "", [], {}, True, -0.125, 10**20])
def test_whatever_is_written_is_read_again(value: object) -> None:
    assert json.loads(compact_json(value)) == value


# ---- what others wrote


@pytest.mark.parametrize("value", [None, True, 0, -7, 0.5, "ü", [], {}, {"a": [{"a": 1}, {"a": 2}]}, 10**3999])
@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_json_is_read_in_every_charset_that_it_may_have(value: object, charset: str) -> None:
    assert parse_strict_json(json.dumps(value, ensure_ascii=False).encode(charset)) == value


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"status": "down", "status": "ok"}', "the field status stands there twice"),
        (b'[{"a": {"b": 1, "c": 2, "b": 1}}]', "the field b stands there twice"),
        (rb'{"status": "down", "st\u0061tus": "ok"}', "the field status stands there twice"),
        (b'{"a\\u001b\\n": 1, "a\\u001b\\n": 2}', r"the field a\x1b stands there twice"),
        (b'{"lag": NaN}', "NaN is not of JSON"),
        (b"[Infinity]", "Infinity is not of JSON"),
        (b"[-Infinity]", "-Infinity is not of JSON"),
        (b"[" + b"9" * 4001 + b"]", "a number has 4001 digits"),
        (b'"\xff"', "byte 1 is not UTF-8"),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_what_readers_would_not_read_alike_is_refused_with_the_reason(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_strict_json(body)
    assert str(caught.value) == why


@pytest.mark.parametrize("body", [b"", b"ok", b"{", b"{} {}", b'{"a": }', b"'a'"])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="line 1 column"):
        parse_strict_json(body)


def test_the_name_of_a_field_that_is_a_secret_is_not_told() -> None:
    register_secret("hunter23")
    with pytest.raises(ValueError, match=r"^the field \*\*\* stands there twice$"):
        parse_strict_json(b'{"hunter23": 1, "hunter23": 1}')


@pytest.mark.parametrize(
    ("body", "told"), [(b' {"a"', "why"), (b"\n[", "why"), (b"<html>", ""), (b"NaN", ""), (b"", "")]
)
def test_why_it_is_no_json_is_told_of_what_looks_like_it(body: bytes, told: str) -> None:
    assert json_error_detail(body, ValueError("why")) == told
