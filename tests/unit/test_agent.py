from __future__ import annotations

import resource

import pytest

from svcnode.agent import FILES_FOR_THE_REST, _connections_to_be_had

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "raised_to"),
    [
        (1024, 20_000, 4096, 4096 + FILES_FOR_THE_REST),
        (1024, UNLIMITED, 4096, 4096 + FILES_FOR_THE_REST),
        (1024, 2048, 2048 - FILES_FOR_THE_REST, 2048),
        (1024, 1024, 1024 - FILES_FOR_THE_REST, None),
        (64, 64, 1, None),
        (20_000, 20_000, 4096, None),
        (UNLIMITED, UNLIMITED, 4096, None),
    ],
)
def test_connections_leave_open_files_to_the_looking(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, connections: int, raised_to: int | None
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert _connections_to_be_had() == connections
    assert raised == ([] if raised_to is None else [(raised_to, hard)])
