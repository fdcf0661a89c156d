"""The constants of the interface document: endpoints, status codes and messages."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

VERSION = "v0.0.1"  # of the interface document
UNSUPPORTED_VERSION = "v999.0.0"
VERSION_NOT_FOUND = "API version not found"
HEALTH_CODES = {"Up": 200, "Initializing": 206, "Down": 503}
ALL_HEALTH_CODES = tuple(HEALTH_CODES.values())
HEALTH_CODES_TEXT = "200, 206 or 503"
WRITING_METHODS = ("POST", "PUT", "PATCH", "DELETE")
OTHER_METHODS = (*WRITING_METHODS, "OPTIONS")  # than GET and HEAD
# Clients and proxies normalize /node/services/../health to /node/health.
DOT_IDS = (".", "..")

IDENTITY, HEALTH, SERVICES, SERVICE_HEALTH = "identity", "health", "services", "service-health"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One of the four endpoints, and the status codes of its response to a correct request."""

    name: str
    path: str
    expected_codes: tuple[int, ...]

    @property
    def expected_text(self) -> str:
        return HEALTH_CODES_TEXT if self.expected_codes == ALL_HEALTH_CODES else "200"


STATIC_ENDPOINTS = {
    IDENTITY: Endpoint(IDENTITY, "/node", (200,)),
    HEALTH: Endpoint(HEALTH, "/node/health", ALL_HEALTH_CODES),
    SERVICES: Endpoint(SERVICES, "/node/services", (200,)),
}


def service_health_path(service_id: str) -> str:
    return f"/node/services/{quote(service_id, safe='')}/health"


def needs_encoding(service_id: str) -> bool:
    return quote(service_id, safe="") != service_id
