from __future__ import annotations

import resource

import pytest

from svcnode.agent.fd_budget import RESERVED_FDS, allocate_fds

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "shares", "raised_to"),
    [
        (1024, 20_000, (4096, 1024), 4096 + 1024 + RESERVED_FDS),
        (1024, UNLIMITED, (4096, 1024), 4096 + 1024 + RESERVED_FDS),
        (1024, 2048, (1440, 480), 2048),
        (1024, 1024, (672, 224), None),
        (64, 64, (1, 1), None),
        (20_000, 20_000, (4096, 1024), None),
        (UNLIMITED, UNLIMITED, (4096, 1024), None),
    ],
)
def test_connections_and_checks_share_the_file_descriptors(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, shares: tuple[int, int], raised_to: int | None
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert allocate_fds() == shares
    assert raised == ([] if raised_to is None else [(raised_to, hard)])
