"""Conditions on the values that a check reads, such as `require = ["/peers >= 3", "age of /time <= 30s"]`.

    VALUE == 3                 also !=, <, <=, > and >=; with a number, "a text", true, false or null
    VALUE contains "x"         a text in a text, or an item in a list
    VALUE matches "x.*y"       a regular expression that occurs in a text
    age of VALUE <= 30s        of a time: RFC 3339, or Unix time in s, ms, µs or ns
    VALUE advances within 5m   it must grow at least once in this time, from one check to another

What VALUE is depends on what the check reads. In a JSON document it is a JSON pointer such as `/result/height`, in
quotation marks if it has spaces, or `value`, which is all of it; for metrics see `metrics_page`, for SQL `sql`. Numbers
may also be texts, decimal or hexadecimal: "812" and "0x32c" are numbers. They have at most 100 digits, and an exponent
of at most three: what takes long to calculate, or cannot be calculated, is not a number, whoever has written it.
"""

from __future__ import annotations

import math
import operator
import re
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, OptionError
from svcnode.core.model import Outcome
from svcnode.core.option_types import option_type
from svcnode.core.text import truncate, type_name
from svcnode.core.units import format_limit, parse_duration_s
from svcnode.net.clock import monotonic_s
from svcnode.probes.base import MAX_CLOCK_SKEW_S
from svcnode.probes.json_pointer import MISSING, is_equal, json_excerpt, resolve_pointer
from svcnode.probes.regex import MATCH_TIMEOUT_S, pattern, pattern_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

MAX_CONDITION_CHARS = 1000
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_WORDS = {"true": True, "false": False, "null": None}
MAX_DIGITS = 100
_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)")
_MAX_NUMBER_CHARS = MAX_DIGITS + len("-.e+123")
_MAX_INT = 10**MAX_DIGITS
_MAX_TIME_CHARS = 64
# Unix times in units of seconds: until the year 5138, a number tells its unit by its size.
_MAX_FALLS = 2  # of a value that must advance
_UNIX_UNITS = ((1e11, 1.0), (1e14, 1e-3), (1e17, 1e-6), (math.inf, 1e-9))

Number = int | float | Decimal


class Problem(NamedTuple):
    """Why a condition does not hold."""

    text: str
    code: ReasonCode = ReasonCode.UNEXPECTED_RESPONSE
    outcome: Outcome = Outcome.FAILED


class Value(NamedTuple):
    """What a condition is about."""

    name: str
    find: Callable[[Any], object]  # in what the check has read; `MISSING` if it is not there


class Reader:
    """Reads the parts of a condition one after another. Its errors name the character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._last = 0  # where the last part begins

    def take(self, expression: str) -> re.Match[str] | None:
        """The next part, if it matches, without the spaces before it."""
        start = re.compile(r"\s*").match(self._text, self._at)
        self._at = start.end() if start else self._at
        found = re.compile(expression).match(self._text, self._at)
        if found is not None:
            self._last, self._at = found.span()
        return found

    def take_text(self) -> str | None:
        """Between quotation marks of either kind. A backslash stands for itself, as in a regular expression."""
        found = self.take(r'"([^"]*)"|\'([^\']*)\'')
        if found is None and self.take(r"""["']"""):
            raise self.error_before("a text that ends with the same quotation mark")
        return found and (found[1] if found[1] is not None else found[2])

    def expect_end(self) -> None:
        if not self.take(r"\Z"):
            raise self.error("the end of the condition")

    def error(self, expected: str) -> InvalidValueError:
        return self._error_at(self._at, expected)

    def error_before(self, expected: str) -> InvalidValueError:
        """The part that was taken last is not what was expected."""
        return self._error_at(self._last, expected)

    def _error_at(self, at: int, expected: str) -> InvalidValueError:
        rest = truncate(self._text[at:], 40)
        place = f'at character {at + 1}, "{rest}"' if rest else "at its end"
        return InvalidValueError(f"in the condition {self._text!r}, {place}: expected {expected}")


# ---- values as numbers and times


