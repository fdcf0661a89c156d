"""`/report`: its query, its document, and what the views make of it."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.api.spec import Request
from svcnode.core.errors import InvalidValueError
from svcnode.history import History
from svcnode.history.latencies import latency_bucket
from svcnode.history.records import MINUTES
from svcnode.history.report import Outage, PeriodReport, ReportPeriod, SubjectReport, Times
from svcnode.operator.page import CONTENT_POLICY
from svcnode.operator.report import (
    DEFAULT_PERIOD_S,
    MAX_LISTED_OUTAGES,
    NamedService,
    parse_report_query,
    report,
    report_document,
)
from svcnode.operator.report_views import CSV_COLUMNS, cell_texts, csv_text, head_lines, html_page, objective_of
from svcnode.operator.single_flight import SingleFlight
from svcnode.operator.static_files import static_name
from tests.support.nodes import make_node
from tests.support.real_time import in_real_time

if TYPE_CHECKING:
    from svcnode.operator.context import OperatorContext

NOON = 1_767_268_800.0
NOTHING = SubjectReport(Times(), 0.0, (), {})


def period_report(services: dict[str, SubjectReport], *, node: SubjectReport = NOTHING, **changes: Any) -> PeriodReport:
    period = ReportPeriod(NOON - 1000, NOON, MINUTES)
    return PeriodReport(period, NOON - 1000, NOON - 1000, node, services)._replace(**changes)


def subject(up_s: float, down_s: float = 0.0, outages: tuple[Outage, ...] = ()) -> SubjectReport:
    return SubjectReport(
        Times(up_s, 0.0, down_s, 5.0), up_s, outages, {latency_bucket(0.1): 98, latency_bucket(2.0): 2}
    )


OPEN = Outage(NOON - 10, NOON, 10.0, is_begun_before=False, is_open=True, is_recovered=False)
ENDED = Outage(NOON - 1000, NOON - 940, 60.0, is_begun_before=True, is_open=False, is_recovered=True)
DOCUMENT = report_document(
    period_report({"up": subject(1000), "db": subject(930, 70, (ENDED, OPEN)), "gone": subject(900, 100)}),
    "validator-7",
    [NamedService("db", "Ledger <b>", 99.9), NamedService("up", "up", 95.0)],
    NOON,
)
GONE, DB, UP = DOCUMENT["services"]


def test_the_least_available_services_come_first_and_removed_ones_have_no_objective() -> None:
    assert [one["id"] for one in DOCUMENT["services"]] == ["gone", "db", "up"]
    assert (GONE["registered"], GONE["slo"], GONE["budget_s"]) == (False, None, None)
    assert [objective_of(one) for one in DOCUMENT["services"]] == ["none", "missed", "kept"]


def test_a_service_has_its_numbers() -> None:
    assert DB["availability"] == 0.93
    assert (DB["outages"], DB["outage_open"], DB["longest_outage_s"], DB["mean_recovery_s"]) == (2, True, 60.0, 60.0)
    assert (DB["slo"], DB["budget_s"], DB["budget_left_s"], DB["budget_left_percent"]) == ("99.9%", 1.0, -69.0, -6900.0)
    assert [DB[key] for key in ("p50_ms", "p95_ms", "p99_ms")] == [
        pytest.approx(one, rel=0.05) for one in (100, 100, 2000)
    ]
    assert [one["open"] for one in DB["latest_outages"]] == [True, False]
    assert [one["begun_before"] for one in DB["latest_outages"]] == [False, True]


def test_availability_is_100_percent_without_an_outage_and_less_with_one() -> None:
    short = ENDED._replace(length_s=0.001)
    report = period_report({"up": subject(1e9), "blip": subject(1e9, 0.001, (short,))})
    blip, up = report_document(report, "validator-7", [], NOON)["services"]
    assert (up["id"], up["availability"], cell_texts(up)[0]) == ("up", 1.0, "100 %")
    assert blip["availability"] < 1
    assert cell_texts(blip)[0] != "100 %"


def test_the_list_of_outages_is_bounded_and_their_number_is_not() -> None:
    document = report_document(period_report({"db": subject(900, 100, (ENDED,) * 500)}), "n", [], NOON)
    (service,) = document["services"]
    assert (service["outages"], len(service["latest_outages"])) == (500, MAX_LISTED_OUTAGES)


def test_csv_has_a_row_per_service_with_numbers_without_units() -> None:
    header, *rows = csv.reader(io.StringIO(csv_text(DOCUMENT)))
    assert tuple(header) == CSV_COLUMNS
    assert [row[0] for row in rows] == ["gone", "db", "up"]
    for row in rows:
        values = dict(zip(header, row, strict=True))
        assert {values.pop("registered"), values.pop("outage_open")} <= {"true", "false"}
        texts = [values[key] for key in CSV_COLUMNS[3:] if key in values]
        assert all(text == "" or float(text) is not None for text in texts)
    assert dict(zip(header, rows[1], strict=True))["slo_percent"] == "99.9"


def test_the_page_escapes_names_and_says_by_symbols_what_colours_say() -> None:
    page = html_page(DOCUMENT)
    assert "Ledger &lt;b&gt;" in page
    assert "<script" not in page
    assert "style=" not in page
    assert re.search(r'data-objective="missed".*✖ 99.9%', page)
    assert re.search(r'data-objective="kept".*✔ 95%', page)
    assert "2 ▶" in page
    assert f'href="static/{static_name("report.css")}"' in page
    assert "<style>p {}</style>" in html_page(DOCUMENT, "p {}")


def test_the_times_of_a_report_are_in_utc() -> None:
    (period, created) = head_lines(DOCUMENT)
    assert period.count(" UTC") == 2
    assert "12:00:00 UTC" in period
    assert "12:00:00 UTC" in created


def test_a_report_says_from_when_on_it_has_data() -> None:
    late = report_document(period_report({}, data_from_s=NOON - 600, outages_from_s=NOON - 300), "n", [], NOON)
    assert [("11:50" in line, "11:55" in line) for line in head_lines(late)][2:] == [(True, False), (False, True)]
    empty = report_document(period_report({}, data_from_s=None, outages_from_s=None), "n", [], NOON)
    assert len(list(head_lines(empty))) == 3


# ---- the query


def test_the_default_is_the_last_30_days() -> None:
    params = parse_report_query(b"", NOON, "json")
    assert (params.from_s, params.to_s, params.format) == (NOON - DEFAULT_PERIOD_S, NOON, "json")


def test_a_period_and_a_format_can_be_given() -> None:
    params = parse_report_query(b"from=7d&to=2026-01-01T11:00:00Z&format=csv", NOON, "json")
    assert (params.from_s, params.to_s, params.format) == (NOON - 7 * 86_400, NOON - 3600, "csv")


@pytest.mark.parametrize(
    "query", [b"form=1", b"from=x", b"from=1h&to=2h", b"format=pdf", b"zone=Europe/Berlin", b"from=1h&from=2h"]
)
def test_any_other_query_is_refused(query: bytes) -> None:
    with pytest.raises(InvalidValueError):
        parse_report_query(query, NOON, "json")


# ---- the handler


@in_real_time
async def test_browsers_get_the_page_and_programs_json() -> None:
    node = make_node("validator-7")
    node.register("db", slo="99.9%").up()
    async with History(node, None) as history:

        class Context:
            history_single_flight = SingleFlight()

        context: OperatorContext = Context()  # type: ignore[assignment]
        context.history, context.node = history, node  # type: ignore[misc]

        async def get(query: bytes = b"", accept: bytes = b"*/*") -> tuple[int, bytes, dict[str, str]]:
            response = await report(context, Request("GET", b"/report", query, {b"accept": accept}), "")
            return response.code, response.body, dict(response.headers)

        status, body, headers = await get()
        assert (status, headers["Vary"]) == (200, "Accept")
        document = json.loads(body)
        assert (document["node"], [one["slo"] for one in document["services"]]) == ("validator-7", ["99.9%"])
        status, body, headers = await get(accept=b"text/html,*/*;q=0.8")
        assert body.startswith(b"<!doctype html>")
        assert headers["Content-Security-Policy"] == CONTENT_POLICY
        status, body, headers = await get(b"format=csv", b"text/html")
        assert body.startswith(b"id,name,")
        status, body, headers = await get(b"form=csv")
        assert status == 400
