"""Pages of metrics: what a condition selects on them, what is refused, and the same samples as prometheus-client."""

from __future__ import annotations

import asyncio
import math
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome
from svcnode.core.option_types import schema_of
from svcnode.probes.base import CheckError
from svcnode.probes.conditions import judge, parse_condition
from svcnode.probes.json_pointer import MISSING
from svcnode.probes.metrics_page import (
    MAX_LINE_BYTES,
    Matcher,
    Selector,
    metric_conditions,
    metric_value,
    read_page,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_S = 1_800_000_000.0
NOW_MS = int(NOW_S * 1000)
PAGE = f"""\
# HELP up Whether the last scrape worked. up{{job="signer"}} 7
# TYPE up gauge
up{{job="signer",instance="10.0.0.1:9090"}} 1
up{{job="signer",instance="10.0.0.2:9090"}} 1
up{{job="api",instance="10.0.0.1:80"}} 0

# TYPE batches_total counter
batches_total 9007199254740993
batches_total_of_others 5
# TYPE latency_seconds histogram
latency_seconds_bucket{{le="0.1"}} 3
latency_seconds_bucket{{le="+Inf"}} 4
latency_seconds_sum 2.5e-1
latency_seconds_count 4
broken NaN
limit +Inf
floor -Inf
mixed{{a="1"}} 1
mixed{{a="2"}} NaN
 \tspaced\t{{ a = "1" , }}  -3.5\t{NOW_MS}
fresh 1 {NOW_MS - 60_000}
old 1 {NOW_MS - 600_000}
some_old{{a="1"}} 1 {NOW_MS - 600_000}
some_old{{a="2"}} 2
paths{{path="C:\\\\dir\\\\\\"x\\"\\nnext, }} #"}} 1
names{{name="Zoë"}} 1
""".encode()


@pytest.fixture(autouse=True)
def _wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_S)


def read(text: str, body: bytes = PAGE, *, is_openmetrics: bool = False) -> Any:
    selector = parse_condition(f"{text} == 1", metric_value).value.find
    assert isinstance(selector, Selector)
    assert str(selector) == text
    return read_page(body, [selector], is_openmetrics=is_openmetrics)[selector]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("batches_total", 9007199254740993),
        ("batches", MISSING),
        ("up_", MISSING),
        ('up{job="api"}', 0),
        ('up{job="signer", instance="10.0.0.2:9090"}', 1),
        ('up{job="none"}', MISSING),
        ('up{job="signer", instance!="10.0.0.2:9090"}', 1),
        ('up{job=~"ap.", missing=""}', 0),
        ('up{job!~"sign.*"}', 0),
        ('up{job=~"sign"}', MISSING),  # a regular expression is about all of the label
        ("sum of up", 2),
        ('sum of up{job="signer"}', 2),
        ('sum of up{job="none"}', MISSING),
        ("max of up", 1),
        ("min of up", 0),
        ("count of up", 3),
        ('count of up{job="none"}', 0),
        ("count of missing", MISSING),
        ('latency_seconds_bucket{le="+Inf"}', 4),
        ("latency_seconds_sum", 0.25),
        ("latency_seconds_count", 4),
        ("latency_seconds", MISSING),
        ("limit", math.inf),
        ("floor", -math.inf),
        ('spaced{a="1"}', -3.5),
        ("fresh", 1),
        ("old", MISSING),
        ("count of old", MISSING),
        ("some_old", 2),
        ('paths{path=~"(?s)C:.dir.*next, } #"}', 1),
        ('names{name="Zoë"}', 1),
    ],
)
def test_a_condition_selects_series(text: str, value: Any) -> None:
    assert read(text) == value


@pytest.mark.parametrize("text", ["broken", "max of mixed", "min of mixed", "sum of mixed"])
def test_one_value_that_is_not_a_number_makes_the_result_none(text: str) -> None:
    assert math.isnan(read(text))
    for sign in ("<", ">", "==", "!="):
        found = judged(f"{text} {sign} 0")
        assert (found.outcome, found.code) == (Outcome.FAILED, "unexpected_response")


def test_a_label_with_escapes_is_selected_by_its_value() -> None:
    value = 'C:\\dir\\"x"\nnext, } #'
    selector = Selector("paths", (Matcher("path", "=", value),))
    assert read_page(PAGE, [selector], is_openmetrics=False) == {selector: 1}


