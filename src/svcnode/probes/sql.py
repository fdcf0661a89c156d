"""The options `query`, `require` and `starting` of databases: conditions on the first row that a query returns.

    waiting < 1000              a column, in any case; in quotation marks if it has other characters than a-z, 0-9 and _
    value == 0                  the first column
    age of newest <= 10m        a time; without a time zone, it is UTC

Without `require`, the first column must be true.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.option_types import option_type
from svcnode.core.text import excerpt
from svcnode.probes.base import CheckError
from svcnode.probes.conditions import (
    Compare,
    Condition,
    ConditionalProbe,
    Problem,
    Value,
    conditions_schema,
    judge,
    parse_conditions,
    show_conditions,
)
from svcnode.probes.json_pointer import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.probes.conditions import Reader


@dataclass(frozen=True, slots=True)
class Row:
    """The first row of a result; without columns if the result has no row."""

    names: tuple[str, ...] = ()
    values: tuple[object, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str], values: Iterable[object]) -> Row:
        return cls(tuple(names), tuple(map(_convert, values)))


def _convert(value: object) -> object:
    """The types of drivers as those that conditions know: as texts, such as UUIDs, unless they are values of JSON."""
    match value:
        case None | bool() | int() | float() | Decimal() | str() | dict():
            return value
        case list() | tuple():
            return [*map(_convert, value)]
        case date():  # a datetime, too
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode("utf-8", "replace")
        case _:
            return str(value)


def _first_value(row: Row) -> object:
    return row.values[0] if row.values else MISSING


def _column_value(row: Row, *, name: str) -> object:
    if not row.names:
        return MISSING
    found = [value for known, value in zip(row.names, row.values, strict=True) if known.lower() == name.lower()]
    if len(found) != 1:
        number = "several columns" if found else "no column"
        names = excerpt(", ".join(row.names))
        raise CheckError(f'the query returns {number} "{name}", but {names}', ReasonCode.UNEXPECTED_RESPONSE)
    return found[0]


def column(reader: Reader) -> Value:
    if reader.take(r"value\b"):
        return Value("the value", _first_value)
    found = reader.take(r"[^\W\d]\w*")
    name = found[0] if found else reader.take_text()
    if not name:
        raise reader.error('the name of a column, or "value" for the first one')
    return Value(name, partial(_column_value, name=name))


@option_type(conditions_schema(r"""([^\W\d]\w*|"[^"]+"|'[^']+')"""), show=show_conditions)
def sql_conditions(value: object) -> tuple[Condition, ...]:
    return parse_conditions(value, column, "waiting < 1000")


SqlConditions = Annotated[tuple[Condition, ...], sql_conditions]


class SqlProbe(ConditionalProbe):
    __slots__ = ()

    query: str

    has_booleans: ClassVar[bool] = True  # otherwise true is 1

    def validate_query(self) -> None:
        for option, conditions in (("require", self.require), ("starting", self.starting)):
            if conditions and not self.query:
                raise OptionError(option, "looks at the result of query; set that too")
            for condition in conditions:
                test = condition.test
                if not self.has_booleans and isinstance(test, Compare) and isinstance(test.wanted, bool):
                    raise OptionError(option, f"{condition.text!r}: this database has 1 and 0 for true and false")

    async def find_row_problem(self, row: Row) -> Problem | None:
        problem = await judge(self.starting, self.require, row)
        if problem is not None:
            return problem if row.names else problem._replace(text=f"the query returned no row: {problem.text}")
        if self.require or self._is_true(_first_value(row)):
            return None
        return Problem("the query did not return true" if row.names else "the query returned no row")

    def _is_true(self, value: object) -> bool:
        return value is True if self.has_booleans else type(value) is int and value == 1
