"""From what a configuration says to the fields of a kind, whatever it says."""

from __future__ import annotations

import datetime
import math
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from pathlib import Path  # noqa: TC003  read from a type when it runs
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.net.url import Url  # noqa: TC001  as above
from svcnode.probes import KINDS, make_probe
from svcnode.probes.base import UrlProbe
from svcnode.probes.options import (
    Count,
    RawBytes,
    Seconds,
    Size,
    Strings,
    Table,
    non_negative_int,
    one_of,
    parse_options,
    raw_bytes,
    seconds,
    size,
    strings,
    table,
)
from svcnode.probes.regex import Pattern, pattern

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FullProbe(UrlProbe):
    """One option of every sort."""

    needed: str
    response_text: str = ""
    number: int = 0
    share: float = 0.0
    is_on: bool = False
    maybe: int | None = None
    wait: Seconds | None = None
    timeout_list: Size = 0
    body: RawBytes = b""
    form: Pattern = ""
    text: Strings = ()
    more_findings: Table = field(default_factory=dict)
    times: Count = 0
    made: int = field(init=False, default=7)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlainProbe(UrlProbe):
    pass


def option(name: str, value: object) -> Any:
    return parse_options(FullProbe, {"needed": "", name: value})[name]


def refusal(make: Callable[[object], object], value: object) -> str:
    with pytest.raises(InvalidValueError) as caught:
        make(value)
    return str(caught.value)


# ---- fields


@pytest.mark.parametrize(
    ("name", "value", "made"),
    [
        ("word", "x", "x"),
        ("number", -3, -3),
        ("share", 0.5, 0.5),
        ("share", 2, 2.0),
        ("is_on", True, True),
        ("maybe", 4, 4),
        ("wait", "1.5s", 1.5),
        ("room", "5KiB", 5120),
        ("body", "é", b"\xc3\xa9"),
        ("body", {"hex": "00 fF"}, b"\x00\xff"),
        ("form", "^a+$", "^a+$"),
        ("words", ["a", "b"], ("a", "b")),
        ("more", {"a": 1}, {"a": 1}),
        ("times", 0, 0),
    ],
)
def test_an_option_becomes_what_its_field_holds(name: str, value: object, made: object) -> None:
    assert option(name, value) == made
    assert type(option(name, value)) is type(made)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("word", 1, "must be a string, not a whole number"),
        ("number", "1", "must be a whole number, not a string"),
        ("number", True, "must be a whole number, not true or false"),
        ("number", 1.0, "must be a whole number, not a number"),
        ("share", "0.5", "must be a number, not a string"),
        ("share", True, "must be a number, not true or false"),
        ("is_on", 1, "must be true or false, not a whole number"),
        ("maybe", [], "must be a whole number, not a list"),
        ("word", datetime.date(2026, 1, 1), "must be a string, not a date or time"),
        ("wait", "soon", '"soon" is not a duration'),
        ("times", -1, "must be a whole number from 0 on, not -1"),
    ],
)
def test_a_refusal_names_the_option_and_what_is_wrong(name: str, value: object, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        option(name, value)
    assert caught.value.option == name
    assert caught.value.text.startswith(said)
    assert str(caught.value) == f"{name}: {caught.value.text}"


def test_an_unknown_option_is_offered_the_nearest_one() -> None:
    with pytest.raises(OptionError, match='wrod: unknown option; did you mean "word"'):
        option("wrod", "x")


@pytest.mark.parametrize("name", ["url", "made", "_made", "permission"])
def test_what_is_no_option_cannot_be_set_as_one(name: str) -> None:
    with pytest.raises(OptionError, match="unknown option; "):
        option(name, 1)


def test_a_kind_without_options_says_that_it_takes_none() -> None:
    with pytest.raises(OptionError, match="x: unknown option; it takes none"):
        parse_options(PlainProbe, {"x": 1})
    assert parse_options(PlainProbe, {}) == {}


def test_an_option_without_a_default_is_needed() -> None:
    with pytest.raises(OptionError, match="needed: is missing, and is needed here"):
        parse_options(FullProbe, {})


# ---- makers


@pytest.mark.parametrize(("value", "hint"), [(5, '"5s"'), (0.5, '"0.5s"')])
def test_seconds_without_a_unit_are_offered_one(value: float, hint: str) -> None:
    assert refusal(seconds, value).endswith(f"write {hint}")


@pytest.mark.parametrize("value", [-1, -0.5, math.inf, math.nan, True])
def test_what_could_be_no_duration_is_offered_no_unit(value: float) -> None:
    assert refusal(seconds, value).startswith("must be a string, not ")


def test_a_size_without_a_unit_is_offered_one() -> None:
    assert refusal(size, 512) == 'must be a string with a unit, not a whole number; write "512B"'
    assert refusal(size, True) == "must be a string, not true or false"
    assert refusal(size, 1.5) == "must be a string, not a number"


@pytest.mark.parametrize("value", [1, [], {}, {"hex": 1}, {"hex": "00", "more": 1}, {"text": "x"}])
def test_bytes_are_text_or_hexadecimal_digits(value: object) -> None:
    assert refusal(raw_bytes, value).startswith('must be a string or { hex = "00 ff" }, not ')


@pytest.mark.parametrize("digits", ["0", "xy", "0x00", "é"])
def test_hexadecimal_digits_come_in_pairs(digits: str) -> None:
    assert refusal(raw_bytes, {"hex": digits}) == f'"{digits}" is not pairs of hexadecimal digits'


@pytest.mark.parametrize("text", ["(", "[", "a{99999999999999999999}", "(?P<n>a"])
def test_what_is_no_regular_expression_is_refused(text: str) -> None:
    assert refusal(pattern, text).startswith("not a regular expression: ")


@pytest.mark.parametrize("value", ["a", [1], ["a", None], {"a": "b"}])
def test_strings_are_a_list_of_nothing_else(value: object) -> None:
    assert refusal(strings, value).startswith("must be a list of strings, not ")


def test_a_table_is_a_table() -> None:
    assert refusal(table, []) == "must be a table, not a list"


@pytest.mark.parametrize(
    ("value", "shown"), [(-1, "-1"), (True, "true or false"), (1.0, "a number"), ("1", "a string")]
)
def test_a_count_is_a_whole_number_from_0_on(value: object, shown: str) -> None:
    assert refusal(non_negative_int, value) == f"must be a whole number from 0 on, not {shown}"


@pytest.mark.parametrize("name", ["primary", "replica"])
def test_a_choice_is_one_of_its_names(name: str) -> None:
    assert one_of("primary", "replica")(name) == name


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("master", '"master"'),
        ("Primary", '"Primary"'),
        ("", '""'),
        (True, "true or false"),
        (1, "a whole number"),
        (["primary"], "a list"),
        ({"primary": "replica"}, "a table"),
        (datetime.date(2026, 1, 1), "a date or time"),
    ],
)
def test_what_is_no_choice_is_shown_those_that_are(value: object, shown: str) -> None:
    assert refusal(one_of("primary", "replica"), value) == f'must be one of "primary", "replica", not {shown}'


