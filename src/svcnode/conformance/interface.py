"""The interface that a node is judged by, as its document has it: endpoints, codes and fixed words."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

VERSION = "v0.0.1"  # of the interface document that is judged by
UNSUPPORTED = "v999.0.0"
VERSION_NOT_FOUND = "API version not found"
HEALTH_CODES = {"Up": 200, "Initializing": 206, "Down": 503}
ANY_HEALTH = tuple(HEALTH_CODES.values())
ANY_HEALTH_WORDS = "200, 206 or 503"
WRITING_METHODS = ("POST", "PUT", "PATCH", "DELETE")
OTHER_METHODS = (*WRITING_METHODS, "OPTIONS")  # than GET and HEAD
# In a path they name another place: who tidies /node/services/../health asks for the health of the node.
DOT_IDS = (".", "..")

IDENTITY, HEALTH, SERVICES, SERVICE_HEALTH = "identity", "health", "services", "service-health"


@dataclass(frozen=True, slots=True)
class Place:
    """One of the four endpoints, and the codes that it answers with when nothing is wrong with the request."""

    endpoint: str
    path: str
    codes: tuple[int, ...]

    @property
    def expected(self) -> str:
        return ANY_HEALTH_WORDS if self.codes == ANY_HEALTH else "200"


FIXED = {
    IDENTITY: Place(IDENTITY, "/node", (200,)),
    HEALTH: Place(HEALTH, "/node/health", ANY_HEALTH),
    SERVICES: Place(SERVICES, "/node/services", (200,)),
}


def health_path(service_id: str) -> str:
    return f"/node/services/{quote(service_id, safe='')}/health"


def needs_encoding(service_id: str) -> bool:
    return quote(service_id, safe="") != service_id
