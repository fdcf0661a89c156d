"""The API of the control socket agrees with its OpenAPI document."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from svcnode.agent.control import MAX_BODY_BYTES
from svcnode.config.tables import RegisteredServiceTable
from svcnode.control.api import MAX_NAME_CHARS, ROUTES
from svcnode.control.documents import MAX_ISSUES
from svcnode.control.service_documents import MAX_SERVICES, OUTCOMES
from svcnode.core.codes import ReasonCode
from svcnode.core.model import MAX_ID_CHARS
from svcnode.core.text import MAX_REASON_CHARS

DOCUMENT: dict[str, Any] = json.loads(resources.files("svcnode.control").joinpath("openapi.json").read_bytes())
SCHEMAS = DOCUMENT["components"]["schemas"]


def test_the_document_has_every_route_and_no_other() -> None:
    documented = {path: {method.upper() for method in methods} for path, methods in DOCUMENT["paths"].items()}
    assert documented == {path: set(methods) for path, methods in ROUTES.items()}


def test_the_options_of_a_service_are_those_of_the_configuration() -> None:
    assert set(SCHEMAS["ServiceOptions"]["properties"]) == set(RegisteredServiceTable.keys) - {"id"}


def test_the_document_has_every_status_and_reason_code() -> None:
    statuses = [status for one in SCHEMAS["Status"]["anyOf"] for status in one["properties"]["status"]["enum"]]
    assert statuses == list(OUTCOMES)
    assert SCHEMAS["ReasonCode"]["anyOf"][0]["enum"] == list(ReasonCode)


def test_the_document_has_the_limits_of_the_code() -> None:
    parameters, text = DOCUMENT["components"]["parameters"], DOCUMENT["info"]["description"]
    assert parameters["ServiceId"]["schema"]["maxLength"] == MAX_ID_CHARS
    assert parameters["IssueName"]["schema"]["maxLength"] == MAX_NAME_CHARS
    assert SCHEMAS["Status"]["anyOf"][0]["properties"]["reason"]["maxLength"] == MAX_REASON_CHARS
    assert f"at most {MAX_BODY_BYTES // 1024**2} MiB" in text
    assert f"at most {MAX_SERVICES:,} registered services and {MAX_ISSUES} issues" in text
