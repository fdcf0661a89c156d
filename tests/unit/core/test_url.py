"""Parsing URLs, and hiding their secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from svcnode.core.errors import ProbeError
from svcnode.core.redaction import redacted
from svcnode.core.url import (
    HTTP_SOCKET_FORM,
    NO_PATH,
    SOCKET_FORM,
    Url,
    UrlError,
    UrlForm,
    UrlPart,
    is_valid_hostname,
    redact_url,
)
from svcnode.probes.interpolate import interpolate_url

if TYPE_CHECKING:
    from collections.abc import Callable

# Parts of URLs, so that generated texts get further than the first check.
PIECES = ["http", "tcp", ":", "/", "//", "?", "#", "@", "[", "]", "::1", "%", "%00", "%e9", "%zz", "h", "80", "é", "\0"]


def anything() -> st.SearchStrategy[str]:
    everything = st.characters(exclude_categories=())  # surrogates too, as in command lines that are not UTF-8
    of_pieces = st.lists(st.one_of(st.sampled_from(PIECES), everything), max_size=20).map("".join)
    return st.one_of(st.text(everything), of_pieces, of_pieces.map("http://".__add__))


def invalid_part(text: str, use: Callable[[Url], object] = str) -> UrlPart:
    with pytest.raises(UrlError) as caught:
        use(Url.parse(text))
    return caught.value.part


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("tcp://db:5432", Url(scheme="tcp", host="db", port=5432)),
        ("tcp://db:", Url(scheme="tcp", host="db")),
        ("HTTP://Db/A%20b", Url(scheme="http", host="Db", path="/A%20b")),
        ("http://h?k=v", Url(scheme="http", host="h", query="k=v")),
        ("http://h/p?k=/?#part", Url(scheme="http", host="h", path="/p", query="k=/?")),
        ("http://me:pw@h:1/", Url(scheme="http", host="h", port=1, path="/", username="me", password="pw")),
        ("http://:pw@h", Url(scheme="http", host="h", password="pw")),
        ("http://a%40b:p%2Fw@h", Url(scheme="http", host="h", username="a@b", password="p/w")),
        ("http://me:p:w@x@h", Url(scheme="http", host="h", username="me", password="p:w@x")),
        ("svc+https://[::1]:443/svc", Url(scheme="svc+https", host="::1", port=443, path="/svc")),
        ("tcp://[0:0::0:1]:1", Url(scheme="tcp", host="::1", port=1)),
        ("file:///run/app.pid", Url(scheme="file", path="/run/app.pid")),
        ("exec:/bin/check a ?b #c", Url(scheme="exec", path="/bin/check a ?b #c")),
        ("exec:", Url(scheme="exec")),
        ("http+unix:///run/a%20b.sock", Url(scheme="http+unix", socket="/run/a b.sock")),
        ("http+unix:/run/a:/v1/b:c?k=v#x", Url(scheme="http+unix", socket="/run/a", path="/v1/b:c", query="k=v")),
        ("http+unix:///run/a?k=v", Url(scheme="http+unix", socket="/run/a", query="k=v")),
    ],
)
def test_a_url_is_split_into_its_parts(text: str, url: Url) -> None:
    assert Url.parse(text) == url


@pytest.mark.parametrize(
    ("part", "texts"),
    [
        ("scheme", ["", "//db:1", "127.0.0.1:5432", "/run/app.pid", ":x", "ü:x", "1tcp://h", " tcp:"]),
        ("url", ["tcp://h\n:1", "tcp://\x7f", "exec:a\tb", "http://h/\udcff", "tcp://[::1]x:1", "tcp://[::1:1"]),
        ("port", [f"tcp://db:{port}" for port in ("0", "65536", "-1", "http", "8 0", "٣", "9" * 5000, "0000080000")]),
        (
            "path",
            ["a+unix:", "a+unix:x", "a+unix://h/x", "a+unix:///", "a+unix:///x/", "a+unix:///x:y", "a+unix:///%00"],
        ),
        ("path", [f"a+unix:///{'x' * 107}", f"a+unix:///{'é' * 54}"]),
        ("host", ["nats://a,b", "nats://a:1,b:2", "nats://a:1,", "tcp://[::g]:1", "tcp://[]:1", "tcp://[127.0.0.1]:1"]),
    ],
)
def test_the_error_of_an_invalid_url_names_its_part(part: UrlPart, texts: list[str]) -> None:
    assert [invalid_part(text) for text in texts] == [part] * len(texts)
    assert Url.parse("tcp://db:65535").port == 65535


@given(anything())
@example("http://u:\ud800@h")
@example("http://[::1%é]")
def test_any_text_is_a_url_or_a_probe_error(text: str) -> None:
    try:
        url = Url.parse(text)
    except ProbeError:
        return
    assert str(url).startswith((f"{url.scheme}:", "***:"))  # the password of an earlier example may be the scheme
    for require in (url.require_host, url.require_port, lambda: url.reject_parts(HOST_ONLY), lambda: url.file_path):
        try:
            require()
        except ProbeError:
            continue


@given(user=st.text(), password=st.text())
@example(user="a:b@c", password="/?#@:%00 ${HOME}$${x}\0\r\né🙂")
def test_interpolated_credentials_are_decoded_unchanged(user: str, password: str) -> None:
    environ = {"USER_NAME": user, "PASSWORD": password}
    url = Url.parse(interpolate_url("http://${USER_NAME}:${PASSWORD}@db:1/x", environ))
    assert (url.username, url.password) == (user, password)
    assert (url.host, url.port, url.path) == ("db", 1, "/x")


@given(key=st.text())
def test_an_interpolated_query_value_cannot_add_parameters(key: str) -> None:
    url = Url.parse(interpolate_url("http://db/x?key=${KEY}&more=1", {"KEY": key}))
    assert url.path == "/x"
    assert url.query.count("&") == 1
    assert url.query.endswith("&more=1")


@pytest.mark.parametrize("password", ["hunter2", "pw"])
def test_neither_the_password_nor_the_query_is_shown(password: str) -> None:
    url = Url.parse(f"http://me:{password}@db:1/path?key=topsecret")
    assert str(url) == "http://me:***@db:1/path?***"
    assert repr(url) == "<Url http://me:***@db:1/path?***>"
    assert str(Url.parse(f"redis://:{password}@db")) == "redis://:***@db"
    Url.parse("http://me:hunter%202@db")
    assert redacted("wrong: hunter 2, hunter%202") == "wrong: ***, ***"


HEX_KEY, MIXED_KEY, UUID = "9aa3d95b3bc440fa88ea12eaa4456161", "Xk2-9sDfaZ_q81LpW0vTn3", "6f1c3a52-07de-4b0a-9c1e-2a"


@pytest.mark.parametrize("text", ["http://db/v3/{}", "https://db/{}/mainnet", "http://{}@db:1/", "ws://db/bot1:{}"])
def test_a_likely_key_is_hidden_and_registered_as_a_secret(text: str) -> None:
    assert str(Url.parse(text.format(HEX_KEY))) == text.format("***")
    assert redacted(f"user {HEX_KEY}") == "user ***"


def test_a_key_is_found_in_the_query_and_between_percent_encoded_characters_unless_a_server_sent_it() -> None:
    sent = Url.parse(f"http://me:Down@elsewhere/{HEX_KEY}", register_secrets=False)
    assert str(sent) == f"http://me:***@elsewhere/{HEX_KEY}"
    assert redacted(f"service db is Down {HEX_KEY}") == f"service db is Down {HEX_KEY}"
    Url.parse(f"http://db/?key={MIXED_KEY}")
    assert redacted(f"invalid: {MIXED_KEY}") == "invalid: ***"
    assert str(Url.parse(f"http://db/a%20b%3D{HEX_KEY}%3D%3D")) == "http://db/a%20b%3D***%3D%3D"
    assert redacted(f"a b={HEX_KEY}==") == "a b=***=="


@pytest.mark.parametrize("text", [f"file:/run/{HEX_KEY}/pid", f"file:///run/{HEX_KEY}/pid", f"disk:/mnt/{UUID}"])
def test_the_path_of_a_file_is_shown_even_if_it_looks_like_a_key(text: str) -> None:
    assert str(Url.parse(text)).endswith(text.removeprefix("file:").removeprefix("//").removeprefix("disk:"))


@pytest.mark.parametrize(
    "text", ["http://me:hun/ter2@db", "http://me:hun?ter2@db", "http://me@corp:hunter2@db", "http://me:hun#ter2@db"]
)
def test_a_password_with_unencoded_characters_is_not_shown_in_the_error(text: str) -> None:
    with pytest.raises(UrlError) as caught:
        Url.parse(text)
    assert caught.value.part == "port"
    assert "hun" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "redacted_url"),
    [
        ("https://h/path", "https://h/path"),
        ("https://h/path?token=x", "https://h/path?…"),
        ("https://h/#x", "https://h/?…"),
        ("https://bob:x/y@z@h/path?a=b", "…@h/path?…"),
        ("https://bob:x?y@h/path", "…"),
        ("", ""),
    ],
)
def test_redact_url_removes_login_and_query(url: str, redacted_url: str) -> None:
    assert redact_url(url) == redacted_url


def test_a_missing_host_or_port_is_rejected() -> None:
    assert invalid_part("tcp:5432", Url.require_host) == "host"
    assert invalid_part("tcp://db", Url.require_port) == "port"
    assert Url.parse("tcp://db:1").require_host() == "db"
    assert Url.parse("tcp://db:1").require_port() == 1
    assert [Url.parse(text).host_port for text in ("tcp://[::1]:1", "tcp://db")] == ["[::1]:1", "db"]


@pytest.mark.parametrize("host", ["a..b", "h%0d%0aX-Key:1", "a%20b", "x" * 64])
def test_an_invalid_host_name_is_rejected_and_the_ascii_form_of_another_suggested(host: str) -> None:
    assert invalid_part(f"http://{host}/", Url.require_host) == "host"
    assert not any(map(is_valid_hostname, ("a@b", "a/b", "a\\b", "a?b", "a b", "a..b", "é")))
    assert is_valid_hostname("db-1.example")
    for name in ("bücher.example", "b%C3%BCcher.example"):
        with pytest.raises(UrlError, match=r"xn--bcher-kva\.example"):
            Url.parse(f"http://{name}/").require_host()


HOST_ONLY = UrlForm(has_credentials=False, path=NO_PATH, query="")


@pytest.mark.parametrize(
    ("text", "form", "part"),
    [
        ("tcp://db:1/x", HOST_ONLY, "path"),
        ("tcp://db:1/?x", HOST_ONLY, "path"),
        ("tcp://me@db:1", HOST_ONLY, "credentials"),
        ("tcp://:pw@db:1", HOST_ONLY, "credentials"),
        ("redis://db/0?x=1", UrlForm(query=""), "query"),
    ],
)
def test_a_part_that_a_form_does_not_have_is_rejected(text: str, form: UrlForm, part: UrlPart) -> None:
    assert invalid_part(text, lambda url: url.reject_parts(form)) == part
    for accepted in ("tcp://db:1", "tcp://db:1/", "tcp://db:1?", "tcp://db:1#x"):
        Url.parse(accepted).reject_parts(form)
        assert re.fullmatch(form.pattern(), accepted.removeprefix("tcp:"))


@pytest.mark.parametrize(
    ("form", "text", "is_accepted"),
    [
        (UrlForm(), "//u:p@[::1]:65535/a?b#c", True),
        (UrlForm(), "//a:65536", False),
        (UrlForm(), "//a,b", False),
        (UrlForm(), "", False),
        (HOST_ONLY, "//a/b", False),
        (HOST_ONLY, "//u@a:1", False),
        (UrlForm(needs_port=True), "//a", False),
        (UrlForm(host="optional"), "///db?host=/run", True),
        (UrlForm(host="none", path=".+"), "/a", True),
        (UrlForm(host="none", path=".+"), "///a", True),
        (UrlForm(host="none", path=".+"), "//host/a", False),
        (UrlForm(host="any"), "anything", True),
        (UrlForm(host="any", whole="[a-z]+"), "anything", True),
        (UrlForm(host="any", whole="[a-z]+"), "//anything", False),
        (SOCKET_FORM, "///run/a.sock", True),
        (SOCKET_FORM, "/run/a.sock", True),
        (SOCKET_FORM, "///run/a.sock:/x", False),
        (SOCKET_FORM, "//host/a.sock", False),
        (HTTP_SOCKET_FORM, "///run/a.sock:/x?k=v#y", True),
        (HTTP_SOCKET_FORM, "///run/a.sock:x", False),
        (HTTP_SOCKET_FORM, "///", False),
    ],
)
def test_the_pattern_of_a_form_has_its_parts(form: UrlForm, text: str, is_accepted: bool) -> None:
    assert bool(re.fullmatch(form.pattern(), text)) is is_accepted


def test_a_url_alone_may_need_more() -> None:
    form = UrlForm(host="none", path=".*", path_alone=".+")
    assert re.fullmatch(form.pattern(), "")
    assert not re.fullmatch(form.pattern(is_alone=True), "")


def test_a_socket_is_shown_with_the_path_of_the_request_and_without_the_query() -> None:
    shown = {
        "http+unix:/run/a": "http+unix:///run/a",
        "http+unix:///run/a:/v1": "http+unix:///run/a:/v1",
        "http+unix:///run/a:/v1?k=v": "http+unix:///run/a:/v1?***",
        "http+unix:///run/a?k=v": "http+unix:///run/a:/?***",
    }
    assert {text: str(Url.parse(text)) for text in shown} == shown
    key = "0123456789abcdef0123456789abcdef"
    Url.parse(f"http+unix:///run/a?k={key}")
    assert redacted(key) == "***"


def test_the_target_of_a_request_is_the_path_and_the_query() -> None:
    targets = {"http://h": "/", "http://h?a=b": "/?a=b", "http://h/p%20q?a=b": "/p%20q?a=b"}
    assert {text: Url.parse(text).target for text in targets} == targets


def test_user_name_and_password_are_an_authorization_header_that_is_a_secret() -> None:
    assert Url.parse("http://h").basic_authorization == ""
    assert Url.parse("http://me:hunter2@h").basic_authorization == "Basic bWU6aHVudGVyMg=="
    assert redacted("sent: bWU6aHVudGVyMg==") == "sent: ***"


def test_a_path_is_decoded_once_and_the_url_of_a_file_has_neither_a_host_nor_a_query_nor_a_null_character() -> None:
    paths = {"file:/run/a%20b": "/run/a b", "file:100%2541": "100%41", "file:": ""}
    assert {text: Url.parse(text).file_path for text in paths} == paths
    for text, part in {"file://run/app.pid": "host", "file:///run/x?y": "path", "file:/run/%00": "path"}.items():
        assert invalid_part(text, lambda url: url.file_path) == part
