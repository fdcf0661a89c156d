"""Values that stand in the environment or in files, put in their places and never shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import redacted
from svcnode.probes.interpolate import MAX_FILE_BYTES, interpolate, interpolate_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENVIRON = {"HOST": "db.example", "PW": "p/w d", "URL": "http://me:pw@db/v3/0123456789abcdef", "EMPTY": "", "A B": "odd"}


# ---- in options


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ("${PW}", "p/w d"),
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
        (5, 5),
        (None, None),
        ({"file": 5}, {"file": 5}),
    ],
)
def test_names_are_replaced_by_what_they_stand_for(value: object, made: object) -> None:
    assert interpolate(value, ENVIRON) == made


@given(st.text())
def test_what_is_put_in_is_never_read_again(text: str) -> None:
    assert interpolate("${X}", {"X": text}) == text
    assert interpolate("a${X}b", {"X": text, "": "wrong"}) == f"a{text}b"


@pytest.mark.parametrize("text", ["x${}", "${PW:-hunter2}", "${hunter2!}", "${ hunter2 }", "${2hunter2}"])
def test_what_is_no_name_is_not_shown(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"what stands in \$\{…\} is not the name") as refused:
        interpolate(text, ENVIRON)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(("text", "name"), [("${NO_SUCH}", "NO_SUCH"), ("${pw}", "pw")])
def test_a_name_that_is_not_set_is_an_error_that_names_it(text: str, name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"the environment variable {name} is not set"):
        interpolate(text, ENVIRON)
    with pytest.raises(InvalidValueError, match=f"the environment variable {name} is not set"):
        interpolate_url(f"http://db/{text}", ENVIRON)


@pytest.mark.parametrize(
    "text", ["${", "${hunter2", "a ${hunter2 b", "${hunter2@db/${PW}", "${PW} ${hunter2", "$$$${${x"]
)
def test_a_name_without_an_end_is_an_error_that_does_not_show_it(text: str) -> None:
    for place in (text, [text], {"a": text}, {"file": text}):
        assert "hunter2" not in refused_as_endless(interpolate, place)
    for before, after in (("http://me:", "@db"), ("http://", ""), ("http://db/", ""), ("exec:", ""), ("${URL}/", "")):
        assert "hunter2" not in refused_as_endless(interpolate_url, f"{before}{text}{after}")


def test_a_url_that_is_a_name_without_an_end_is_the_same_error() -> None:
    for url in ("${", "${hunter2", "${hunter2://db/${PW}"):
        assert "hunter2" not in refused_as_endless(interpolate_url, url)


def refused_as_endless(resolve: Callable[[Any, dict[str, str]], object], value: object) -> str:
    with pytest.raises(
        InvalidValueError, match=r"^a \$\{ lacks its \}; write \$\{NAME\}, or \$\$\{ for a plain"
    ) as refused:
        resolve(value, ENVIRON)
    return str(refused.value)


def test_what_the_environment_holds_may_be_no_text() -> None:
    environ = {"PW": os.fsdecode(b"\xff\xfe")}
    for text in ("${PW}", "http://me:${PW}@db", "http://${PW}", "http://db/${PW}"):
        with pytest.raises(InvalidValueError, match="the environment variable PW is not UTF-8 text"):
            interpolate_url(text, environ)
    with pytest.raises(InvalidValueError, match="the environment variable PW is not UTF-8 text"):
        interpolate(["${PW}"], environ)
    with pytest.raises(InvalidValueError, match="it is not UTF-8 text"):
        interpolate(environ["PW"], {})


# ---- in files


@pytest.mark.parametrize(
    ("held", "made"),
    [
        (b"hunter2", "hunter2"),
        (b"hunter2\n", "hunter2"),
        (b"hunter2\r\n", "hunter2"),
        (b" hun ter2 \n\n", " hun ter2 "),
        (b"one\r\ntwo\n", "one\r\ntwo"),
        ("é🙂".encode(), "é🙂"),
        (b"${PW}", "${PW}"),
        (b"", ""),
    ],
)
def test_a_file_holds_the_value_without_the_line_break_at_its_end(held: bytes, made: str, tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(held)
    assert interpolate({"file": str(tmp_path / "value")}, ENVIRON) == made
    assert interpolate({"a": [{"file": str(tmp_path / "value")}]}, ENVIRON) == {"a": [made]}


def test_a_table_that_only_looks_like_a_file_stays_a_table() -> None:
    assert interpolate({"file": "x", "more": "${PW}"}, ENVIRON) == {"file": "x", "more": "p/w d"}


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "not-text").write_bytes(b"\xff\xfe")
    for name, why in (("missing", "no such file or directory"), ("not-text", "not UTF-8 text")):
        with pytest.raises(InvalidValueError, match=f"cannot read .*{name}: {why}"):
            interpolate({"file": str(tmp_path / name)}, {})
    with pytest.raises(InvalidValueError, match="cannot read "):
        interpolate({"file": "a\0b"}, {})


def test_what_could_keep_us_waiting_or_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "fits").write_bytes(b"x" * MAX_FILE_BYTES)
    (tmp_path / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    for name in ("pipe", "large", "."):
        with pytest.raises(InvalidValueError, match="not a file of at most 64 KiB"):
            interpolate({"file": str(tmp_path / name)}, {})
    assert len(interpolate({"file": str(tmp_path / "fits")}, {})) == MAX_FILE_BYTES


# ---- in URLs


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ("http://db/x", "http://db/x"),
        ("http://me:${PW}@${HOST}:80/a?k=${PW}", "http://me:p%2Fw%20d@db.example:80/a?k=p%2Fw%20d"),
        ("http://${HOST}/${PW}#${PW}", "http://db.example/p%2Fw%20d#p%2Fw%20d"),
        ("exec:/bin/check ${PW}", "exec:/bin/check p%2Fw%20d"),
        ("heartbeat:${PW}", "heartbeat:p%2Fw%20d"),
        ("${URL}", ENVIRON["URL"]),
        ("${URL}/${PW}", ENVIRON["URL"] + "/p%2Fw%20d"),
        ("http://me:$${PW}@db", "http://me:${PW}@db"),
        ("no url ${PW}", "no url ${PW}"),
        ("http://me:$${PW@db/$$?$", "http://me:${PW@db/$$?$"),
    ],
)
def test_what_is_put_in_a_url_takes_the_form_of_its_place(value: str, made: str) -> None:
    assert interpolate_url(value, ENVIRON) == made


@given(password=st.text())
@example(password="${HOME}")
@example(password="$${HOME}${")
def test_a_whole_url_from_elsewhere_is_taken_as_it_is(password: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"http://me:{password}@db/x?${{PW}}"
    assert interpolate_url("${WHOLE}", {"WHOLE": url}) == url
    file = tmp_path_factory.getbasetemp() / "whole"
    file.write_bytes(url.encode())
    assert interpolate_url({"file": str(file)}, {}) == url


@pytest.mark.parametrize("value", [5, None, [], {}, {"file": 5}, {"file": "x", "more": 1}, {"name": "x"}])
def test_what_is_no_url_at_all_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="a probe URL is a string, or "):
        interpolate_url(value, {})


# ---- and never shown


@pytest.mark.parametrize("value", ["${PW}", "x${PW}y", ["${PW}"], {"a": {"b": "${PW}"}}])
def test_what_was_put_in_an_option_is_kept_secret(value: object) -> None:
    interpolate(value, {"PW": "p/w d"})
    assert redacted("p/w d, p%2Fw%20d, p/w%20d, p%2Fw+d") == "***, ***, ***, ***"


@pytest.mark.parametrize("value", ["http://me:${PW}@db", "http://${PW}@db", "http://db/${PW}", "http://db?${PW}"])
def test_what_was_put_in_a_url_is_kept_secret(value: str) -> None:
    interpolate_url(value, {"PW": "p/w d"})
    assert redacted("p/w d") == "***"


def test_what_a_file_holds_is_kept_secret(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("hunter2\n")
    interpolate({"file": str(tmp_path / "pw")}, {})
    assert redacted("wrong: hunter2") == "wrong: ***"


def test_the_name_of_a_host_is_no_secret() -> None:
    interpolate_url("tcp://${HOST}:80", ENVIRON)
    assert redacted("refused: db.example:80") == "refused: db.example:80"


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
def test_a_key_inside_a_url_that_is_a_secret_as_a_whole_is_one_too(url: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(url)
    interpolate_url({"file": str(tmp_path / "url")}, {})
    assert "0123456789" not in redacted(shown)


def test_a_short_word_inside_a_url_that_is_a_secret_as_a_whole_is_taken_for_a_name() -> None:
    interpolate_url("${PEER}", {"PEER": "svc+http://me:pw@peer/svc"})
    assert redacted("listening on http://127.0.0.1/svc/node") == "listening on http://127.0.0.1/svc/node"
