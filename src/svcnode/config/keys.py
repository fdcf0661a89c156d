"""How the tables of the configuration are declared; tables.py declares them.

A table is a class, and each of its keys an attribute: `drain = value(duration(at_most="1h"), doc="…")`. The first
argument converts a TOML value and raises `InvalidValueError`, as for the options of probes. The class attribute is then
the default; an instance has the values of one table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar, cast, overload

from svcnode.core.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

KeyPath = tuple[str | int, ...]  # ("services", 0, "probe")
T = TypeVar("T")
AnyTable = TypeVar("AnyTable", bound="Table")


class Key(NamedTuple):
    parse: Callable[[object], Any]
    doc: str  # in Markdown, without the last full stop; links are relative to docs/
    default: Any = None  # as in TOML; None: there is none, or it is not a fixed value
    default_text: str = ""  # in Markdown, if it is not a fixed value
    is_required: bool = False
    is_secret: bool = False  # `${NAME}` and `{ file = "…" }` are replaced, and the value is never shown
    is_free_table: bool = False  # a table whose keys are not declared here
    table: type[Table] | None = None  # of a table inside this one

    def value_from(self, given: object, environ: Mapping[str, str]) -> Any:  # noqa: ANN401  of the type of the key
        if not self.is_secret:
            return self.parse(given)
        from svcnode.core.redaction import register_secret
        from svcnode.probes.interpolate import interpolate

        text = interpolate(given, environ)
        if not isinstance(text, str):
            raise InvalidValueError('must be a string, "${NAME}", or { file = "…" }')
        value = self.parse(text)
        register_secret(text)
        return value


@overload
def value(parse: Callable[[object], T], *, doc: str, default: object, is_secret: bool = ...) -> T: ...
@overload
def value(parse: Callable[[object], T], *, doc: str, is_required: Literal[True], is_secret: bool = ...) -> T: ...
@overload
def value(
    parse: Callable[[object], T], *, doc: str, default_text: str = ..., is_secret: bool = ..., is_free_table: bool = ...
) -> T | None: ...
def value(parse: Callable[[object], Any], *, doc: str, **options: Any) -> Any:
    return Key(parse, doc, **options)


def inner_table(table: type[AnyTable]) -> AnyTable | None:
    """A table inside a table; None if it is not given."""
    return cast("AnyTable", Key(_no_value, "", table=table))


def _no_value(value: object) -> None:
    raise NotImplementedError  # a table is read key by key, not as one value


class Table:
    """A table that was read. A key with an error has its default, or None if it is required."""

    keys: ClassVar[dict[str, Key]] = {}
    # Keys of earlier versions, and the text of the error.
    retired: ClassVar[Mapping[str, str]] = {}
    # What a JSON Schema can say about several keys.
    rules: ClassVar[Mapping[str, Any]] = {}

    given: Mapping[str, Any]  # as written
    wrong: set[str]  # the keys with an error. Rules about several keys are applied only to keys without

    def __init_subclass__(cls) -> None:
        own = {name: key for name, key in vars(cls).items() if isinstance(key, Key)}
        inherited = {name: key for base in cls.__bases__ for name, key in vars(base)["keys"].items()}
        cls.keys = own | {name: key for name, key in inherited.items() if name not in own}
        for name, key in own.items():
            setattr(cls, name, None if key.default is None else key.parse(key.default))

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.wrong = set()

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def is_right(self, *names: str) -> bool:
        """Whether all of these keys are free of errors."""
        return self.wrong.isdisjoint(names)

    def given_keys(self, names: Collection[str]) -> dict[str, Any]:
        """Which of these keys are given, as they are written."""
        return {name: self.given[name] for name in names if name in self.given}
