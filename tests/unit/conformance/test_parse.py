"""What an answer holds: JSON, a list of services, an error body, or the reason why it holds none of them."""

from __future__ import annotations

import json

import pytest

from svcnode.conformance.http_client import RawResponse
from svcnode.conformance.parse import (
    addressable_ids,
    error_body_problem,
    format_content_type,
    format_response,
    is_success_code,
    parse_body,
    service_items,
)


def answer(body: object = b"", code: int = 200, **headers: str) -> RawResponse:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return RawResponse(code, tuple((name.replace("_", "-"), value) for name, value in headers.items()), raw)


# ---- JSON


@pytest.mark.parametrize("value", [{}, {"a": [1, None]}, [], "text", 0, None])
def test_json_of_any_sort_is_read_without_a_fault(value: object) -> None:
    assert parse_body(answer(value)) == (value, "")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no body"),
        (b"OK", "OK, which is no JSON: "),
        (b'{"id": NaN}', "NaN is no JSON"),
        (b'{"id": 1, "id": 2}', "a field stands twice in one object"),
        (b'"\xff"', "which is no JSON: "),
        (b"[" * 100_000, "too deeply nested"),
    ],
)
def test_what_is_no_json_is_told_with_the_reason(body: bytes, why: str) -> None:
    document = parse_body(answer(body))
    assert document.value is None
    assert why in document.error


# ---- services


@pytest.mark.parametrize("body", [{"services": [1, 2]}, [1, 2]])
def test_a_list_of_services_is_found_wrapped_and_bare(body: object) -> None:
    assert service_items(answer(body)) == [1, 2]


@pytest.mark.parametrize("body", [b"", b"OK", {}, {"services": {}}, "services"])
def test_anything_else_is_no_list_of_services(body: object) -> None:
    assert service_items(answer(body)) is None


def test_the_list_of_an_answer_that_is_no_200_does_not_count() -> None:
    assert service_items(answer({"services": []}, 500)) is None


def test_ids_that_can_be_asked_for_are_those_that_stand_once() -> None:
    ids = ["b", "twice", "", "a", "twice", "half\ud800", 7, "ü/x"]
    items = [{"id": one} for one in ids]
    assert addressable_ids([*items, {}, "c", None]) == ["b", "a", "ü/x"]


# ---- in words


def test_an_answer_is_told_by_its_code_its_body_and_where_it_leads() -> None:
    assert format_response(answer()) == "200 with no body"
    assert format_response(answer(b"no\n", 503)) == r"503 with the body no\n"
    assert format_response(answer(code=302, location="/login")) == "302 with no body, Location: /login"


def test_a_content_type_is_told_also_where_it_stands_twice_or_not_at_all() -> None:
    assert format_content_type(answer()) == "no Content-Type"
    assert format_content_type(answer(content_type="text/html")) == "Content-Type: text/html"
    twice = RawResponse(200, (("content-type", "text/html"), ("content-type", "text/plain")))
    assert format_content_type(twice) == "Content-Type: text/html and text/plain"


@pytest.mark.parametrize(("code", "is_fine"), [(199, False), (200, True), (206, True), (302, True), (400, False)])
def test_redirects_are_taken_for_a_yes_too(code: int, is_fine: bool) -> None:
    assert is_success_code(code) is is_fine


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({"message": "Not found"}, ""),
        ({"message": "Not found", "more": 1}, ""),
        (b"", "404 with no body"),
        ([], "404 with the body []"),
        ({"message": 1}, '404 with the body {"message": 1}, without a string field message'),
        ({}, "404 with the body {}, without a string field message"),
    ],
)
def test_an_error_body_has_a_message_in_words(body: object, fault: str) -> None:
    assert error_body_problem(answer(body, 404)) == fault
