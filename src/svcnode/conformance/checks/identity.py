"""`GET /node`: the identity of the node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from svcnode.conformance.check import Level, check
from svcnode.conformance.interface import IDENTITY
from svcnode.conformance.node_under_test import Skip
from svcnode.conformance.response import (
    format_content_type,
    format_response,
    join_items,
    json_text,
    parse_body,
    safe_text,
)

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.node_under_test import NodeUnderTest

FIELDS = ("node_name", "spec_version", "node_version")
EXAMPLE = '{"node_name":"my-node","spec_version":"v0.0.1","node_version":"v1.0.0"}'
VERSION_PATTERN = re.compile(r"v[0-9]+(\.[0-9]+)*", re.ASCII)


@check(
    "identity-answers",
    Level.MUST,
    "4.1",
    requirement="GET /node answers 200.",
    fix="Serve the identity at /node under the prefix, without authentication and without a redirect.",
)
async def identity_answers(node: NodeUnderTest) -> Findings:
    exchange = await node.first_response(IDENTITY)
    if exchange.response.code != 200:
        yield exchange.finding("200")


@check(
    "identity-content-type",
    Level.MUST,
    "4.1",
    requirement="The identity is sent as application/json.",
    fix="Send the header Content-Type: application/json once; a charset parameter is allowed.",
    needs=("identity-answers",),
)
async def identity_content_type(node: NodeUnderTest) -> Findings:
    exchange = await node.first_response(IDENTITY)
    if exchange.response.media_type != "application/json":
        yield exchange.finding("Content-Type: application/json", format_content_type(exchange.response))


@check(
    "identity-json",
    Level.MUST,
    "4.1",
    requirement="The body of the identity is one JSON object.",
    fix=f"Send an object such as {EXAMPLE}, in UTF-8.",
    needs=("identity-answers",),
)
async def identity_json(node: NodeUnderTest) -> Findings:
    exchange = await node.first_response(IDENTITY)
    document = parse_body(exchange.response)
    if not isinstance(document.value, dict):
        yield exchange.finding("a JSON object", document.error or format_response(exchange.response))


@check(
    "identity-fields",
    Level.MUST,
    "2.1",
    requirement="The identity has the fields node_name, spec_version and node_version, and each is a string.",
    fix=f"Send all three fields under exactly these names, each as a JSON string: {EXAMPLE}.",
    needs=("identity-json",),
)
async def identity_fields(node: NodeUnderTest) -> Findings:
    exchange, fields = await node.identity()
    for name in FIELDS:
        if name not in fields:
            yield exchange.finding(
                f"the field {name}", f"only {join_items(list(map(safe_text, fields)), 10) or 'an empty object'}"
            )
        elif not isinstance(fields[name], str):
            yield exchange.finding(f"{name} as a string", f"{name} is {json_text(fields[name])}, not a string")


@check(
    "identity-spec-version-form",
    Level.MUST,
    "2.1",
    requirement='spec_version is the letter "v" followed by dotted numbers.',
    fix="Report the version of the interface as v0.0.1: a lower-case v, then numbers and dots only.",
    needs=("identity-json",),
)
def identity_spec_version_form(node: NodeUnderTest) -> Findings:
    return _form_findings(node, "spec_version")


@check(
    "identity-node-version-form",
    Level.MUST,
    "2.1",
    requirement='node_version is the letter "v" followed by dotted numbers.',
    fix="Report the version of the node's software in the form v1.2.3, without a suffix.",
    needs=("identity-json",),
)
def identity_node_version_form(node: NodeUnderTest) -> Findings:
    return _form_findings(node, "node_version")


async def _form_findings(node: NodeUnderTest, name: str) -> Findings:
    exchange, fields = await node.identity()
    value = fields.get(name)
    if not isinstance(value, str):
        raise Skip(f"{name} is missing or not a string")
    if not VERSION_PATTERN.fullmatch(value):
        yield exchange.finding(f"{name} such as v0.0.1", f'{name} is "{safe_text(value)}"')


@check(
    "identity-name-not-empty",
    Level.ADVICE,
    "10.1",
    requirement="node_name is not empty.",
    fix="Give the node a name that distinguishes it from others.",
    needs=("identity-json",),
)
async def identity_name_not_empty(node: NodeUnderTest) -> Findings:
    exchange, fields = await node.identity()
    if not isinstance(name := fields.get("node_name"), str):
        raise Skip("node_name is missing or not a string")
    if not name.strip():
        yield exchange.finding("a name", f'node_name is "{safe_text(name)}"')


@check(
    "identity-no-other-fields",
    Level.ADVICE,
    "2.1",
    requirement="The identity has no other fields.",
    fix="Remove the other fields or serve them elsewhere: clients with strict types reject unknown fields.",
    needs=("identity-json", "identity-fields"),
)
async def identity_no_other_fields(node: NodeUnderTest) -> Findings:
    exchange, fields = await node.identity()
    if others := sorted(set(fields) - set(FIELDS)):
        yield exchange.finding(join_items(list(FIELDS)), f"also {join_items(list(map(safe_text, others)), 10)}")
