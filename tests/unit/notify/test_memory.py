"""What is kept of what was told, and how it is read again."""

from __future__ import annotations

import pytest

from svcnode.core.model import Health, Impact, Service
from svcnode.notify.memory import Kept, Missed, from_text, not_over, to_text
from svcnode.notify.rules import Incident

DB = Service(id="db", name="Ledger \N{BLACK STAR}", description="", impact=Impact.CRITICAL)


def incident(
    service: Service | None,
    told: Health = Health.UNHEALTHY,
    *,
    since_s: float = 100.0,
    is_sure: bool = True,
    is_again: bool = False,
) -> Incident:
    return Incident(service=service, told=told, since_s=since_s, is_sure=is_sure, is_again=is_again)


def test_what_is_kept_is_read_as_it_was() -> None:
    known = Kept(
        incidents=[incident(None), incident(DB, is_sure=False, is_again=True)],
        missed=[Missed("https://hooks.example.com", 2), Missed("https://hooks.example.com", 0)],
    )
    text = to_text(known, lambda at_s: at_s + 1_767_225_600.0)
    assert from_text(text, lambda at_s: at_s - 1_767_225_600.0) == known


def test_where_nothing_was_kept_nothing_is_known() -> None:
    assert from_text(None, lambda at_s: at_s) == Kept()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "1",
        "[1]",
        "{}",
        '{"incidents": [["db"]], "missed": []}',
        '{"incidents": [["db", "", "dire", 503, 1.0, true, false]], "missed": []}',
        '{"incidents": [["", "", "none", 9, 1, 1, 1]], "missed": []}',
        '{"incidents": [], "missed": [["https://hooks.example.com", "many"]]}',
    ],
)
def test_what_cannot_be_understood_is_as_good_as_nothing(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert from_text(text, lambda at_s: at_s) == Kept()
    assert "cannot be read, and may be told again" in caplog.text


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


def test_what_began_after_what_all_were_told_is_known_as_that_until_all_are_told() -> None:
    def is_again(known: Incident | None, posted: Incident) -> bool:
        (one,) = not_over({} if known is None else {"db": known}, {"db": posted})
        return one.is_again

    known = incident(DB, since_s=100.0)
    assert is_again(known, incident(DB, since_s=200.0))
    assert not is_again(known, incident(DB, Health.PARTIAL, since_s=100.0)), "the same trouble"
    assert not is_again(None, incident(DB, since_s=200.0)), "nobody is sure to have been told of any"
    unsure = incident(DB, since_s=200.0, is_sure=False, is_again=True)
    assert is_again(unsure, unsure)
    assert is_again(unsure, incident(DB, since_s=200.0)), "it was told, and that has not arrived"
