"""What an answer holds: JSON, a list of services, an error body, or the reason why it holds none of them."""

from __future__ import annotations

import json

import pytest

from svcnode.conformance.response import (
    RawResponse,
    addressable_ids,
    error_body_problem,
    format_content_type,
    format_response,
    is_success_code,
    join_items,
    parse_body,
    safe_text,
    service_items,
)


def response(body: object = b"", code: int = 200, **headers: str) -> RawResponse:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return RawResponse(code, tuple((name.replace("_", "-"), value) for name, value in headers.items()), raw)


@pytest.mark.parametrize("body", [b"", b'{"id": NaN}', b'{"id": 1, "id": 2}', b'"\xff"', b"[" * 100_000])
def test_any_json_value_is_parsed_and_another_body_has_an_error(body: bytes) -> None:
    for value in ({"a": [1, None]}, "text", None):
        assert parse_body(response(value)) == (value, "")
    document = parse_body(response(body))
    assert document.value is None
    assert document.error


def test_a_list_of_services_is_found_wrapped_and_bare_but_not_in_the_body_of_an_error() -> None:
    assert service_items(response({"services": [1, 2]})) == service_items(response([1, 2])) == [1, 2]
    for other in (response(b"OK"), response({"services": {}}), response("services"), response([1], 500)):
        assert service_items(other) is None


def test_addressable_ids_are_unique_and_fit_into_a_path() -> None:
    ids = ["b", "twice", "", "a", "twice", "half\ud800", 7, "ü/x"]
    items = [{"id": one} for one in ids]
    assert addressable_ids([*items, {}, "c", None]) == ["b", "a", "ü/x"]


def test_the_text_of_a_response_has_its_code_body_and_location() -> None:
    assert format_response(response()).startswith("200 ")
    assert format_response(response(b"no\n", 503)).endswith(r" no\n")
    assert format_response(response(code=302, location="/login")).endswith("Location: /login")


def test_the_text_of_a_content_type_has_all_its_values() -> None:
    assert format_content_type(response()) == "no Content-Type"
    assert format_content_type(response(content_type="text/html")) == "Content-Type: text/html"
    twice = RawResponse(200, (("content-type", "text/html"), ("content-type", "text/plain")))
    assert [value in format_content_type(twice) for value in ("text/html", "text/plain")] == [True, True]


@pytest.mark.parametrize(("code", "is_success"), [(199, False), (200, True), (206, True), (302, True), (400, False)])
def test_redirects_count_as_success(code: int, is_success: bool) -> None:
    assert is_success_code(code) is is_success


def test_an_error_body_is_an_object_with_a_string_message() -> None:
    assert error_body_problem(response({"message": "Not found", "more": 1}, 404)) == ""
    for other in (response(b"", 404), response([], 404), response({"message": 1}, 404)):
        assert error_body_problem(other)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("Größe ☃".encode(), "Größe ☃"),
        (b"\xff\xfe", r"\xff\xfe"),
        ("a\nb\x1b[2J\x00", r"a\nb\x1b[2J\x00"),
        ("\ud800\ufffe\u202e", r"\ud800\ufffe\u202e"),
        (b"x" * 200, "x" * 200),
        (b"x" * 201, "x" * 200 + "… (201 bytes total)"),
        ("x" * 300, "x" * 200 + "… (300 characters total)"),
    ],
)
def test_untrusted_text_is_one_line_without_control_characters(raw: str | bytes, text: str) -> None:
    assert safe_text(raw) == text


@pytest.mark.parametrize(
    ("items", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_items_are_joined_and_those_beyond_the_limit_counted(items: list[str], text: str) -> None:
    assert join_items(items) == join_items(items, limit=3) == text
    assert join_items(["a", "b", "c", "d"], limit=3) == "a, b, c and 1 more"
    assert join_items(["a", "b", "c", "d"], limit=1) == "a and 3 more"


def test_a_repeated_content_type_is_none_and_the_tokens_of_a_header_are_those_of_all_its_lines() -> None:
    header = ("content-type", "application/json")
    assert RawResponse(200, (header,)).media_type == "application/json"
    assert RawResponse(200, (header, header)).media_type == ""
    allowing = RawResponse(200, (("allow", "GET, Head"), ("allow", "OPTIONS,")))
    assert allowing.tokens("allow") == {"get", "head", "options"}
