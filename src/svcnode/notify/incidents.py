"""What was told and is not over: whoever was told waits to hear the end of it, also over a restart.

After one, what all are certain to have been told is news again when it changes. What they are not is told once more, as
what it is by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.core.model import Health, Service

MAX_INCIDENTS = 1000  # that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Somebody was told that a thing is not well, and not yet that it is."""

    service: Service | None  # None: it is the node
    told: Health
    since_s: float  # when it was last well
    is_sure: bool  # that all were told
    is_again: bool = False  # it was well after what some were told last


Incidents = Mapping[str | None, Incident]  # by id; that of the node is None


def not_over(posted: Incidents, taken: Sequence[Incidents]) -> list[Incident]:
    """What is not over for all: as it was last posted, and as each target took it last.

    What is on its way may never arrive: sure is only what every target took just so, and has not changed since.
    """
    keys = dict.fromkeys(chain(posted, *taken))
    return [_as_known(posted.get(key), [incidents.get(key) for incidents in taken]) for key in keys]


def _as_known(posted: Incident | None, taken: Sequence[Incident | None]) -> Incident:
    if posted is not None and all(one == posted for one in taken):
        return posted
    known = [one for one in taken if one is not None]
    # What is over, but not for all, has lasted the longest for whoever was told first.
    last = posted or min(known, key=lambda one: one.since_s)
    is_again = any(one.is_again or one.since_s < last.since_s for one in known)
    return replace(last, is_sure=False, is_again=is_again)
