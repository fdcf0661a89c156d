"""Values on a page of metrics, in the text format of Prometheus or in OpenMetrics.

    NAME                                the series of this name, if it is the only one
    NAME{job="signer", code!~"5.."}     with labels that are equal (=), not equal (!=), match (=~) or do not match (!~)
    sum of NAME{…}                      also max, min and count: of all series that are selected

A page may have 100,000 series, and be hostile. So only the lines with a wanted name are parsed, in linear time, and the
event loop has its turn in between. The parser of prometheus-client takes five times as long, quadratic time for a long
label, renames counters, and cannot read some of its own exemplars; the tests compare the two.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError
from svcnode.core.option_types import option_type
from svcnode.core.text import excerpt
from svcnode.probes.base import CheckError
from svcnode.probes.conditions import (
    NUMBER_TEST,
    Advances,
    Age,
    Compare,
    Condition,
    Value,
    conditions_schema,
    parse_conditions,
    show_conditions,
)
from svcnode.probes.json_pointer import MISSING
from svcnode.probes.regex import MATCH_TIMEOUT_S, matches_fully, pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from svcnode.probes.conditions import Reader

MAX_PAGE_BYTES = 16 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024
MAX_SAMPLE_AGE_S = 300.0  # of a sample with its own time; Prometheus, too, returns no older ones (query.lookback-delta)
_SLICE_BYTES = 64 * 1024
_RUN_S, _PAUSE_S = 0.001, 0.0001  # the event loop waits up to 5 ms for a thread that does not pause
_MAX_SHOWN_CHARS = 100

_NAME = "[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABELS = r'(?:[^"{}]|"(?:[^"\\]|\\.)*+")*+'
# The text after # is an exemplar of OpenMetrics.
_SAMPLE = re.compile(
    rf"{_NAME}(?:[ \t]*\{{({_LABELS})\}}[ \t]*|[ \t]+)([^\s#]{{1,100}})(?:[ \t]+([0-9.eE+-]{{1,100}}))?\s*(?:#.*)?"
)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*+)\s*=\s*"((?:[^"\\]|\\.)*+)"\s*(?:,|\Z)')
_FIRST_LINE = re.compile(r"^[ \t]*+([^#\s].*)$", re.MULTILINE)
_ESCAPE = re.compile(r'\\([\\n"])')

Number = int | float


class Sample(NamedTuple):
    labels: str  # as on the page
    value: Number
    time: float | None  # in the unit of the format


class Matcher(NamedTuple):
    label: str
    sign: str
    text: str

    def may_match(self, labels: str) -> bool:
        """By the text on the page, which is quicker; False is certain. These characters have an escape there."""
        return self.sign != "=" or self.text in labels or any(char in self.text for char in '\\"\n')

    def matches(self, labels: Mapping[str, str]) -> bool:
        found = labels.get(self.label, "")
        try:
            is_match = matches_fully(self.text, found) if "~" in self.sign else found == self.text
        except TimeoutError as exc:
            text = f'matching the label {self.label} with "{self.text}" took more than {MATCH_TIMEOUT_S:g} s'
            raise _unexpected(text) from exc
        return is_match is not self.sign.startswith("!")


@dataclass(frozen=True, slots=True)
class Selector:
    """What a condition is about. Called with the values that `read_page` returns, it finds its own."""

    name: str
    matchers: tuple[Matcher, ...] = ()
    aggregate: str = ""

    def __call__(self, page: Mapping[Selector, object]) -> object:
        return page[self]

    def __str__(self) -> str:
        labels = ", ".join(f'{label}{sign}"{text}"' for label, sign, text in self.matchers)
        return f"{self.aggregate and f'{self.aggregate} of '}{self.name}{labels and f'{{{labels}}}'}"

    def selects(self, sample: Sample) -> bool:
        if not self.matchers:
            return True
        if not all(matcher.may_match(sample.labels) for matcher in self.matchers):
            return False
        labels = parse_labels(sample.labels)
        return all(matcher.matches(labels) for matcher in self.matchers)

    def result(self, samples: _Samples, *, has_name: bool) -> object:
        """Without a series, `count` is 0 only if the page has the name: a wrong name is not a count."""
        values = samples.values
        if self.aggregate == "count":
            return len(values) if has_name else MISSING
        if not values:
            return MISSING
        if self.aggregate:
            return math.nan if any(map(math.isnan, values)) else _AGGREGATES[self.aggregate](values)
        if len(values) > 1:
            shown = " and ".join(f"{{{excerpt(labels, _MAX_SHOWN_CHARS)}}}" for labels in samples.labels)
            text = (
                f"{len(values)} series match {self}, such as {shown}; name labels, or write sum, max, min or count of"
            )
            raise CheckError(text, ReasonCode.UNEXPECTED_RESPONSE)
        return values[0]


@dataclass(frozen=True, slots=True)
class _Samples:
    """What a selector has selected."""

    values: list[Number] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # of the first two

    def add(self, sample: Sample) -> None:
        self.values.append(sample.value)
        if len(self.labels) < 2:
            self.labels.append(sample.labels)


_AGGREGATES: dict[str, Callable[[Iterable[Number]], Number]] = {"sum": sum, "max": max, "min": min}


# ---- conditions


def metric_value(reader: Reader) -> Value:
    aggregate = reader.take(r"(sum|max|min|count)\s+of\b")
    name = reader.take(_NAME)
    if name is None:
        raise reader.error('the name of a metric such as up{job="signer"}, or sum of, max of, min of or count of it')
    matchers = tuple(_read_matchers(reader)) if reader.take("{") else ()
    selector = Selector(name[0], matchers, aggregate[1] if aggregate else "")
    return Value(str(selector), selector)


def _read_matchers(reader: Reader) -> Iterator[Matcher]:
    while not reader.take("}"):
        label = reader.take("[a-zA-Z_][a-zA-Z0-9_]*")
        sign = label and reader.take("=~|!~|!=|=")
        text = reader.take_text() if sign else None
        if label is None or sign is None or text is None:
            raise reader.error('labels such as {job="signer", code!~"5.."}')
        yield Matcher(label[0], sign[0], pattern(text) if "~" in sign[0] else text)
        if not reader.take(",") and not reader.take("(?=})"):
            raise reader.error('"," or "}"')


_LABELS_PATTERN = r"""\{(\s*[a-zA-Z_][a-zA-Z0-9_]*\s*[=!]?[=~]\s*("[^"]*"|'[^']*')\s*,?)*\s*\}"""
_VALUE_PATTERN = rf"((sum|max|min|count)\s+of\s+)?[a-zA-Z_:][a-zA-Z0-9_:]*\s*({_LABELS_PATTERN})?"


@option_type({**conditions_schema(_VALUE_PATTERN, NUMBER_TEST), "minItems": 1}, show=show_conditions)
def metric_conditions(value: object) -> tuple[Condition, ...]:
    conditions = parse_conditions(value, metric_value, "peers >= 3")
    if not conditions:
        raise InvalidValueError("must have a condition; to test only that the page is there, use http")
    for condition in conditions:
        test = condition.test
        if not (isinstance(test, Age | Advances) or (isinstance(test, Compare) and test.is_with_number)):
            raise InvalidValueError(f"in the condition {condition.text!r}: a metric is a number; compare it with one")
    return conditions


MetricConditions = Annotated[tuple[Condition, ...], metric_conditions]


# ---- pages


def read_page(
    body: bytes, selectors: Iterable[Selector], *, is_openmetrics: bool, timeout_s: float = math.inf
) -> dict[Selector, object]:
    """The values of the selectors, `MISSING` if there is none. Raises `CheckError`. Blocks: for a thread."""
    _require_end(body, is_openmetrics=is_openmetrics)
    found = {selector: _Samples() for selector in selectors}
    by_name = {
        name: [(selector, samples) for selector, samples in found.items() if selector.name == name]
        for name in {selector.name for selector in found}
    }
    seen: dict[str, set[str]] = {name: set() for name in by_name}
    oldest = (time.time() - MAX_SAMPLE_AGE_S) * (1 if is_openmetrics else 1000)
    for name, sample in _wanted_samples(body, by_name, time.monotonic() + timeout_s):
        if sample.time is not None and sample.time < oldest:
            continue
        if sample.labels in seen[name]:
            shown = excerpt(f"{name}{{{sample.labels}}}", _MAX_SHOWN_CHARS)
            raise _unexpected(f"the page of metrics has the series {shown} twice")
        seen[name].add(sample.labels)
        for selector, samples in by_name[name]:
            if selector.selects(sample):
                samples.add(sample)
    return {
        selector: selector.result(samples, has_name=bool(seen[selector.name])) for selector, samples in found.items()
    }


def _require_end(body: bytes, *, is_openmetrics: bool) -> None:
    end = body[-20:].rstrip(b"\r\n").rpartition(b"\n")[2]
    if is_openmetrics and end != b"# EOF":
        raise _unexpected("the page of metrics is incomplete: it does not end with # EOF")
    if not is_openmetrics and body and not body.endswith(b"\n"):
        raise _unexpected("the page is not one of metrics, or is incomplete: its last line has no end")


def _wanted_samples(body: bytes, names: Iterable[str], until_s: float) -> Iterator[tuple[str, Sample]]:
    wanted = re.compile(rf"^[ \t]*+(({'|'.join(names)})[ \t{{].*)$", re.MULTILINE)
    is_first = True
    pace = _Pace(until_s)
    for text in _slices(body):
        if is_first and (first := _FIRST_LINE.search(text)):
            is_first = False
            _parse_sample(first[1], "the page is not one of metrics")
        for line, name in wanted.findall(text):
            yield name, _parse_sample(line, "the page of metrics has a line that cannot be read")
            pace.keep()
        pace.keep()
    if is_first:
        raise _unexpected("the page has no metrics")


class _Pace:
    """Lets the event loop run, and ends at the deadline."""

    def __init__(self, until_s: float) -> None:
        self._until_s = until_s
        self._paused_s = time.monotonic()

    def keep(self) -> None:
        now_s = time.monotonic()
        if now_s > self._until_s:
            raise CheckError("reading the page of metrics took too long", ReasonCode.TIMEOUT)
        if now_s - self._paused_s > _RUN_S:
            time.sleep(_PAUSE_S)
            self._paused_s = time.monotonic()


def _slices(body: bytes) -> Iterator[str]:
    """Parts of whole lines."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + _SLICE_BYTES) + 1 or len(body)
        if end - start > _SLICE_BYTES + MAX_LINE_BYTES:
            raise _unexpected(f"the page of metrics has a line of more than {MAX_LINE_BYTES // 1024} KiB")
        yield body[start:end].decode("utf-8", "replace")
        start = end


def _parse_sample(line: str, problem: str) -> Sample:
    if found := _SAMPLE.fullmatch(line):
        labels, value, at = found.groups()
        try:
            return Sample(labels or "", _parse_number(value), None if at is None else float(at))
        except ValueError:
            pass
    raise _unexpected(f"{problem}: {excerpt(line, _MAX_SHOWN_CHARS)}")


def _parse_number(text: str) -> Number:
    if not text.isascii() or "_" in text:  # which Python allows
        raise ValueError
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def parse_labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at, text = 0, text.strip()
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None:
            raise _unexpected(f"the page of metrics has labels that cannot be read: {excerpt(text, _MAX_SHOWN_CHARS)}")
        labels[found[1]] = _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], found[2])
        at = found.end()
    return labels


def _unexpected(text: str) -> CheckError:
    return CheckError(text, ReasonCode.UNEXPECTED_RESPONSE)
