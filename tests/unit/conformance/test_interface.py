"""The four endpoints as the interface document has them."""

from __future__ import annotations

import pytest

from svcnode.conformance.interface import (
    HEALTH,
    IDENTITY,
    SERVICES,
    STATIC_ENDPOINTS,
    needs_encoding,
    service_health_path,
)


def test_health_is_one_of_three_codes_and_all_else_is_200() -> None:
    assert {name: endpoint.expected_codes for name, endpoint in STATIC_ENDPOINTS.items()} == {
        IDENTITY: (200,),
        HEALTH: (200, 206, 503),
        SERVICES: (200,),
    }
    assert [endpoint.expected_text for endpoint in STATIC_ENDPOINTS.values()] == ["200", "200, 206 or 503", "200"]


@pytest.mark.parametrize(
    ("service_id", "segment"), [("db-1", "db-1"), ("a/b", "a%2Fb"), ("a b%", "a%20b%25"), ("ü", "%C3%BC"), ("..", "..")]
)
def test_an_id_is_one_segment_of_the_path_whatever_it_holds(service_id: str, segment: str) -> None:
    assert service_health_path(service_id) == f"/node/services/{segment}/health"
    assert needs_encoding(service_id) == (segment != service_id)
