from __future__ import annotations

import errno
import socket
import tomllib

import pytest

from svcnode.core.redaction import register_secret
from svcnode.core.text import (
    MAX_COMPARED_NAMES,
    MAX_REASON_CHARS,
    closest_match,
    encodable,
    error_text,
    excerpt,
    has_control_chars,
    join_first,
    one_line,
    os_error_text,
    safe_reason,
    sanitize,
    suggestion,
    toml_value,
    truncate,
    visible_text,
    with_author,
)


def test_the_closest_name_is_found() -> None:
    assert closest_match("htpp", ["tcp", "http", "https"]) == "http"
    assert closest_match("xyz", ["tcp", "http"]) is None
    assert closest_match("inte", ["interval_of_the_checks"]) == "interval_of_the_checks"
    assert closest_match("int", ["interval_of_the_checks"]) is None
    assert closest_match("s1", [f"s{number}" for number in range(MAX_COMPARED_NAMES)]) == "s1"
    assert closest_match("s1", [f"s{number}" for number in range(MAX_COMPARED_NAMES + 1)]) is None


def test_for_an_unknown_name_the_closest_one_is_suggested_or_all_are_listed_in_order() -> None:
    assert suggestion("htpp", iter(["tcp", "http"])) == '; did you mean "http"?'
    assert suggestion("xyz", iter(["tcp", "http"])).endswith(": http, tcp")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "name or service not known"),
        (OSError("Own text"), "Own text"),
    ],
)
def test_the_text_of_an_os_error_is_in_lower_case(error: OSError, text: str) -> None:
    assert os_error_text(error) == text


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError(" bad \n"), "ValueError: bad"), (ValueError(), "ValueError"), (NoTextError(), "NoTextError")],
)
def test_the_text_of_an_error_has_its_type_and_message(error: Exception, text: str) -> None:
    assert error_text(error) == text


def test_secrets_are_hidden_and_control_characters_escaped_in_a_text_from_outside() -> None:
    register_secret("hunter2")
    assert one_line("a\nb\x1b[31m ü\u202e") == "a\\nb\\x1b[31m ü\\u202e"
    assert sanitize("hunter2\r\n") == r"***\r\n"
    assert encodable("hunter2 ü\udcff") == "*** ü?"


def test_control_characters_and_lone_surrogates_are_found() -> None:
    assert all(map(has_control_chars, ("a\nb", "\x1f", "\x7f", "\x9f", "\ud800", "\udfff")))
    assert not has_control_chars("Größe ☃ ~\xa0\ue000")


def test_many_names_are_shortened_to_the_first() -> None:
    assert join_first([], 2) == ""
    assert join_first(["a", "b"], 2) == "a, b"
    assert join_first(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_a_text_that_is_too_long_ends_with_an_ellipsis_and_an_excerpt_is_one_line() -> None:
    assert truncate("x" * 10, 10) == "x" * 10
    assert truncate("x" * 11, 10) == "x" * 9 + "…"
    assert excerpt("a\n  b\tc") == "a b c"
    assert excerpt(b"\x1b[2Jgone\xff") == r"\x1b[2Jgone\xff"
    assert excerpt("x" * 80) == "x" * 80
    assert excerpt("x" * 81) == "x" * 79 + "…"
    assert excerpt("x" * 81, 100) == "x" * 81


class NoText:
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("disk full", "disk full"),
        (None, ""),
        (b"disk \xff full\n", "disk \\xff full\\n"),
        (memoryview(b"full"), "full"),
        (ValueError("bad\nvalue"), "ValueError: bad\\nvalue"),
        ("a\ud800b\x1b[2J\x9b\x00\t", "a\\ud800b\\x1b[2J\\x9b\\x00\\t"),
        (NoText(), "NoText"),
    ],
)
def test_any_object_is_a_reason_that_can_be_shown(value: object, text: str) -> None:
    assert safe_reason(value) == visible_text(value) == text
    assert safe_reason(text) == text  # a reason may pass several borders


def test_a_reason_is_bounded_and_escaped_after_its_secrets_are_hidden() -> None:
    register_secret("back\\slash\x1b!")
    assert safe_reason(b"login with back\\slash\x1b! failed") == "login with *** failed"
    register_secret("s" * 50)
    assert safe_reason("x" * MAX_REASON_CHARS) == "x" * MAX_REASON_CHARS
    long = safe_reason("x" * (MAX_REASON_CHARS - 20) + "s" * 50 + "y" * 60_000)
    assert long == "x" * (MAX_REASON_CHARS - 20) + "***" + "y" * 16 + "…"
    assert safe_reason(("s" * 50 + " ") * 100) == "*** " * 100
    assert "s" not in safe_reason(("s" * 50 + " ") * 1000), "a secret that is cut in half"
    assert "s" not in excerpt(("s" * 50 + " ") * 1000, 400), "likewise"


@pytest.mark.parametrize("value", [{}, [], 'a\x7f\n"b', 1, 1.5, True, {"/a b": [1, "x", {"c": {}}]}], ids=repr)
def test_a_value_in_toml_is_read_as_the_same_value(value: object) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}") == {"value": value}


@pytest.mark.parametrize(
    ("text", "author", "expected"),
    [
        ("kernel", "", "kernel"),
        ("kernel", "ann", "kernel (by ann)"),
        ("", "ann", "by ann"),
        ("issue cleared: full (by bob)", "ann", "issue cleared: full (by bob); by ann"),
    ],
)
def test_a_text_names_its_author(text: str, author: str, expected: str) -> None:
    assert with_author(text, author) == expected