def as_number(value: object) -> Number | None:
    """None if it is not one, or not one of a usual size. True is not 1. A fraction is the one that is written: 0.1 is a
    tenth."""
    match value:
        case bool():
            return None
        case int():
            return value if abs(value) < _MAX_INT else None
        case float():
            return None if math.isnan(value) else Decimal(repr(value))
        case Decimal():
            return None if value.is_nan() else _of_usual_size(value)
        case str() if len(value) <= _MAX_NUMBER_CHARS and _NUMBER.fullmatch(value):
            return _parse_number(value)
        case _:
            return None


def _parse_number(text: str) -> Number | None:
    if "x" in text.lower():
        number = int(text, 16)
        return number if abs(number) < _MAX_INT else None
    return _of_usual_size(Decimal(text))


def _of_usual_size(number: Decimal) -> Decimal | None:
    return number if len(number.as_tuple().digits) <= MAX_DIGITS else None


def as_unix_time_s(value: object) -> float | None:
    """None if it is not a time. Without a time zone, a text is UTC."""
    if (number := as_number(value)) is not None:
        return _as_seconds(number)
    if not isinstance(value, str) or len(value) > _MAX_TIME_CHARS:
        return None
    try:
        found = datetime.fromisoformat(value.upper())  # RFC 3339 allows t and z
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _as_seconds(number: Number) -> float:
    return float(number) * next(unit for limit, unit in _UNIX_UNITS if abs(float(number)) <= limit)


# ---- what a condition tests


class Test(ABC):
    """Judges the value of a condition: `name` is how it is called."""

    @abstractmethod
    async def find_problem(self, name: str, value: object) -> Problem | None: ...


@dataclass(frozen=True, slots=True)
class Compare(Test):
    sign: str
    wanted: Any

    @property
    def is_with_number(self) -> bool:
        return isinstance(self.wanted, int | Decimal) and not isinstance(self.wanted, bool)

    async def find_problem(self, name: str, value: object) -> Problem | None:
        if value is MISSING:
            return Problem(f"{name} is missing")
        found, wanted = value, self.wanted
        if self.is_with_number:
            found = as_number(value)
            if found is None:
                return Problem(f"{name} is {json_excerpt(value)}, which is not a number")
            is_true = _COMPARISONS[self.sign](found, wanted)
        elif self.sign in ("==", "!="):
            is_true = is_equal(found, wanted) is (self.sign == "==")
        else:
            is_true = isinstance(found, str) and _COMPARISONS[self.sign](found, wanted)
        return None if is_true else Problem(f"{name} is {json_excerpt(value)}, expected {self._expected}")

    @property
    def _expected(self) -> str:
        shown = str(self.wanted) if isinstance(self.wanted, Decimal) else json_excerpt(self.wanted)
        return shown if self.sign == "==" else f"{self.sign} {shown}"


@dataclass(frozen=True, slots=True)
class Equals(Test):
    """The same JSON value: the text "3" is not the number 3."""

    wanted: Any

    async def find_problem(self, name: str, value: object) -> Problem | None:
        if value is MISSING:
            return Problem(f"{name} is missing")
        if is_equal(value, self.wanted):
            return None
        return Problem(f"{name} is {json_excerpt(value)}, expected {json_excerpt(self.wanted)}")


@dataclass(frozen=True, slots=True)
class Contains(Test):
    wanted: Any

    async def find_problem(self, name: str, value: object) -> Problem | None:
        match value:
            case str() if isinstance(self.wanted, str):
                is_true = self.wanted in value
            case list():
                is_true = any(self._is_wanted(item) for item in value)
            case _:
                what = "a text" if isinstance(self.wanted, str) else "a list"
                shown = "is missing" if value is MISSING else f"is {json_excerpt(value)}, which is not {what}"
                return Problem(f"{name} {shown}")
        if is_true:
            return None
        return Problem(f"{name} is {json_excerpt(value)}, which does not contain {json_excerpt(self.wanted)}")

    def _is_wanted(self, item: object) -> bool:
        """A fraction is the one that is written, as in `as_number`."""
        return is_equal(as_number(item) if isinstance(item, float) else item, self.wanted)


