"""The response bodies that all measured servers must send."""

from __future__ import annotations

import json

HEALTH = "/svc/node/health"
SERVICES = "/svc/node/services"
EXTRA_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def service_fields(number: int) -> dict[str, str]:
    return {"id": f"svc-{number}", "name": f"Service {number}", "description": "A backing service"}


def services_body(service_count: int) -> bytes:
    services = [{**service_fields(number), "status": "Up"} for number in range(service_count)]
    return json.dumps({"services": services}, separators=(",", ":")).encode()