def judged(text: str, body: bytes = PAGE) -> Any:
    conditions = metric_conditions([text])
    selectors = [condition.value.find for condition in conditions]
    return asyncio.run(judge((), conditions, read_page(body, selectors, is_openmetrics=False)))  # type: ignore[arg-type]


def test_times_and_numbers_are_compared() -> None:
    page = f'process_start_time_seconds {NOW_S - 100:.2f}\nnewest_ms{{a="1"}} {NOW_MS - 5000}\n'.encode()
    assert judged("age of process_start_time_seconds >= 90s", page) is None
    assert judged("age of process_start_time_seconds <= 1m", page).code == "lagging"
    assert judged("age of max of newest_ms <= 1m", page) is None
    assert judged("process_start_time_seconds > 1e9", page) is None
    assert judged("newest_s > 0", page).code == "unexpected_response"
    assert judged("newest_s advances within 1h", page).code == "starting"


# ---- what is refused


def refused(body: bytes, text: str = "up", *, is_openmetrics: bool = False) -> str:
    with pytest.raises(CheckError) as caught:
        read(text, body, is_openmetrics=is_openmetrics)
    assert caught.value.code == "unexpected_response"
    return str(caught.value)


def test_several_series_are_an_error_unless_they_are_aggregated() -> None:
    text = refused(PAGE, 'up{job="signer"}')
    assert all(part in text for part in ("2 series", 'up{job="signer"}', "10.0.0.1", "10.0.0.2", "sum"))


def test_a_series_that_is_on_the_page_twice_is_an_error() -> None:
    assert "twice" in refused(b'up{a="1"} 1\nup{a="1"} 0\n', "sum of up")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n\n",
        b"# TYPE up gauge\n",
        b"<!DOCTYPE html>\n<html>\nup 1\n</html>\n",
        b'{"status": "ok"}\n',
        b"OK\n",
        b"Internal error, try again\n",
        b"up\n",
        b"up1\n",
        b"up one\n",
        b"up 1_000\n",
        b"up 1 soon\n",
        b"up 1 2 3\n",
        b'up{a="1} 1\n',
        b'up{a="1"}\n',
        b"up{count:1,sum:2} 1 {\n",
        "up \N{ARABIC-INDIC DIGIT ONE}\n".encode(),
        b"up 1",  # the value may go on
        b"\x1f\x8b\x08\x00garbage\n",
    ],
)
def test_what_is_no_page_of_metrics_is_an_error(body: bytes) -> None:
    assert refused(body)


def test_a_wrong_line_of_another_metric_does_not_matter_but_one_of_its_own_does() -> None:
    assert read("up", b"first 1\nother one\nup 1\n") == 1
    assert "cannot be read" in refused(b"first 1\nup one\n")
    assert "labels" in refused(b'first 1\nup{a="1" b="2"} 1\n', 'up{a="1"}')


@pytest.mark.parametrize("body", [b"up 1\n", b"up 1\n# EO", b"up 1\n# EOF\nup 2\n", b""])
def test_openmetrics_without_its_end_is_an_error(body: bytes) -> None:
    assert "EOF" in refused(body, is_openmetrics=True)


def test_openmetrics_has_exemplars_and_times_in_seconds() -> None:
    old_s = NOW_S - 600
    body = (
        '# TYPE x counter\nx_total{a="#"} 5 # {id="a b # {}"} 0.5 1.5\nx_created{a="#"} 3\n'
        f'y 1 {old_s + 590:.3f}\nz 1 {old_s:.3f} # {{id="1"}} 3\n# EOF'
    ).encode()
    assert read("x_total", body, is_openmetrics=True) == 5
    assert read("x_created", body, is_openmetrics=True) == 3
    assert read("y", body, is_openmetrics=True) == 1
    assert read("z", body, is_openmetrics=True) is MISSING


