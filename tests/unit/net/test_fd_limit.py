from __future__ import annotations

import math
import resource

import pytest

from svcnode.net.fd_limit import fd_limit, hard_fd_limit, raise_fd_limit

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "allowed", "raised_to"),
    [
        (1024, 20_000, 5000, 5000),
        (1024, UNLIMITED, 5000, 5000),
        (1024, 2048, 2048, 2048),
        (1024, 1024, 1024, None),
        (20_000, 20_000, 5000, None),
        (UNLIMITED, UNLIMITED, 5000, None),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_needed_and_allowed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, allowed: int, raised_to: int | None
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert raise_fd_limit(5000) == allowed
    assert raised == ([] if raised_to is None else [(raised_to, hard)])


@pytest.mark.parametrize(("soft", "limit"), [(1024, 1024), (UNLIMITED, math.inf)])
def test_a_program_may_use_what_its_soft_limit_allows(monkeypatch: pytest.MonkeyPatch, soft: int, limit: float) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, UNLIMITED))
    assert fd_limit() == limit


@pytest.mark.parametrize(("hard", "limit"), [(4096, 4096), (UNLIMITED, math.inf)])
def test_the_hard_limit_is_as_far_as_the_soft_limit_can_go(
    monkeypatch: pytest.MonkeyPatch, hard: int, limit: float
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    assert hard_fd_limit() == limit