@dataclass(frozen=True, slots=True)
class Matches(Test):
    pattern: str
    shows_value: bool = True

    async def find_problem(self, name: str, value: object) -> Problem | None:
        if not isinstance(value, str):
            return Problem(f"{name} is missing" if value is MISSING else f"{name} is not a text")
        try:
            if await pattern_matches(self.pattern, value):
                return None
        except TimeoutError:
            return Problem(f'matching {name} with "{self.pattern}" took more than {MATCH_TIMEOUT_S:g} s')
        shown = f"{name} is {json_excerpt(value)}, which" if self.shows_value else name
        return Problem(f'{shown} does not match "{self.pattern}"')


@dataclass(frozen=True, slots=True)
class Age(Test):
    sign: str
    limit_s: float
    max_ahead_s: float = MAX_CLOCK_SKEW_S  # in the future

    async def find_problem(self, name: str, value: object) -> Problem | None:
        if value is MISSING:
            return Problem(f"{name} is missing")
        at_s = as_unix_time_s(value)
        if at_s is None:
            return Problem(f"{name} is {json_excerpt(value)}, which is not a time")
        age_s = time.time() - at_s
        if age_s < -self.max_ahead_s:
            text = f"{name} is {-age_s:.0f} s in the future: the clock of this machine or of the service is wrong"
            return Problem(text, ReasonCode.CLOCK_SKEW)
        if _COMPARISONS[self.sign](age_s, self.limit_s):
            return None
        text = f"{name} is {age_s:.0f} s old, expected {self.sign} {format_limit(self.limit_s)}"
        return Problem(text, ReasonCode.LAGGING if "<" in self.sign else ReasonCode.UNEXPECTED_RESPONSE)


@dataclass(frozen=True, slots=True)
class Advances(Test):
    """The window starts with the first check, and again with each growth that was seen in time.

    A service that was restarted may count from 0 again: then the value must grow from there. But a balancer in front of
    several servers that stand still makes the value fall and return for ever. So from the second fall in a window on,
    only a value that is higher than all before counts, until no value has fallen for as long as the window.

    After a longer time without checks, growth may be old, so that the window starts again.
    """

    within_s: float
    clock: Callable[[], float] = field(default=monotonic_s, compare=False)
    _progress: list[_Progress] = field(default_factory=list, init=False, compare=False)  # none before the first check

    async def find_problem(self, name: str, value: object) -> Problem | None:
        now_s, number = self.clock(), _as_progress(value)
        if value is not MISSING and number is None:
            return Problem(f"{name} is {json_excerpt(value)}, which is neither a number nor a time")
        before = self._progress[0] if self._progress else _Progress(None, None, now_s, now_s)
        progress = self._progress[:] = [before.after(number, now_s, self.within_s)]
        return progress[0].problem(name, value, now_s, self.within_s)


class _Progress(NamedTuple):
    number: Number | None  # as last read
    peak: Number | None  # the highest one before the falls
    read_at_s: float
    since_s: float  # of the window
    has_moved: bool = False
    falls: int = 0  # since the peak, each within a window of the one before
    fell_at_s: float = -math.inf

    def after(self, number: Number | None, now_s: float, within_s: float) -> _Progress:
        if number is None:
            return self
        if self.number is None or self.peak is None:
            return self._replace(number=number, peak=number, read_at_s=now_s)
        falls, peak = (self.falls, self.peak) if now_s - self.fell_at_s <= within_s else (0, self.number)
        if number < self.number:
            return self._replace(number=number, peak=peak, read_at_s=now_s, falls=falls + 1, fell_at_s=now_s)
        read = self._replace(
            number=number, peak=max(peak, number), read_at_s=now_s, falls=0 if number > peak else falls
        )
        if number > peak or (number > self.number and falls < _MAX_FALLS):
            return read._replace(since_s=now_s, has_moved=now_s - self.read_at_s <= within_s)
        return read

    def problem(self, name: str, value: object, now_s: float, within_s: float) -> Problem | None:
        shown = "is missing" if value is MISSING else f"is {json_excerpt(value)}"
        stood_s = now_s - self.since_s
        if stood_s > within_s:
            text = f"{name} {shown} and has not advanced for {stood_s:.0f} s, expected within {format_limit(within_s)}"
            return Problem(text, ReasonCode.STALLED)
        if not self.has_moved:
            text = f"{name} {shown}, and has not advanced since the first check, {stood_s:.0f} s ago"
            return Problem(text, ReasonCode.STARTING, Outcome.NOT_READY)
        return None