@pytest.mark.parametrize(
    "line",
    [
        'up{a="' + '\\"' * (MAX_LINE_BYTES // 2),
        'up{a="' + "\\" * MAX_LINE_BYTES,
        "up{" + 'a="b",' * (MAX_LINE_BYTES // 6),
        "up" + " " * MAX_LINE_BYTES + "x y",
        "up 1" + " " * MAX_LINE_BYTES + "1" * 99 + "x",
        "\n" * MAX_LINE_BYTES + "<",
        "x" * (3 * MAX_LINE_BYTES),
    ],
    ids=range(7),
)
def test_a_hostile_page_is_refused_in_linear_time(line: str) -> None:
    """In quadratic time, each of them takes minutes."""
    assert refused((line + "\n").encode())


def test_reading_ends_at_the_deadline_and_a_regular_expression_takes_no_longer_than_others() -> None:
    body = b"".join(b'up{a="%d"} 1\n' % number for number in range(10))
    with pytest.raises(CheckError) as caught:
        read_page(body, [Selector("up")], is_openmetrics=False, timeout_s=-1.0)
    assert caught.value.code == "timeout"
    assert "0.5 s" in refused(b'up{a="%s"} 1\n' % (b"a" * 100), 'up{a=~"(a|a)*b|(a|a)*c"}')


# ---- as prometheus-client does


def registry() -> CollectorRegistry:
    found = CollectorRegistry()
    requests = Counter("requests", "Requests.", ["path", "code"], registry=found)
    requests.labels('/a"b\\c\nd', "200").inc(3, exemplar={"trace": "x y"})
    requests.labels("/", "500").inc(0.1)
    Gauge("temperature", "Degrees.", registry=found).set(-1e-9)
    Gauge("nothing", "Not a number.", registry=found).set(math.nan)
    Histogram("size_bytes", "Sizes.", registry=found).observe(1e6, exemplar={"trace": "1"})
    Info("build", "Of this program.", registry=found).info({"version": "v1.2"})
    return found


@pytest.mark.parametrize(
    ("generate", "parse", "is_openmetrics"),
    [(generate_latest, parse_text, False), (generate_openmetrics, parse_openmetrics, True)],
)
def test_every_sample_of_a_real_page_is_read(
    generate: Callable[[CollectorRegistry], bytes], parse: Callable[[str], Any], is_openmetrics: bool
) -> None:
    body = generate(registry())
    samples = [sample for family in parse(body.decode()) for sample in family.samples]
    assert len(samples) > 20
    for sample in samples:
        labels = tuple(Matcher(name, "=", text) for name, text in sample.labels.items())
        selector = Selector(sample.name, labels, "sum")
        found = read_page(body, [selector], is_openmetrics=is_openmetrics)[selector]
        assert found == sample.value or (math.isnan(found) and math.isnan(sample.value))  # type: ignore[arg-type]


_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e"))


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(_texts, st.floats() | st.integers(-(2**70), 2**70), max_size=4))
def test_any_label_and_number_is_read_as_by_prometheus_client(series: dict[str, float]) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    lines = [f'x{{a="{escaped(text)}",b="1"}} {number}\n' for text, number in series.items()]
    body = "".join(["first 1\n", *lines])
    parsed = [sample for family in parse_text(body) for sample in family.samples if sample.name == "x"]
    assert len(parsed) == len(series)
    for sample in parsed:
        selector = Selector("x", (Matcher("a", "=", sample.labels["a"]),))
        found = read_page(body.encode(), [selector], is_openmetrics=False)[selector]
        assert found == sample.value or (math.isnan(found) and math.isnan(sample.value))  # type: ignore[arg-type]


# ---- errors in conditions


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "at its end"),
        ("/up == 1", "character 1"),
        ("sum of == 1", "character 8"),
        ("up{job} == 1", "character 7"),
        ("up{job=signer} == 1", "character 8"),
        ('up{job="signer" == 1', "character 17"),
        ('up{job="signer", == 1', "character 18"),
        ("up-time > 1", "character 3"),
        ("up", "at its end"),
    ],
)
def test_an_error_names_the_character(text: str, place: str) -> None:
    with pytest.raises(InvalidValueError, match=place):
        metric_conditions([text])


@pytest.mark.parametrize(
    "text",
    [
        "up == true",
        "paused != true",
        'up != "down"',
        "up == null",
        'up matches "1"',
        "up contains 1",
        'up{a=~"("} == 1',
    ],
)
def test_a_metric_is_compared_with_numbers_only(text: str) -> None:
    with pytest.raises(InvalidValueError):
        metric_conditions([text])


@pytest.mark.parametrize(
    "text",
    [
        "up == 1",
        'up{job="signer"} == 1',
        "up{job='a}b', code=~\"5..\",} >= 1",
        "sum of http:requests_total{} advances within 1h",
        "age of max of newest_seconds <= 10m",
    ],
)
def test_the_json_schema_accepts_what_is_valid(text: str) -> None:
    assert metric_conditions([text])
    assert re.search(schema_of(metric_conditions)["items"]["pattern"], text)
