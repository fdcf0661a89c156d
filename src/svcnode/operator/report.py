"""`/report`: what a period was like: availability, outages, latencies and error budgets. JSON, CSV, or a page to print.

The document is made once and rendered by report_views.py, so that `svcnode report` shows the same from the file.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.api.spec import error_response, make_response, parse_known_query
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import slo_text
from svcnode.core.strict_json import compact_json
from svcnode.core.units import iso_time
from svcnode.net.threads import call_in_pool
from svcnode.operator.page import HTML_HEADERS
from svcnode.operator.query import parse_moment_s, parse_single
from svcnode.operator.report_views import csv_text, html_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcnode.api.spec import Request, Response
    from svcnode.history.report import Outage, PeriodReport, SubjectReport
    from svcnode.operator.context import OperatorContext

DEFAULT_PERIOD_S = 30 * 86_400.0
MAX_LISTED_OUTAGES = 100  # of a service
PARAMETERS = ("from", "to", "format")
FORMATS = ("json", "html", "csv")
LESS_THAN_ALL = 1 - 1e-8
VARY = ("Vary", "Accept")


class ReportParams(NamedTuple):
    from_s: float
    to_s: float
    format: str


class NamedService(NamedTuple):
    """A service of the report that is registered, or in the configuration."""

    id: str
    name: str
    slo_percent: float | None = None


async def report(context: OperatorContext, request: Request, name: str) -> Response:
    accepts_html = b"text/html" in request.headers.get(b"accept", b"")
    try:
        params = parse_report_query(request.query, time.time(), "html" if accepts_html else "json")
    except InvalidValueError as exc:
        return error_response(400, str(exc), VARY)
    # Whole transitions of a period are read, so many readers share one report.
    return await context.history_single_flight.get_async(
        ("report", request.query, params.format), lambda: _make_response(context, params)
    )


def parse_report_query(query: bytes, now_s: float, default_format: str) -> ReportParams:
    values = parse_known_query(query, PARAMETERS)
    begin, end, form = (parse_single(values, one) for one in PARAMETERS)
    to_s = now_s if end is None else min(now_s, parse_moment_s("to", end, now_s))
    from_s = to_s - DEFAULT_PERIOD_S if begin is None else parse_moment_s("from", begin, now_s)
    if from_s >= to_s:
        raise InvalidValueError("from must be earlier than to, and not in the future")
    form = default_format if form is None else form
    if form not in FORMATS:
        raise InvalidValueError(f"format must be one of {', '.join(FORMATS)}")
    return ReportParams(from_s, to_s, form)


async def _make_response(context: OperatorContext, params: ReportParams) -> Response:
    found = await context.history.report(params.from_s, params.to_s)
    services = [NamedService(one.id, one.name, one.slo_percent) for one, _ in context.node]
    node_name = context.node.identity.node_name

    def make() -> Response:
        document = report_document(found, node_name, services, time.time())
        match params.format:
            case "html":
                body, content_type = html_page(document), "text/html; charset=utf-8"
                return make_response(200, body.encode(), *HTML_HEADERS, VARY, content_type=content_type)
            case "csv":
                return make_response(200, csv_text(document).encode(), VARY, content_type="text/csv; charset=utf-8")
            case _:
                return make_response(200, compact_json(document).encode(), VARY)

    return await call_in_pool(make)


def report_document(
    report: PeriodReport, node_name: str, services: Sequence[NamedService], now_s: float
) -> dict[str, Any]:
    """The services that have been there in the period, the least available first."""
    named = {one.id: one for one in services}
    documents = [
        _service_document(subject, named.get(service_id) or NamedService(service_id, service_id), service_id in named)
        for service_id, subject in report.services.items()
    ]
    documents.sort(key=_order)
    return {
        "node": node_name,
        "created": iso_time(now_s),
        "from": iso_time(report.period.from_s),
        "to": iso_time(report.period.to_s),
        "data_from": None if report.data_from_s is None else iso_time(report.data_from_s),
        "outages_from": None if report.outages_from_s is None else iso_time(report.outages_from_s),
        "health": {
            **_subject_document(report.node),
            "healthy": _share(report.node.times.up_s, report.node.times.known_s),
        },
        "services": documents,
    }


def _order(document: Mapping[str, Any]) -> tuple[float, str]:
    share = document["availability"]
    return 2.0 if share is None else share, document["id"]


def _service_document(subject: SubjectReport, service: NamedService, is_registered: bool) -> dict[str, Any]:
    slo = service.slo_percent
    budget = None if slo is None or not subject.times.known_s else subject.budget(slo)
    left = None if budget is None else budget.left_share
    return {
        "id": service.id,
        "name": service.name,
        "registered": is_registered,
        **_subject_document(subject),
        "slo": slo_text(slo),
        "budget_s": None if budget is None else round(budget.allowed_s, 3),
        "budget_left_s": None if budget is None else round(budget.left_s, 3),
        "budget_left_percent": None if left is None else round(100 * left, 2),
    }


def _subject_document(subject: SubjectReport) -> dict[str, Any]:
    times, outages = subject.times, subject.outages
    percentiles_ms = (None if one is None else round(1000 * one, 3) for one in subject.percentiles_s)
    return {
        "availability": _availability(subject),
        "known_s": round(times.known_s, 3),
        "up_s": round(subject.up_s, 3),
        "maintenance_s": round(times.maintenance_s, 3),
        "outages": len(outages),
        "outage_open": any(outage.is_open for outage in outages),
        "longest_outage_s": None if subject.longest_s is None else round(subject.longest_s, 3),
        "mean_recovery_s": None if subject.mean_recovery_s is None else round(subject.mean_recovery_s, 3),
        **dict(zip(("p50_ms", "p95_ms", "p99_ms"), percentiles_ms, strict=True)),
        "latest_outages": [_outage_document(outage) for outage in outages[-MAX_LISTED_OUTAGES:][::-1]],
    }


def _availability(subject: SubjectReport) -> float | None:
    """Never 1 with an outage, however short it was."""
    share = _share(subject.up_s, subject.times.known_s)
    return share if share is None or not subject.outages else min(share, LESS_THAN_ALL)


def _share(part_s: float, whole_s: float) -> float | None:
    return round(part_s / whole_s, 8) if whole_s > 0 else None


def _outage_document(outage: Outage) -> dict[str, Any]:
    return {
        "from": iso_time(outage.begin_s),
        "until": iso_time(outage.end_s),
        "length_s": round(outage.length_s, 3),
        "begun_before": outage.is_begun_before,
        "open": outage.is_open,
    }
