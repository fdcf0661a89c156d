"""Parsing the options of a kind from any TOML value."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path  # noqa: TC003  evaluated at run time
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.core.option_types import find_option_type
from svcnode.core.url import Url
from svcnode.probes import KINDS, make_probe
from svcnode.probes.base import UrlProbe
from svcnode.probes.options import (
    Count,
    RawBytes,
    Role,
    Seconds,
    Size,
    Strings,
    Table,
    WriteTarget,
    _strip_optional,
    parse_options,
    public_options,
)
from svcnode.probes.regex import Pattern


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FullProbe(UrlProbe):
    """One option of every type."""

    required: str
    word: str = ""
    number: int = 0
    share: float = 0.0
    is_on: bool = False
    maybe: int | None = None
    wait: Seconds | None = None
    capacity: Size = 0
    body: RawBytes = b""
    expression: Pattern = ""
    names: Strings = ()
    extra: Table = field(default_factory=dict)
    times: Count = 0
    derived: int = field(init=False, default=7)


def option(name: str, value: object) -> Any:
    return parse_options(FullProbe, {"required": "", name: value})[name]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("word", "x", "x"),
        ("number", -3, -3),
        ("share", 2, 2.0),
        ("is_on", True, True),
        ("maybe", 4, 4),
        ("wait", "1.5s", 1.5),
        ("capacity", "5KiB", 5120),
        ("body", "é", b"\xc3\xa9"),
        ("body", {"hex": "00 fF"}, b"\x00\xff"),
        ("expression", "^a+$", "^a+$"),
        ("names", ["a", "b"], ("a", "b")),
        ("extra", {"a": 1}, {"a": 1}),
        ("times", 0, 0),
    ],
)
def test_an_option_is_converted_to_the_type_of_its_field(name: str, value: object, expected: object) -> None:
    assert option(name, value) == expected
    assert type(option(name, value)) is type(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("word", 1),
        ("number", True),
        ("share", True),
        ("is_on", 1),
        ("maybe", []),
        ("wait", "soon"),
        ("extra", []),
        ("times", -1),
    ],
)
def test_an_invalid_option_is_named(name: str, value: object) -> None:
    with pytest.raises(OptionError) as caught:
        option(name, value)
    assert caught.value.option == name
    assert str(caught.value) == f"{name}: {caught.value.text}"


@pytest.mark.parametrize("name", ["url", "derived", "_derived", "permission"])
def test_a_field_that_is_not_an_option_cannot_be_set(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        option(name, 1)
    assert caught.value.option == name


def test_an_option_without_a_default_is_required() -> None:
    with pytest.raises(OptionError) as caught:
        parse_options(FullProbe, {})
    assert caught.value.option == "required"


WORDS = ["5s", "5GiB", "10%", "2xx", "200-204", "/status", "GET"]
TEXTS = [*WORDS, "", "値", "[", "${HOME}", "/", "\udcff", "a\0b", "a\r\nX: y"]
DATES = st.dates() | st.times() | st.datetimes()
VALUES = st.recursive(
    st.sampled_from(TEXTS) | st.text() | st.booleans() | st.integers() | st.floats() | DATES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.sampled_from(["hex", "file", "/a", "X-Key"]), inner, max_size=3)
    ),
    max_leaves=6,
)
URLS = ["{}:", "{}:/some/path", "{}:30s", "{}://127.0.0.1:1", "{}://me:pw@127.0.0.1:1/path?query"]

generating = settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])


def kind_of_scheme(scheme: str) -> type:
    module, name = KINDS[scheme].partition(" ")[0].split(":")
    try:
        kind: type = getattr(import_module(module), name)
    except ModuleNotFoundError:
        pytest.skip("its driver is not installed")
    return kind


def options_of(kind: type) -> list[str]:
    return [option.name for option in fields(kind) if option.init and option.name != "url"]


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@pytest.mark.parametrize("scheme", {target: scheme for scheme, target in KINDS.items()}.values())
def test_any_options_make_a_probe_or_a_probe_error(scheme: str) -> None:
    kind = kind_of_scheme(scheme)
    names = st.sampled_from([*options_of(kind), "unknown"])

    @generating
    @given(url=st.sampled_from(URLS), options=st.dictionaries(names, VALUES, max_size=3))
    def check(url: str, options: dict[str, Any]) -> None:
        try:
            probe = make_probe({**options, "url": url.format(scheme)}, environ={}, allowed={"allow_exec"})
        except ProbeError:
            return
        assert repr(probe).startswith(f"<{kind.__name__} ")

    check()


@dataclass(frozen=True)
class WithUnsupportedType:
    url: Url
    directory: Path | None = None


@dataclass(frozen=True)
class WithUnknownName:
    url: Url
    directory: NotImported | None = None  # type: ignore[name-defined]  # noqa: F821


def test_an_option_with_an_unsupported_type_or_one_that_cannot_be_evaluated_is_rejected() -> None:
    with pytest.raises(OptionError, match=r"^directory: "):
        parse_options(WithUnsupportedType, {"directory": "/var"})
    with pytest.raises(ProbeError, match="WithUnknownName"):
        parse_options(WithUnknownName, {"directory": "/var"})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AnyProbe(UrlProbe):
    flag: bool = False
    share: float = 0.0
    peers: Count = 0
    age: Seconds | None = None
    limit: Size = 0
    role: Role = ""
    write: WriteTarget = ""
    password: str = ""
    text_or_number: str | int = 0
    headers: Table = field(default_factory=dict)
    send: RawBytes = b""

    async def check(self) -> Verdict:
        return Verdict.ready()


SHOWN = {"flag": True, "share": 0.5, "peers": 3, "age": "1.5s", "limit": "2000B", "role": "primary", "write": "table"}


def test_options_that_cannot_hold_a_secret_are_shown_as_they_are_given_and_others_are_masked() -> None:
    url = Url.parse("any://host")
    assert public_options(AnyProbe(url, **parse_options(AnyProbe, SHOWN))) == SHOWN
    assert public_options(AnyProbe(url, write="svcnode_write")) == {"write": True}
    secrets = AnyProbe(url, password="1234", text_or_number="1234", headers={"X-Key": "1234"}, send=b"1234")
    assert public_options(secrets) == dict.fromkeys(["password", "text_or_number", "headers", "send"], "***")
    assert public_options(AnyProbe(url)) == public_options(object()) == {}


def test_options_whose_types_cannot_be_evaluated_are_masked() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True, repr=False)
    class BrokenProbe(UrlProbe):
        flag: NoSuchType = False  # type: ignore[name-defined]  # noqa: F821

        async def check(self) -> Verdict:
            return Verdict.ready()

    assert public_options(BrokenProbe(Url.parse("any://host"), flag=True)) == {"flag": "***"}


SECRET_OPTIONS = {
    *("password", "sentinel_password", "bearer", "token", "headers"),
    *("argv", "body", "params", "query", "send"),  # may be anything that the server needs
}


def is_public(hint: Any) -> bool:
    hint = _strip_optional(hint)
    return hint in (bool, int, float) or (
        get_origin(hint) is Annotated and find_option_type(get_args(hint)[1]).show is not None
    )


SHOWN_BY_KIND: list[dict[str, Any]] = [
    {
        "url": "http://h/x",
        "status": [200, "300-399"],
        "starting_status": [503],
        "contains": "ok",
        "matches": "o+k",
        "json": {"/status": ["ok", 1]},
        "method": "POST",
        "proxy": "http://proxy:3128",
    },
    {"url": "http://h/x", "proxy": "environment"},
    {"url": "disk:/", "min_free": "10%", "warn_free": "20GiB"},
    {"url": "grpc://h:1", "starting_status": ["NOT_SERVING"]},
    {"url": "tcp://h:1", "expect": "+PONG"},
    {"url": "tcp://h:1", "expect": {"hex": "ff 00"}},
    {"url": "amqp://h", "username": "monitor", "vhost": "v", "queue": "q"},
]


@pytest.mark.parametrize("table", SHOWN_BY_KIND, ids=lambda table: table["url"])
def test_the_options_of_our_kinds_are_shown_as_in_toml(table: dict[str, Any]) -> None:
    shown = public_options(make_probe(table))
    assert shown == {name: value for name, value in table.items() if name != "url"}
    assert make_probe({"url": table["url"], **shown}) == make_probe(table)


@pytest.mark.parametrize("scheme", sorted(KINDS))
def test_options_that_hold_a_secret_by_their_name_are_masked(scheme: str) -> None:
    kind = kind_of_scheme(scheme)
    hints = get_type_hints(kind, include_extras=True)
    assert not any(is_public(hints[option]) for option in set(options_of(kind)) & SECRET_OPTIONS)


@pytest.mark.parametrize(
    ("kind", "option"),
    [("ethereum+http", "account"), ("cometbft+http", "max_missed"), ("bitcoin+http", "max_block_age")],
)
def test_an_error_about_a_long_text_is_short(kind: str, option: str) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": f"{kind}://127.0.0.1:1", option: "9" * 200_000})
    assert len(str(caught.value)) < 1100
