"""`GET /node`: who the node is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from svcnode.conformance.check import SILENT, Level, NotJudgedError, check
from svcnode.conformance.interface import IDENTITY
from svcnode.conformance.reading import content_type_of, parsed, told
from svcnode.conformance.wording import as_json, listed, shown

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.subject import Subject

FIELDS = ("node_name", "spec_version", "node_version")
EXAMPLE = '{"node_name":"my-node","spec_version":"v0.0.1","node_version":"v1.0.0"}'
FORM = re.compile(r"v[0-9]+(\.[0-9]+)*", re.ASCII)


@check(
    "identity-answers",
    Level.MUST,
    "4.1",
    demands="GET /node answers 200.",
    mend="Serve the identity at /node under the prefix, open to everyone and without a redirect.",
)
async def identity_answers(node: Subject) -> Findings:
    exchanged = await node.first(IDENTITY)
    if exchanged.answer.code != 200:
        yield exchanged.finding("200")


@check(
    "identity-content-type",
    Level.MUST,
    "4.1",
    demands="The identity is sent as application/json.",
    mend="Send the header Content-Type: application/json once; a charset after it does no harm.",
    needs=("identity-answers",),
)
async def identity_content_type(node: Subject) -> Findings:
    exchanged = await node.first(IDENTITY)
    if exchanged.answer.media_type != "application/json":
        yield exchanged.finding("Content-Type: application/json", content_type_of(exchanged.answer))


@check(
    "identity-json",
    Level.MUST,
    "4.1",
    demands="The body of the identity is one JSON object.",
    mend=f"Send an object such as {EXAMPLE}, in UTF-8.",
    needs=("identity-answers",),
)
async def identity_json(node: Subject) -> Findings:
    exchanged = await node.first(IDENTITY)
    document = parsed(exchanged.answer)
    if not isinstance(document.value, dict):
        yield exchanged.finding("a JSON object", document.fault or told(exchanged.answer))


@check(
    "identity-fields",
    Level.MUST,
    "2.1",
    demands="The identity has the fields node_name, spec_version and node_version, and each is a string.",
    mend=f"Send all three fields under exactly these names, each as a JSON string: {EXAMPLE}.",
    needs=("identity-json",),
)
async def identity_fields(node: Subject) -> Findings:
    exchanged, fields = await node.identity()
    for name in FIELDS:
        if name not in fields:
            yield exchanged.finding(
                f"the field {name}", f"only {listed(list(map(shown, fields)), 10) or 'an empty object'}"
            )
        elif not isinstance(fields[name], str):
            yield exchanged.finding(f"{name} as a string", f"{name} is {as_json(fields[name])}, and no string")


@check(
    "identity-spec-version-form",
    Level.MUST,
    "2.1",
    demands='spec_version is the letter "v" followed by dotted numbers.',
    mend="Report the version of the interface as v0.0.1: a small v, numbers and dots, and nothing else.",
    needs=("identity-json",),
)
def identity_spec_version_form(node: Subject) -> Findings:
    return _form_findings(node, "spec_version")


@check(
    "identity-node-version-form",
    Level.MUST,
    "2.1",
    demands='node_version is the letter "v" followed by dotted numbers.',
    mend="Report the version of the node's software in the form v1.2.3, without a suffix.",
    needs=("identity-json",),
)
def identity_node_version_form(node: Subject) -> Findings:
    return _form_findings(node, "node_version")


async def _form_findings(node: Subject, name: str) -> Findings:
    exchanged, fields = await node.identity()
    value = fields.get(name)
    if not isinstance(value, str):
        raise NotJudgedError(f"{name} is missing, or no string")
    if not FORM.fullmatch(value):
        yield exchanged.finding(f"{name} such as v0.0.1", f'{name} is "{shown(value)}"')


@check(
    "identity-name-not-empty",
    Level.ADVICE,
    SILENT,
    demands="node_name is not empty.",
    mend="Give the node a name, so that it can be told from others.",
    needs=("identity-json",),
)
async def identity_name_not_empty(node: Subject) -> Findings:
    exchanged, fields = await node.identity()
    if not isinstance(name := fields.get("node_name"), str):
        raise NotJudgedError("node_name is missing, or no string")
    if not name.strip():
        yield exchanged.finding("a name", f'node_name is "{shown(name)}"')


@check(
    "identity-no-other-fields",
    Level.ADVICE,
    "2.1",
    demands="The identity has no fields but its three.",
    mend="Leave the other fields out, or serve them elsewhere: clients with strict types refuse what they do not know.",
    needs=("identity-json", "identity-fields"),
)
async def identity_no_other_fields(node: Subject) -> Findings:
    exchanged, fields = await node.identity()
    if others := sorted(set(fields) - set(FIELDS)):
        yield exchanged.finding(listed(list(FIELDS)), f"also {listed(list(map(shown, others)), 10)}")
