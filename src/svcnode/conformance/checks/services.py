"""`GET /node/services`: the list of backing services."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from svcnode.conformance.check import Level, check
from svcnode.conformance.interface import DOT_IDS, HEALTH_CODES, SERVICES
from svcnode.conformance.response import (
    format_content_type,
    format_response,
    join_items,
    json_text,
    parse_body,
    safe_text,
    service_items,
)

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.node_under_test import NodeUnderTest

REQUIRED_FIELDS = ("id", "name", "description")
FIELDS = (*REQUIRED_FIELDS, "status")
EXAMPLE_SERVICE = '{"id":"db-1","name":"Database","description":"Holds the ledger","status":"Up"}'


@check(
    "services-answers",
    Level.MUST,
    "4.3",
    requirement="GET /node/services answers 200.",
    fix="Serve the list at /node/services under the prefix with 200, also when it is empty.",
)
async def services_answers(node: NodeUnderTest) -> Findings:
    exchange = await node.first_response(SERVICES)
    if exchange.response.code != 200:
        yield exchange.finding("200")


@check(
    "services-content-type",
    Level.MUST,
    "4.3",
    requirement="The list of services is sent as application/json.",
    fix="Send the header Content-Type: application/json once; a charset parameter is allowed.",
    needs=("services-answers",),
)
async def services_content_type(node: NodeUnderTest) -> Findings:
    exchange = await node.first_response(SERVICES)
    if exchange.response.media_type != "application/json":
        yield exchange.finding("Content-Type: application/json", format_content_type(exchange.response))


@check(
    "services-json",
    Level.MUST,
    "4.3",
    requirement="The body of the list of services is JSON.",
    fix='Send an object such as {"services":[' + EXAMPLE_SERVICE + "]}, in UTF-8.",
    needs=("services-answers",),
)
async def services_json(node: NodeUnderTest) -> Findings:
    exchange = await node.first_response(SERVICES)
    if problem := parse_body(exchange.response).error:
        yield exchange.finding("JSON", problem)


@check(
    "services-list",
    Level.MUST,
    "2.2",
    requirement="The list is an object whose field services holds an array; the array may be empty.",
    fix='Wrap the array: {"services":[…]}, and {"services":[]} when no service is registered.',
    needs=("services-json",),
)
async def services_list(node: NodeUnderTest) -> Findings:
    exchange = await node.first_response(SERVICES)
    value = parse_body(exchange.response).value
    if not isinstance(value, dict) or not isinstance(value.get("services"), list):
        yield exchange.finding('{"services":[…]}', format_response(exchange.response))


@check(
    "services-fields",
    Level.MUST,
    "2.2",
    requirement="Every listed service has the fields id, name and description, and each is a string.",
    fix=f"Send every service as an object such as {EXAMPLE_SERVICE}; an empty description is allowed. The status is "
    "optional.",
    needs=("services-json",),
)
async def services_fields(node: NodeUnderTest) -> Findings:
    exchange, items = await node.services()
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            yield exchange.finding("objects as services", f"services[{index}] is {json_text(item)}")
            continue
        for name in REQUIRED_FIELDS:
            if not isinstance(item.get(name), str):
                actual = f"is {json_text(item[name])}, not a string" if name in item else "is missing"
                yield exchange.finding(f"{name} as a string", f"services[{index}].{name} {actual}")


@check(
    "services-status-value",
    Level.MUST,
    "2.2",
    requirement="The status of a service is one of Up, Down and Initializing.",
    fix="Send exactly Up, Down or Initializing, in this spelling, as a string.",
    needs=("services-json",),
)
async def services_status_value(node: NodeUnderTest) -> Findings:
    exchange, items = await node.service_objects()
    for item in items:
        if "status" in item and item["status"] not in tuple(HEALTH_CODES):
            yield exchange.finding(
                "Up, Down or Initializing", f"the status of {_id_text(item)} is {json_text(item['status'])}"
            )


def _id_text(item: dict[str, Any]) -> str:
    return json_text(item.get("id", "?"))


@check(
    "services-status-present",
    Level.ADVICE,
    "2.2",
    requirement="Every listed service has a status, as in every example of the interface.",
    fix="Add the field status to every service: Up, Down or Initializing.",
    needs=("services-json",),
)
async def services_status_present(node: NodeUnderTest) -> Findings:
    exchange, items = await node.service_objects()
    if lacking := [_id_text(item) for item in items if "status" not in item]:
        yield exchange.finding("a status for every service", f"none for {join_items(lacking, 5)}")


@check(
    "services-ids-unique",
    Level.SHOULD,
    "2.2",
    requirement="No two listed services have the same id.",
    fix="Give every service a unique id: it selects the service in /node/services/{id}/health.",
    needs=("services-json",),
)
async def services_ids_unique(node: NodeUnderTest) -> Findings:
    exchange, items = await node.service_objects()
    counts = Counter(item["id"] for item in items if isinstance(item.get("id"), str))
    for service_id, count in counts.items():
        if count > 1:
            yield exchange.finding("every id once", f'"{safe_text(service_id)}" {count} times')


@check(
    "services-ids-not-empty",
    Level.SHOULD,
    "2.2",
    requirement="No listed service has an empty id.",
    fix="Give every service an id of at least one character: an empty id cannot be part of the path of its health.",
    needs=("services-json",),
)
async def services_ids_not_empty(node: NodeUnderTest) -> Findings:
    exchange, items = await node.service_objects()
    if any(item.get("id") == "" for item in items):
        yield exchange.finding("ids of at least one character", 'the id ""')


@check(
    "services-ids-in-paths",
    Level.SHOULD,
    "10.3",
    requirement='No listed service has the id "." or "..".',
    fix="Give the service another id: clients and proxies normalize /node/services/../health to /node/health, "
    "percent-encoded or not, and read the health of the node as that of the service.",
    needs=("services-json",),
)
async def services_ids_in_paths(node: NodeUnderTest) -> Findings:
    exchange, items = await node.service_objects()
    for service_id in DOT_IDS:
        if any(item.get("id") == service_id for item in items):
            yield exchange.finding("ids other than . and ..", f'the id "{service_id}"')


@check(
    "services-no-other-fields",
    Level.ADVICE,
    "2.2",
    requirement="The list has only the field services, and a service only id, name, description and status.",
    fix="Remove the other fields or serve them elsewhere: clients with strict types reject unknown fields.",
    needs=("services-json",),
)
async def services_no_other_fields(node: NodeUnderTest) -> Findings:
    exchange = await node.first_response(SERVICES)
    value = parse_body(exchange.response).value
    outer = set(value) - {"services"} if isinstance(value, dict) and "services" in value else set()
    items = [item for item in service_items(exchange.response) or [] if isinstance(item, dict)]
    # A misspelt required field is reported as missing by another check.
    inner = {name for item in items if set(REQUIRED_FIELDS) <= set(item) for name in set(item) - set(FIELDS)}
    if others := sorted(outer | inner):
        yield exchange.finding(
            join_items(["services", *FIELDS]), f"also {join_items(list(map(safe_text, others)), 10)}"
        )
