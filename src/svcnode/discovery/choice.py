"""For each service that was found, the probe to write: the deepest one that works here as it is.

A deep probe that needs a password nobody has given, or a driver that is not installed, would say that a service is
down which may be well. In its place stands one that is true, if shallow, and beside it what is missing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.core.errors import ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.look import look_once
from svcnode.probes import make_probe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.discovery.search import Found
    from svcnode.probes import Probe

LOOK_WITHIN_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    found: Found
    probe: str
    verdict: Verdict | None = None  # what the deep probe said, where one could be made
    missing: str = ""  # why none could be made
    better: str = ""  # the deep probe, where another one had to be taken


async def choose(found: Iterable[Found]) -> list[Choice]:
    # All are made before the first one looks: loading a driver takes its time, which no look has to spare.
    made = [(one, _made(one)) for one in found]
    return list(await asyncio.gather(*(_chosen(one, probe) for one, probe in made)))


def _made(found: Found) -> Probe | ProbeError:
    try:
        return make_probe(found.known.probe_at(found.endpoint), environ={})
    except ProbeError as exc:
        return exc


async def _chosen(found: Found, probe: Probe | ProbeError) -> Choice:
    if isinstance(probe, ProbeError):
        return _shallow(found, missing=str(probe))
    verdict, _ = await look_once(probe, LOOK_WITHIN_S)
    return chosen(found, verdict)


def chosen(found: Found, verdict: Verdict) -> Choice:
    """By what the deep probe said. One that needs no password is right whatever it said."""
    if verdict.outcome in (Outcome.READY, Outcome.NOT_READY) or not found.known.login_url:
        return Choice(found=found, probe=found.known.probe_at(found.endpoint), verdict=verdict)
    return _shallow(found, verdict=verdict)


def _shallow(found: Found, *, verdict: Verdict | None = None, missing: str = "") -> Choice:
    known, endpoint = found.known, found.endpoint
    better = known.login_probe_at(endpoint) or known.probe_at(endpoint)
    return Choice(found=found, probe=f"tcp://{endpoint}", verdict=verdict, missing=missing, better=better)
