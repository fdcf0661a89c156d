"""An answer as it came: its headers, of which one may stand twice."""

from __future__ import annotations

from svcnode.conformance.http_client import RawResponse


def test_a_content_type_that_stands_twice_is_none() -> None:
    header = ("content-type", "application/json")
    assert RawResponse(200, (header,)).media_type == "application/json"
    assert RawResponse(200, (header, header)).media_type == ""


def test_the_tokens_of_a_header_are_gathered_from_all_of_its_lines() -> None:
    answer = RawResponse(200, (("allow", "GET, Head"), ("allow", "OPTIONS,")))
    assert answer.tokens("allow") == {"get", "head", "options"}
