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

# One value of each TOML type; none is a valid choice of any key.
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
    """A configuration in which only this value can be invalid."""
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


def types_in(hint: Any) -> set[type]:
    if is_typeddict(hint):
        return {dict}
    if get_origin(hint) is Literal:
        return set()  # a choice accepts only some strings
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return {get_origin(one) or one for one in options}


WRONG_TYPES = [
    pytest.param(path, value, id=f"{'.'.join(map(str, path))}-{kind.__name__}")
    for path, hint in ALL_KEYS
    for kind, value in ONE_OF_EACH.items()
    if kind not in types_in(hint)
]


@pytest.mark.parametrize(("path", "value"), WRONG_TYPES)
def test_a_value_of_another_type_is_refused(path: KeyPath, value: object) -> None:
    given = with_value(path, value)
    with pytest.raises(ConfigError) as caught:
        validate_file(given)
    assert caught.value.key == given.display_path(path)


RIGHT_TYPES = [
    pytest.param(path, ONE_OF_EACH[kind], id=f"{'.'.join(map(str, path))}-{kind.__name__}")
    for path, hint in ALL_KEYS
    for kind in sorted(types_in(hint) - {dict}, key=str)
]


@pytest.mark.parametrize(("path", "value"), RIGHT_TYPES)
def test_a_value_of_the_right_type_is_accepted(path: KeyPath, value: object) -> None:
    given = with_value(path, value)
    if path[:2] == ("server", "tls"):
        given.data["server"]["tls"] = {"certificate": "a", "key": "b"} | given.data["server"]["tls"]
    assert validate_file(given) == given.data


CHOICES = [
    pytest.param(path, word, id=f"{'.'.join(map(str, path))}-{word}")
    for path, hint in ALL_KEYS
    if get_origin(hint) is Literal
    for word in get_args(hint)
]


@pytest.mark.parametrize(("path", "word"), CHOICES)
def test_a_choice_is_accepted_only_in_its_spelling(path: KeyPath, word: str) -> None:
    assert validate_file(with_value(path, word))
    misspelt = with_value(path, word.swapcase())
    with pytest.raises(ConfigError, match=f'"{word}"') as caught:
        validate_file(misspelt)
    assert caught.value.key == misspelt.display_path(path)


@pytest.mark.parametrize("path", sorted({path[:-1] for path, _ in ALL_KEYS}, key=str), ids=str)
def test_an_unknown_key_is_refused_in_every_table(path: KeyPath) -> None:
    given = with_value((*path, "xyzzy"), 1)
    with pytest.raises(ConfigError) as caught:
        validate_file(given)
    assert caught.value.key == given.display_path((*path, "xyzzy"))


def test_an_empty_configuration_is_valid() -> None:
    assert validate_file(source({})) == {}


@pytest.mark.parametrize("missing", ["certificate", "key"])
def test_a_missing_required_key_is_refused(missing: str) -> None:
    tls = {"certificate": "a", "key": "b"}
    del tls[missing]
    with pytest.raises(ConfigError, match=f'"{missing}"') as caught:
        validate_file(source({"server": {"tls": tls}}))
    assert caught.value.key == "server.tls"


def test_the_first_error_is_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        validate_file(source({"node": {"name": 1, "x": 2}, "y": 3}))
    assert caught.value.key == "node.name"


def test_an_invalid_value_of_the_environment_names_its_variable() -> None:
    with pytest.raises(ConfigError, match="SVCNODE_DEFAULTS_FALL") as caught:
        validate_file(Source(None, {"SVCNODE_DEFAULTS_FALL": "three"}, ()))
    assert (caught.value.key, caught.value.file) == ("defaults.fall", None)