# ---- every kind, whatever it is told

WORDS = [
    "",
    "5s",
    "5GiB",
    "10%",
    "2xx",
    "200-204",
    "/status",
    "GET",
    "a\0b",
    "a\r\nX: y",
    "値",
    "[",
    "${HOME}",
    "/",
    "\udcff",
]
VALUES = st.recursive(
    st.one_of(
        st.sampled_from(WORDS),
        st.text(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.dates(),
        st.times(),
        st.datetimes(),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.sampled_from(["hex", "file", "/a", "X-Key"]), inner, max_size=3)
    ),
    max_leaves=6,
)
URLS = ["{}:", "{}:/some/path", "{}:30s", "{}://127.0.0.1:1", "{}://me:pw@127.0.0.1:1/path?query"]

generating = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


def kind_of_scheme(scheme: str) -> type:
    module, name = KINDS[scheme].partition(" ")[0].split(":")
    try:
        kind: type = getattr(import_module(module), name)
    except ModuleNotFoundError:
        pytest.skip("its driver is not installed")
    return kind


def options_of(kind: type) -> list[str]:
    return [one.name for one in fields(kind) if one.init and one.name != "url"]


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@pytest.mark.parametrize("scheme", KINDS)
def test_whatever_an_option_is_told_it_is_made_or_refused_by_name(scheme: str) -> None:
    kind = kind_of_scheme(scheme)
    names = options_of(kind) or ["none"]
    needed = {one.name for one in fields(kind) if one.name in names and one.default is one.default_factory is MISSING}

    @generating
    @given(name=st.sampled_from(names), value=VALUES)
    @example(name=names[0], value={"file": "no-such-file"})
    def check(name: str, value: object) -> None:
        given_ = dict.fromkeys(needed, "needed") | {name: value}
        blamed = None
        try:
            made = parse_options(kind, given_)
        except OptionError as exc:
            blamed = exc.option
        assert made.keys() == given_.keys() if blamed is None else blamed in given_

    check()


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@pytest.mark.parametrize("scheme", KINDS)
def test_whatever_it_is_told_a_kind_is_made_or_refused_in_words(scheme: str) -> None:
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


# ---- kinds of other people, whose types may be anything


@dataclass(frozen=True)
class WithAType:
    url: Url
    folder: Path | None = None


@dataclass(frozen=True)
class WithANameNobodyKnows:
    url: Url
    folder: NotImported | None = None  # type: ignore[name-defined]  # noqa: F821


def test_an_option_of_a_type_that_nothing_makes_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^folder: cannot be made from a configuration: nothing says how to make a "):
        parse_options(WithAType, {"folder": "/var"})


def test_types_that_cannot_be_read_are_told_in_one_line() -> None:
    with pytest.raises(ProbeError, match=r"the options of WithANameNobodyKnows cannot be read from its types: name "):
        parse_options(WithANameNobodyKnows, {"folder": "/var"})