def _as_progress(value: object) -> Number | None:
    number = as_number(value)
    return as_unix_time_s(value) if number is None else number


# ---- conditions


@dataclass(frozen=True, slots=True)
class Condition:
    text: str
    value: Value = field(compare=False)
    test: Test

    async def find_problem(self, document: object) -> Problem | None:
        return await self.test.find_problem(self.value.name, self.value.find(document))


def json_value(reader: Reader) -> Value:
    if reader.take(r"value\b"):
        return Value("the value", lambda document: document)
    found = reader.take(r"/[^\s=<>!\"']*")
    pointer = found[0] if found else reader.take_text()
    if pointer is None or not pointer.startswith("/"):
        raise reader.error('a JSON pointer such as /status, or "value"')
    return Value(pointer, partial(resolve_pointer, pointer=pointer))


def parse_condition(text: str, read_value: Callable[[Reader], Value]) -> Condition:
    """`read_value` reads what the condition is about. Raises `InvalidValueError`."""
    if len(text) > MAX_CONDITION_CHARS:
        raise InvalidValueError(f"a condition has at most {MAX_CONDITION_CHARS} characters, not {len(text)}")
    reader = Reader(text)
    is_age = reader.take(r"age\s+of\b") is not None
    value = read_value(reader)
    test = _read_age(reader) if is_age else _read_test(reader)
    reader.expect_end()
    return Condition(text, value._replace(name=f"the time {value.name}" if is_age else value.name), test)


def _read_age(reader: Reader) -> Test:
    sign = reader.take("<=|>=|<|>")
    if sign is None:
        raise reader.error("one of <=, <, >= and >")
    return Age(sign[0], _read_duration_s(reader))


def _read_test(reader: Reader) -> Test:
    if sign := reader.take("==|!=|<=|>=|<|>"):
        wanted = _read_literal(reader)
        if sign[0] not in ("==", "!=") and (wanted is None or isinstance(wanted, bool)):
            raise reader.error_before(f"a number or a text after {sign[0]}")
        return Compare(sign[0], wanted)
    if reader.take(r"advances\s+within\b"):
        return Advances(_read_duration_s(reader))
    if reader.take(r"contains\b"):
        return Contains(_read_literal(reader))
    if reader.take(r"matches\b"):
        expression = reader.take_text()
        if expression is None:
            raise reader.error('a regular expression in quotation marks, such as "v1.*"')
        try:
            return Matches(pattern(expression))
        except InvalidValueError as exc:
            raise reader.error_before(f"a regular expression; this is {exc}") from exc
    raise reader.error("one of ==, !=, <, <=, >, >=, contains, matches and advances within")


def _read_literal(reader: Reader) -> Any:  # noqa: ANN401  a JSON value
    if (text := reader.take_text()) is not None:
        return text
    if word := reader.take(r"(true|false|null)\b"):
        return _WORDS[word[0]]
    if number := reader.take(_NUMBER.pattern + r"(?![\w.])"):
        if (found := as_number(number[0])) is None:
            raise reader.error_before(f"a number of at most {MAX_DIGITS} digits")
        return int(found) if found == int(found) else found
    raise reader.error('a number (with an exponent of at most three digits), a "text", true, false or null')


def _read_duration_s(reader: Reader) -> float:
    found = reader.take(r"[0-9.]+(?:ms|s|m|h|d)(?!\w)")
    if found is None:
        raise reader.error("a duration such as 30s, 5m or 1h")
    try:
        return parse_duration_s(found[0])
    except InvalidValueError as exc:
        raise reader.error_before("a duration such as 30s, 5m or 1h") from exc


