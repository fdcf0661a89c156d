from __future__ import annotations

import datetime
import types
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from svcnode.config.schema import FileTable, ServiceTable
from svcnode.config.sources import Override, Source
from svcnode.config.validate import validate_file
from svcnode.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.config.schema import KeyPath

# One value of each kind that TOML knows; none is a word that some key has a use for.
ONE_OF_EACH: dict[type, object] = {
    str: "a text",
    int: 7,
    float: 1.5,
    bool: True,
    list: [],
    dict: {},
    datetime.datetime: datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    datetime.date: datetime.date(2026, 1, 1),
    datetime.time: datetime.time(12),
}


def source(data: dict[str, Any]) -> Source:
    return Source(None, {}, [Override((table,), value, "--data") for table, value in data.items()])


def with_value(path: KeyPath, value: object) -> Source:
    """A configuration in which only this value can be wrong."""
    data: dict[str, Any] = {"services": [{"id": "db", "status": "Up"}]}
    inner: Any = data
    for key in path[:-1]:
        inner = inner[key] if isinstance(key, int) else inner.setdefault(key, {})
    inner[path[-1]] = value
    return source(data)


def keys_of(table: type, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    for key, hint in get_type_hints(table).items():
        yield (*path, key), hint
        if is_typeddict(hint):
            yield from keys_of(hint, (*path, key))


ALL_KEYS = [*keys_of(FileTable), *keys_of(ServiceTable, ("services", 0))]


def kinds_in(hint: Any) -> set[type]:
    if is_typeddict(hint):
        return {dict}
    if get_origin(hint) is Literal:
        return set()  # not even any text will do
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return {get_origin(one) or one for one in options}


WRONG = [
    pytest.param(path, value, id=f"{'.'.join(map(str, path))}-{kind.__name__}")
    for path, hint in ALL_KEYS
    for kind, value in ONE_OF_EACH.items()
    if kind not in kinds_in(hint)
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_no_key_takes_a_value_of_another_kind(path: KeyPath, value: object) -> None:
    given = with_value(path, value)
    with pytest.raises(ConfigError) as refused:
        validate_file(given)
    assert str(refused.value).startswith(f"{given.display_path(path)}: must be ")


TAKEN = [
    pytest.param(path, ONE_OF_EACH[kind], id=f"{'.'.join(map(str, path))}-{kind.__name__}")
    for path, hint in ALL_KEYS
    for kind in sorted(kinds_in(hint) - {dict}, key=str)
]


@pytest.mark.parametrize(("path", "value"), TAKEN)
def test_every_key_takes_a_value_of_its_kind(path: KeyPath, value: object) -> None:
    given = with_value(path, value)
    if path[:2] == ("server", "tls"):
        given.data["server"]["tls"] = {"certificate": "a", "key": "b"} | given.data["server"]["tls"]
    assert validate_file(given) == given.data


WORDS = [
    pytest.param(path, word, id=f"{'.'.join(map(str, path))}-{word}")
    for path, hint in ALL_KEYS
    if get_origin(hint) is Literal
    for word in get_args(hint)
]


@pytest.mark.parametrize(("path", "word"), WORDS)
def test_a_choice_takes_each_of_its_words_and_no_other_spelling(path: KeyPath, word: str) -> None:
    assert validate_file(with_value(path, word))
    with pytest.raises(ConfigError, match=f'not "{word.swapcase()}"; did you mean "{word}"\\?'):
        validate_file(with_value(path, word.swapcase()))


@pytest.mark.parametrize("path", sorted({path[:-1] for path, _ in ALL_KEYS}, key=str), ids=str)
def test_no_table_takes_a_key_it_does_not_know(path: KeyPath) -> None:
    given = with_value((*path, "xyzzy"), 1)
    with pytest.raises(ConfigError) as refused:
        validate_file(given)
    assert str(refused.value).startswith(f"{given.display_path((*path, 'xyzzy'))}: unknown key; known ones: ")


def test_nothing_at_all_is_a_configuration() -> None:
    assert validate_file(source({})) == {}


@pytest.mark.parametrize("missing", ["certificate", "key"])
def test_a_key_that_must_be_there_is_missed(missing: str) -> None:
    tls = {"certificate": "a", "key": "b"}
    del tls[missing]
    with pytest.raises(ConfigError, match=f"server.tls: {missing} is missing"):
        validate_file(source({"server": {"tls": tls}}))


def test_the_first_thing_that_does_not_fit_is_the_one_that_is_told() -> None:
    with pytest.raises(ConfigError, match=r"node\.name: must be a string"):
        validate_file(source({"node": {"name": 1, "x": 2}, "y": 3}))


def test_a_wrong_value_from_the_environment_is_told_by_its_name_there() -> None:
    with pytest.raises(ConfigError) as refused:
        validate_file(Source(None, {"SVCNODE_DEFAULTS_FALL": "three"}, ()))
    assert str(refused.value) == (
        "defaults.fall: must be a whole number, not a string (environment variable SVCNODE_DEFAULTS_FALL)"
    )
