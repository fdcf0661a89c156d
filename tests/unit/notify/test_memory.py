"""What is kept of what was told, and how it is read again."""

from __future__ import annotations

import pytest

from svcnode.core.model import Health, Impact, Service
from svcnode.notify.memory import from_text, not_over, to_text
from svcnode.notify.rules import Incident

DB = Service(id="db", name="Ledger \N{BLACK STAR}", description="", impact=Impact.CRITICAL)


def incident(service: Service | None, told: Health = Health.UNHEALTHY, *, is_sure: bool = True) -> Incident:
    return Incident(service=service, told=told, since_s=100.0, is_sure=is_sure)


def test_what_is_kept_is_read_as_it_was() -> None:
    known = [incident(None), incident(DB, is_sure=False)]
    text = to_text(known, lambda at_s: at_s + 1_767_225_600.0)
    assert from_text(text, lambda at_s: at_s - 1_767_225_600.0) == known


def test_where_nothing_was_kept_nothing_is_known() -> None:
    assert from_text(None, lambda at_s: at_s) == []


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "1", "[1]", '[["db"]]', '[["db", "", "dire", 503, 1.0, true]]', '[["", "", "none", 9, 1, 1]]'],
)
def test_what_cannot_be_understood_is_as_good_as_nothing(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert from_text(text, lambda at_s: at_s) == []
    assert bool(text) == ("cannot be read, and may be told again" in caplog.text)


def test_sure_is_only_what_everybody_was_told_just_so() -> None:
    down, starting = incident(DB), incident(DB, Health.PARTIAL)

    def is_sure(delivered: Incident | None, posted: Incident | None) -> list[tuple[Health, bool]]:
        def by_id(one: Incident | None) -> dict[str | None, Incident]:
            return {} if one is None else {"db": one}

        return [(one.told, one.is_sure) for one in not_over(by_id(delivered), by_id(posted))]

    assert is_sure(down, down) == [(Health.UNHEALTHY, True)]
    assert is_sure(None, down) == [(Health.UNHEALTHY, False)]
    assert is_sure(starting, down) == [(Health.UNHEALTHY, False)]
    assert is_sure(down, None) == [(Health.UNHEALTHY, False)], "that it is over may not have arrived"
    assert is_sure(incident(DB, is_sure=False), incident(DB, is_sure=False)) == [(Health.UNHEALTHY, False)]
    assert is_sure(None, None) == []