def parse_conditions(given: object, read_value: Callable[[Reader], Value], example: str) -> tuple[Condition, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(text, str) for text in given):
        raise InvalidValueError(f'must be a list of conditions such as ["{example}"], not {type_name(given)}')
    conditions, errors = [], []
    for text in given:
        try:
            conditions.append(parse_condition(text, read_value))
        except InvalidValueError as exc:
            errors.append(exc)
    if errors:
        raise InvalidValueError("; ".join(map(str, errors))) from errors[0]
    return tuple(conditions)


def equalities(expected: Mapping[str, Any]) -> tuple[Condition, ...]:
    """The conditions of a table of JSON pointers and the values that they must have."""
    return tuple(
        Condition(pointer, Value(pointer or "the value", partial(resolve_pointer, pointer=pointer)), Equals(wanted))
        for pointer, wanted in expected.items()
    )


def show_conditions(conditions: Sequence[Condition]) -> list[str]:
    return [condition.text for condition in conditions]


_DURATION = r"[0-9.]+(ms|s|m|h|d)\s*$"


_ANY_TEST = r"(==|!=|[<>]=?|contains\b|matches\b)\s*[^\s=<>]"
NUMBER_TEST = r"(==|!=|[<>]=?)\s*[+-]?[0-9]"


def conditions_schema(value_pattern: str, test_pattern: str = _ANY_TEST) -> dict[str, Any]:
    """The JSON Schema of a list of conditions; the patterns are those of what they are about, and of what follows."""
    forms = (
        rf"age\s+of\s+{value_pattern}\s*[<>]=?\s*{_DURATION}",
        rf"{value_pattern}\s*advances\s+within\s+{_DURATION}",
        rf"{value_pattern}\s*{test_pattern}",
    )
    pattern = rf"^\s*({'|'.join(forms)})"
    return {"type": "array", "items": {"type": "string", "maxLength": MAX_CONDITION_CHARS, "pattern": pattern}}


@option_type(conditions_schema(r"""(/[^\s=<>!"']*|"/[^"]*"|'/[^']*'|value)"""), show=show_conditions)
def json_conditions(value: object) -> tuple[Condition, ...]:
    return parse_conditions(value, json_value, "/peers >= 3")


Conditions = Annotated[tuple[Condition, ...], json_conditions]


class ConditionalProbe:
    """A probe with the options `require` and `starting`."""

    __slots__ = ()

    require: tuple[Condition, ...]
    starting: tuple[Condition, ...]

    def validate_interval(self, interval_s: float) -> None:
        """Raise if a value could never be seen to advance in time, because checks are rarer."""
        for option, conditions in (("require", self.require), ("starting", self.starting)):
            for condition in conditions:
                test = condition.test
                if isinstance(test, Advances) and test.within_s <= interval_s:
                    raise OptionError(option, _too_rare_text(condition.text, test.within_s, interval_s))


def _too_rare_text(text: str, within_s: float, interval_s: float) -> str:
    return (
        f"{text!r} can never hold: {format_limit(within_s)} is not longer than the interval of the checks, "
        f"{format_limit(interval_s)}; write {2 * interval_s:g}s or more, or set a shorter interval"
    )


async def find_problem(conditions: Iterable[Condition], document: object) -> Problem | None:
    """The first condition that fails, or the first that cannot hold yet. All are read: values are remembered."""
    problems = [await condition.find_problem(document) for condition in conditions]
    found = [problem for problem in problems if problem is not None]
    return min(found, key=lambda problem: problem.outcome is not Outcome.FAILED, default=None)


async def find_starting(conditions: Iterable[Condition], document: object) -> Problem | None:
    """The service is starting if one of the conditions holds. All are read, as above."""
    holding = [condition.text for condition in conditions if await condition.find_problem(document) is None]
    return Problem(f"starting: {holding[0]}", ReasonCode.STARTING, Outcome.NOT_READY) if holding else None


async def judge(starting: Iterable[Condition], required: Iterable[Condition], document: object) -> Problem | None:
    """A value that must advance is remembered while the service is starting, too."""
    is_starting, problem = await find_starting(starting, document), await find_problem(required, document)
    return is_starting or problem
