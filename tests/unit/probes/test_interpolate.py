"""Values from the environment and from files: they replace placeholders and are never shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import redacted
from svcnode.probes.interpolate import MAX_FILE_BYTES, interpolate, interpolate_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENVIRON = {"HOST": "db.example", "PW": "p/w d", "URL": "http://me:pw@db/v3/0123456789abcdef", "EMPTY": "", "A B": "odd"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Bearer ${PW}!", "Bearer p/w d!"),
        ("${PW}${HOST}", "p/w ddb.example"),
        ("${EMPTY}", ""),
        ("${A B}", "odd"),
        ("$PW $ {PW} $$ $", "$PW $ {PW} $$ $"),
        ("$${PW}", "${PW}"),
        ("$$${PW}", "$${PW}"),
        ("$${${PW}", "${p/w d"),
        ("$${PW", "${PW"),
        (["${PW}", {"deep": "${PW}"}], ["p/w d", {"deep": "p/w d"}]),
        ({"${PW}": "${PW}"}, {"${PW}": "p/w d"}),
        (("a", "${PW}"), ["a", "p/w d"]),
        ({"file": 5}, {"file": 5}),
        ({"file": "x", "more": "${PW}"}, {"file": "x", "more": "p/w d"}),
    ],
)
def test_placeholders_are_replaced(value: object, expected: object) -> None:
    assert interpolate(value, ENVIRON) == expected


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_a_value_that_is_nested_too_deeply_is_refused(make: Callable[[object], object]) -> None:
    value: object = "a"
    for _ in range(5000):
        value = make(value)
    with pytest.raises(InvalidValueError):
        interpolate(value, ENVIRON)


@settings(max_examples=30, deadline=None)
@given(st.text())
def test_an_inserted_value_is_not_interpolated_again(text: str) -> None:
    assert interpolate("${X}", {"X": text}) == text
    assert interpolate("a${X}b", {"X": text, "": "wrong"}) == f"a{text}b"


@pytest.mark.parametrize("text", ["x${}", "${PW:-hunter2}", "${hunter2!}", "${ hunter2 }", "${2hunter2}"])
def test_a_placeholder_with_an_invalid_name_is_not_shown(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        interpolate(text, ENVIRON)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["${", "${hunter2", "a ${hunter2 b", "${hunter2@db/${PW}", "${PW} ${hunter2", "$$$${${x"]
)
def test_an_unclosed_placeholder_is_an_error_that_does_not_show_it(text: str) -> None:
    for value in (text, [text], {"a": text}, {"file": text}):
        assert "hunter2" not in unclosed_error(interpolate, value)
    for before, after in (("http://me:", "@db"), ("http://", ""), ("http://db/", ""), ("exec:", ""), ("${URL}/", "")):
        assert "hunter2" not in unclosed_error(interpolate_url, f"{before}{text}{after}")


def unclosed_error(resolve: Callable[[Any, dict[str, str]], object], value: object) -> str:
    with pytest.raises(InvalidValueError) as caught:
        resolve(value, ENVIRON)
    assert "${NAME}" in str(caught.value)
    return str(caught.value)


def test_a_variable_that_is_not_utf_8_is_rejected() -> None:
    environ = {"PW": os.fsdecode(b"\xff\xfe")}
    for text in ("${PW}", "http://me:${PW}@db", "http://${PW}", "http://db/${PW}"):
        with pytest.raises(InvalidValueError, match="PW"):
            interpolate_url(text, environ)
    with pytest.raises(InvalidValueError, match="PW"):
        interpolate(["${PW}"], environ)
    with pytest.raises(InvalidValueError):
        interpolate(environ["PW"], {})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"hunter2\r\n", "hunter2"),
        (b" hun ter2 \n\n", " hun ter2 "),
        (b"one\r\ntwo\n", "one\r\ntwo"),
        (b"${PW}", "${PW}"),
        (b"", ""),
    ],
)
def test_the_content_of_a_file_is_used_without_the_last_line_break(
    content: bytes, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "value").write_bytes(content)
    assert interpolate({"file": str(tmp_path / "value")}, ENVIRON) == expected
    assert interpolate({"a": [{"file": str(tmp_path / "value")}]}, ENVIRON) == {"a": [expected]}


def test_only_a_small_regular_file_is_read_and_the_error_of_another_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "not-text").write_bytes(b"\xff\xfe")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "fits").write_bytes(b"x" * MAX_FILE_BYTES)
    (tmp_path / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    for name in ("missing", "not-text", "pipe", "large", str(tmp_path)):
        with pytest.raises(InvalidValueError, match=name):
            interpolate({"file": str(tmp_path / name)}, {})
    with pytest.raises(InvalidValueError):
        interpolate({"file": "a\0b"}, {})
    assert len(interpolate({"file": str(tmp_path / "fits")}, {})) == MAX_FILE_BYTES


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("http://db/x", "http://db/x"),
        ("http://me:${PW}@${HOST}:80/a?k=${PW}", "http://me:p%2Fw%20d@db.example:80/a?k=p%2Fw%20d"),
        ("http://${HOST}/${PW}#${PW}", "http://db.example/p%2Fw%20d#p%2Fw%20d"),
        ("exec:/bin/check ${PW}", "exec:/bin/check p%2Fw%20d"),
        ("${URL}", ENVIRON["URL"]),
        ("${URL}/${PW}", ENVIRON["URL"] + "/p%2Fw%20d"),
        ("http://me:$${PW}@db", "http://me:${PW}@db"),
        ("no url ${PW}", "no url ${PW}"),
        ("http://me:$${PW@db/$$?$", "http://me:${PW@db/$$?$"),
    ],
)
def test_values_are_percent_encoded_where_the_url_needs_it(value: str, expected: str) -> None:
    assert interpolate_url(value, ENVIRON) == expected


@settings(max_examples=30, deadline=None)
@given(password=st.text())
@example(password="${HOME}")
@example(password="$${HOME}${")
def test_a_whole_url_from_a_variable_or_a_file_is_used_as_it_is(
    password: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = f"http://me:{password}@db/x?${{PW}}"
    assert interpolate_url("${WHOLE}", {"WHOLE": url}) == url
    file = tmp_path_factory.getbasetemp() / "whole"
    file.write_bytes(url.encode())
    assert interpolate_url({"file": str(file)}, {}) == url


@pytest.mark.parametrize("value", ["http://me:${PW}@db", "http://${PW}@db", "http://db/${PW}", "http://db?${PW}"])
def test_a_value_in_a_url_is_a_secret(value: str) -> None:
    interpolate_url(value, {"PW": "p/w d"})
    assert redacted("p/w d") == "***"


def test_a_value_in_an_option_is_a_secret_and_a_host_name_or_a_short_part_of_a_url_is_not() -> None:
    interpolate({"a": {"b": "${PW}"}}, {"PW": "p/w d"})
    assert redacted("p/w d, p%2Fw%20d, p/w%20d, p%2Fw+d") == "***, ***, ***, ***"
    interpolate_url("tcp://${HOST}:80", ENVIRON)
    interpolate_url("${PEER}", {"PEER": "svc+http://me:pw@peer/svc"})
    assert redacted("db.example:80, http://127.0.0.1/svc/node") == "db.example:80, http://127.0.0.1/svc/node"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pw@db/v3/0123456789abcdef", "answered 401: /v3/0123456789abcdef"),
        ("https://db/?api_key=0123456789abcdef", "echo: 0123456789abcdef"),
        ("https://db/a%2Fb0123456789#frag", "echo: a/b0123456789 a%2Fb0123456789"),
        ("exec:/bin/check --key 0123456789abcdef", "exit 1: 0123456789abcdef"),
        ("exec:check 0123456789abcdef", "exit 1: 0123456789abcdef"),
    ],
)
def test_a_key_in_a_secret_url_is_a_secret(url: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(url)
    interpolate_url({"file": str(tmp_path / "url")}, {})
    assert "0123456789" not in redacted(shown)
