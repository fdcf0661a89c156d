"""URLs in their parts, and what is shown of them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from svcnode.core.errors import ProbeError
from svcnode.core.redaction import redacted
from svcnode.net.url import Url
from svcnode.probes.interpolate import interpolate_url

# What URLs are made of, so that what is generated gets further than the first check.
PIECES = ["http", "tcp", ":", "/", "//", "?", "#", "@", "[", "]", "::1", "%", "%00", "%e9", "%zz", "h", "80", "é", "\0"]


def anything() -> st.SearchStrategy[str]:
    everything = st.characters(exclude_categories=())  # halves of characters too, as a command line may hold them
    of_pieces = st.lists(st.one_of(st.sampled_from(PIECES), everything), max_size=20).map("".join)
    return st.one_of(st.text(everything), of_pieces, of_pieces.map("http://".__add__))


# ---- parts


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("tcp://db:5432", Url(scheme="tcp", host="db", port=5432)),
        ("tcp://db", Url(scheme="tcp", host="db")),
        ("tcp://db:", Url(scheme="tcp", host="db")),
        ("HTTP://Db/A%20b", Url(scheme="http", host="Db", path="/A%20b")),
        ("http://h?k=v", Url(scheme="http", host="h", query="k=v")),
        ("http://h/p?k=/?#part", Url(scheme="http", host="h", path="/p", query="k=/?")),
        ("http://me@h", Url(scheme="http", host="h", username="me")),
        ("http://me:pw@h:1/", Url(scheme="http", host="h", port=1, path="/", username="me", password="pw")),
        ("http://:pw@h", Url(scheme="http", host="h", password="pw")),
        ("http://a%40b:p%2Fw@h", Url(scheme="http", host="h", username="a@b", password="p/w")),
        ("http://me:p:w@x@h", Url(scheme="http", host="h", username="me", password="p:w@x")),
        ("svc+https://[::1]:443/svc", Url(scheme="svc+https", host="::1", port=443, path="/svc")),
        ("tcp://[0:0::0:1]:1", Url(scheme="tcp", host="::1", port=1)),
        ("file:/run/app.pid", Url(scheme="file", path="/run/app.pid")),
        ("file:///run/app.pid", Url(scheme="file", path="/run/app.pid")),
        ("exec:/bin/check a ?b #c", Url(scheme="exec", path="/bin/check a ?b #c")),
        ("heartbeat:30s", Url(scheme="heartbeat", path="30s")),
        ("exec:", Url(scheme="exec")),
    ],
)
def test_a_url_is_taken_apart(text: str, url: Url) -> None:
    assert Url.parse(text) == url


@pytest.mark.parametrize(
    "text", ["", "db", "//db:1", "127.0.0.1:5432", "/run/app.pid", ":x", "ü:x", "1tcp://h", " tcp:"]
)
def test_what_has_no_scheme_is_refused(text: str) -> None:
    with pytest.raises(ProbeError, match="begins with a scheme and a colon, such as tcp://"):
        Url.parse(text)


@pytest.mark.parametrize("text", ["tcp://h\n:1", "tcp://h\0", "tcp://\x7f", "exec:a\tb", "http://h/\udcff"])
def test_what_is_no_line_of_text_is_refused(text: str) -> None:
    with pytest.raises(ProbeError, match="must not hold control characters, nor what is not UTF-8"):
        Url.parse(text)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "1e3", "8 0", "٣", "9" * 5000, "0000080000"])
def test_a_port_is_a_number_that_a_port_can_have(port: str) -> None:
    with pytest.raises(ProbeError, match="a port is a number from 1 to 65535"):
        Url.parse(f"tcp://db:{port}")


@pytest.mark.parametrize("host", ["[::g]", "[]", "[127.0.0.1]"])
def test_what_stands_in_brackets_is_an_ipv6_address(host: str) -> None:
    with pytest.raises(ProbeError, match="not an IPv6 address: "):
        Url.parse(f"tcp://{host}:1")


@pytest.mark.parametrize("host", ["[::1]x", "[::1", "x[::1]"])
def test_brackets_stand_around_the_whole_host(host: str) -> None:
    with pytest.raises(ProbeError, match="not a URL of the form tcp://host:port/path"):
        Url.parse(f"tcp://{host}:1")


@given(anything())
@example("http://u:\ud800@h")
@example("http://[::1%é]")
def test_any_text_is_a_url_or_an_error_that_says_so(text: str) -> None:
    try:
        url = Url.parse(text)
    except ProbeError:
        return
    assert str(url).startswith(f"{url.scheme}:")
    for need in (url.require_host, url.require_port, url.reject_path, url.reject_credentials, lambda: url.file_path):
        try:
            need()
        except ProbeError:
            continue


# ---- secrets


@given(user=st.text(), password=st.text())
@example(user="a:b@c", password="/?#@:%00 ${HOME}$${x}\0\r\né🙂")
def test_what_is_put_in_comes_out_as_it_was(user: str, password: str) -> None:
    environ = {"USER_NAME": user, "PASSWORD": password}
    url = Url.parse(interpolate_url("http://${USER_NAME}:${PASSWORD}@db:1/x", environ))
    assert (url.username, url.password) == (user, password)
    assert (url.host, url.port, url.path) == ("db", 1, "/x")


@given(key=st.text())
def test_what_is_put_in_a_query_stays_in_its_place(key: str) -> None:
    url = Url.parse(interpolate_url("http://db/x?key=${KEY}&more=1", {"KEY": key}))
    assert url.path == "/x"
    assert url.query.count("&") == 1
    assert url.query.endswith("&more=1")


@pytest.mark.parametrize("password", ["hunter2", "pw", "%2F%2F"])
def test_neither_password_nor_query_is_shown(password: str) -> None:
    url = Url.parse(f"http://me:{password}@db:1/path?key=topsecret")
    assert str(url) == "http://me:***@db:1/path?***"
    assert repr(url) == "<Url http://me:***@db:1/path?***>"


def test_a_password_without_a_user_is_not_shown() -> None:
    assert str(Url.parse("redis://:hunter2@db")) == "redis://:***@db"


def test_a_password_is_known_as_a_secret_from_then_on() -> None:
    Url.parse("http://me:hunter%202@db")
    assert redacted("wrong: hunter 2, hunter%202") == "wrong: ***, ***"


def test_a_password_that_somebody_else_sent_is_hidden_and_forgotten() -> None:
    url = Url.parse("http://me:Down@elsewhere", register_secrets=False)
    assert str(url) == "http://me:***@elsewhere"
    assert redacted("service db is Down") == "service db is Down"


HEX_KEY, MIXED_KEY, UUID = "9aa3d95b3bc440fa88ea12eaa4456161", "Xk2-9sDfaZ_q81LpW0vTn3", "6f1c3a52-07de-4b0a-9c1e-2a"


@pytest.mark.parametrize("key", [HEX_KEY, MIXED_KEY, UUID])
@pytest.mark.parametrize("text", ["http://db/v3/{}", "https://db/{}/mainnet", "http://{}@db:1/", "ws://db/bot1:{}"])
def test_what_looks_like_a_key_is_not_shown_and_is_known_as_a_secret_from_then_on(text: str, key: str) -> None:
    url = Url.parse(text.format(key))
    assert str(url) == text.format("***")
    assert redacted(f"who is {key}?") == "who is ***?"


def test_a_key_in_the_query_is_hidden_wherever_it_is_repeated() -> None:
    Url.parse(f"http://db/?key={HEX_KEY}")
    assert redacted(f"invalid: {HEX_KEY}") == "invalid: ***"


def test_a_key_is_told_from_the_percent_forms_around_it() -> None:
    assert str(Url.parse(f"http://db/a%20b%3D{HEX_KEY}%3D%3D")) == "http://db/a%20b%3D***%3D%3D"
    assert redacted(f"a b={HEX_KEY}==") == "a b=***=="


def test_a_key_that_somebody_else_sent_is_no_secret_of_ours() -> None:
    Url.parse(f"http://elsewhere/{HEX_KEY}", register_secrets=False)
    assert redacted(HEX_KEY) == HEX_KEY


@pytest.mark.parametrize("text", [f"file:/run/{HEX_KEY}/pid", f"file:///run/{HEX_KEY}/pid", f"disk:/mnt/{UUID}"])
def test_the_path_of_a_file_is_shown_whatever_it_looks_like(text: str) -> None:
    assert str(Url.parse(text)).endswith(text.removeprefix("file:").removeprefix("//").removeprefix("disk:"))


@pytest.mark.parametrize("text", ["http://db/v3/{}", "exec:/bin/check {}", "http://{}@db", "file:/run/{}"])
def test_a_secret_in_any_other_place_is_not_shown(text: str) -> None:
    url = Url.parse(interpolate_url(text.format("${KEY}"), {"KEY": "top secret"}))
    assert str(url) == text.format("***")
    assert "secret" not in repr(url)


@pytest.mark.parametrize(
    "text", ["http://me:hun/ter2@db", "http://me:hun?ter2@db", "http://me@corp:hunter2@db", "http://me:hun#ter2@db"]
)
def test_a_password_that_lacks_its_percent_form_is_not_shown_as_a_port(text: str) -> None:
    with pytest.raises(ProbeError, match="in a password is written in its %-form") as caught:
        Url.parse(text)
    assert "hun" not in str(caught.value)


# ---- what kinds ask of it


@pytest.mark.parametrize(("text", "place"), [("tcp://db:1", "db:1"), ("tcp://[::1]:1", "[::1]:1"), ("tcp://db", "db")])
def test_the_place_is_written_as_in_a_url(text: str, place: str) -> None:
    assert Url.parse(text).host_port == place


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ProbeError, match="names no host; write tcp://host:port"):
        Url.parse("tcp:5432").require_host()
    with pytest.raises(ProbeError, match="names no port; write tcp://db:port"):
        Url.parse("tcp://db").require_port()
    assert Url.parse("tcp://db:1").require_host() == "db"
    assert Url.parse("tcp://db:1").require_port() == 1


@pytest.mark.parametrize("host", ["a..b", "h%0d%0aX-Key:1", "a%20b", "x" * 64])
def test_a_host_that_could_never_be_found_is_refused(host: str) -> None:
    with pytest.raises(ProbeError, match=r"its host is not a name as the network knows them$"):
        Url.parse(f"http://{host}/").require_host()


@pytest.mark.parametrize("host", ["bücher.example", "b%C3%BCcher.example"])
def test_a_host_in_other_letters_is_shown_as_the_network_knows_it(host: str) -> None:
    with pytest.raises(ProbeError, match=r'write "xn--bcher-kva\.example"'):
        Url.parse(f"http://{host}/").require_host()


@pytest.mark.parametrize("text", ["tcp://db:1/x", "tcp://db:1?x", "tcp://db:1/?x"])
def test_more_than_a_host_and_a_port_is_refused_where_only_those_count(text: str) -> None:
    with pytest.raises(ProbeError, match="names more than a host and a port; write tcp://db:1"):
        Url.parse(text).reject_path()


@pytest.mark.parametrize("text", ["tcp://db:1", "tcp://db:1/", "tcp://db:1?", "tcp://db:1#x"])
def test_a_host_and_a_port_alone_are_not_refused(text: str) -> None:
    Url.parse(text).reject_path()
    Url.parse(text).reject_credentials()


@pytest.mark.parametrize("text", ["tcp://me@db:1", "tcp://:pw@db:1"])
def test_a_user_is_refused_where_there_is_none(text: str) -> None:
    with pytest.raises(ProbeError, match="have no meaning for tcp"):
        Url.parse(text).reject_credentials()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:/run/a%20b", "/run/a b"),
        ("file:///run/app.pid", "/run/app.pid"),
        ("file:app.pid", "app.pid"),
        ("file:100%2541", "100%41"),
        ("file:", ""),
    ],
)
def test_a_path_is_decoded_once(text: str, path: str) -> None:
    assert Url.parse(text).file_path == path


@pytest.mark.parametrize("text", ["file://run/app.pid", "file://100%2541/x"])
def test_a_path_is_on_this_machine(text: str) -> None:
    with pytest.raises(ProbeError, match="names a host"):
        _ = Url.parse(text).file_path


@pytest.mark.parametrize("text", ["file:///run/x?y", "file:/run/%00"])
def test_a_path_has_neither_a_query_nor_nulls(text: str) -> None:
    with pytest.raises(ProbeError, match="takes no query and no null characters"):
        _ = Url.parse(text).file_path
