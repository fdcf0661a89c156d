"""`GET /node/services`: the list of backing services."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from svcnode.conformance.check import Level, check
from svcnode.conformance.interface import DOT_IDS, HEALTH_CODES, SERVICES
from svcnode.conformance.reading import content_type_of, items_of, parsed, told
from svcnode.conformance.wording import as_json, listed, shown

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.subject import Subject

REQUIRED = ("id", "name", "description")
FIELDS = (*REQUIRED, "status")
ENTRY = '{"id":"db-1","name":"Database","description":"Holds the ledger","status":"Up"}'


@check(
    "services-answers",
    Level.MUST,
    "4.3",
    demands="GET /node/services answers 200.",
    mend="Serve the list at /node/services under the prefix with 200, also when it is empty.",
)
async def services_answers(node: Subject) -> Findings:
    exchanged = await node.first(SERVICES)
    if exchanged.answer.code != 200:
        yield exchanged.finding("200")


@check(
    "services-content-type",
    Level.MUST,
    "4.3",
    demands="The list of services is sent as application/json.",
    mend="Send the header Content-Type: application/json once; a charset after it does no harm.",
    needs=("services-answers",),
)
async def services_content_type(node: Subject) -> Findings:
    exchanged = await node.first(SERVICES)
    if exchanged.answer.media_type != "application/json":
        yield exchanged.finding("Content-Type: application/json", content_type_of(exchanged.answer))


@check(
    "services-json",
    Level.MUST,
    "4.3",
    demands="The body of the list of services is JSON.",
    mend='Send an object such as {"services":[' + ENTRY + "]}, in UTF-8.",
    needs=("services-answers",),
)
async def services_json(node: Subject) -> Findings:
    exchanged = await node.first(SERVICES)
    if fault := parsed(exchanged.answer).fault:
        yield exchanged.finding("JSON", fault)


@check(
    "services-list",
    Level.MUST,
    "2.2",
    demands="The list is an object whose field services holds an array; the array may be empty.",
    mend='Wrap the array: {"services":[…]}, and {"services":[]} when no service is registered.',
    needs=("services-json",),
)
async def services_list(node: Subject) -> Findings:
    exchanged = await node.first(SERVICES)
    value = parsed(exchanged.answer).value
    if not isinstance(value, dict) or not isinstance(value.get("services"), list):
        yield exchanged.finding('{"services":[…]}', told(exchanged.answer))


@check(
    "services-fields",
    Level.MUST,
    "2.2",
    demands="Every listed service has the fields id, name and description, and each is a string.",
    mend=f"Send every service as an object such as {ENTRY}; an empty description is a string too. The status is "
    "optional.",
    needs=("services-json",),
)
async def services_fields(node: Subject) -> Findings:
    exchanged, items = await node.services()
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            yield exchanged.finding("objects as services", f"services[{place}] is {as_json(item)}")
            continue
        for name in REQUIRED:
            if not isinstance(item.get(name), str):
                came = f"is {as_json(item[name])}, and no string" if name in item else "is missing"
                yield exchanged.finding(f"{name} as a string", f"services[{place}].{name} {came}")


@check(
    "services-status-value",
    Level.MUST,
    "2.2",
    demands="The status of a service is one of Up, Down and Initializing.",
    mend="Send exactly Up, Down or Initializing, in this spelling, as a string.",
    needs=("services-json",),
)
async def services_status_value(node: Subject) -> Findings:
    exchanged, items = await node.described()
    for item in items:
        if "status" in item and item["status"] not in tuple(HEALTH_CODES):
            yield exchanged.finding(
                "Up, Down or Initializing", f"the status of {_name(item)} is {as_json(item['status'])}"
            )


def _name(item: dict[str, Any]) -> str:
    return as_json(item.get("id", "?"))


@check(
    "services-status-present",
    Level.ADVICE,
    "2.2",
    demands="Every listed service has a status, as in every example of the interface.",
    mend="Add the field status to every service: Up, Down or Initializing.",
    needs=("services-json",),
)
async def services_status_present(node: Subject) -> Findings:
    exchanged, items = await node.described()
    if lacking := [_name(item) for item in items if "status" not in item]:
        yield exchanged.finding("a status for every service", f"none for {listed(lacking, 5)}")


@check(
    "services-ids-unique",
    Level.SHOULD,
    "2.2",
    demands="No two listed services have the same id.",
    mend="Give every service an id of its own: it selects the service in /node/services/{id}/health.",
    needs=("services-json",),
)
async def services_ids_unique(node: Subject) -> Findings:
    exchanged, items = await node.described()
    times = Counter(item["id"] for item in items if isinstance(item.get("id"), str))
    for service_id, count in times.items():
        if count > 1:
            yield exchanged.finding("every id once", f'"{shown(service_id)}" {count} times')


@check(
    "services-ids-not-empty",
    Level.SHOULD,
    "2.2",
    demands="No listed service has an empty id.",
    mend="Give every service an id of at least one character: an empty one cannot stand in the path of its health.",
    needs=("services-json",),
)
async def services_ids_not_empty(node: Subject) -> Findings:
    exchanged, items = await node.described()
    if any(item.get("id") == "" for item in items):
        yield exchanged.finding("ids of at least one character", 'the id ""')


@check(
    "services-ids-in-paths",
    Level.SHOULD,
    "2.2",
    demands='No listed service has the id "." or "..", which are no names in a path.',
    mend="Give the service another id: clients and proxies make /node/health of /node/services/../health, "
    "percent-encoded or not, and take the health of the node for that of the service.",
    needs=("services-json",),
)
async def services_ids_in_paths(node: Subject) -> Findings:
    exchanged, items = await node.described()
    for service_id in DOT_IDS:
        if any(item.get("id") == service_id for item in items):
            yield exchanged.finding("ids that are names in a path", f'the id "{service_id}"')


@check(
    "services-no-other-fields",
    Level.ADVICE,
    "2.2",
    demands="The list has no field but services, and a service none but id, name, description and status.",
    mend="Leave the other fields out, or serve them elsewhere: clients with strict types refuse what they do not know.",
    needs=("services-json",),
)
async def services_no_other_fields(node: Subject) -> Findings:
    exchanged = await node.first(SERVICES)
    value = parsed(exchanged.answer).value
    around = set(value) - {"services"} if isinstance(value, dict) and "services" in value else set()
    items = [item for item in items_of(exchanged.answer) or [] if isinstance(item, dict)]
    # A field that is misspelt is missing first of all, and said to be so.
    inside = {name for item in items if set(REQUIRED) <= set(item) for name in set(item) - set(FIELDS)}
    if others := sorted(around | inside):
        yield exchanged.finding(listed(["services", *FIELDS]), f"also {listed(list(map(shown, others)), 10)}")
