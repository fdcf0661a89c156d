"""What a message adds to a problem, so that its reader can act: advice, how often it happened, links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from svcnode.core.model import Health
from svcnode.core.text import sanitize
from svcnode.core.units import format_short_duration
from svcnode.notify.outages import MAX_OUTAGES, PERIOD_S
from svcnode.notify.rule import OPEN, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.core.model import Service
    from svcnode.node.node_state import NodeState
    from svcnode.notify.outages import OutageLog, Outages
    from svcnode.notify.routes import Entry
    from svcnode.probes.base import Probe

MIN_PERIOD_S = 86_400.0
_TARGET_ADVICE = "On the node's machine, run: svcnode notify-test. It shows the error of each target."


class Help(NamedTuple):
    """What helps with one problem; empty if nothing is known that does."""

    advice: str = ""
    outages: Outages | None = None
    runbook: str = ""

    def lines(self) -> Iterator[str]:
        if self.advice:
            yield f"what to do: {self.advice}"
        if often := how_often(self.outages):
            yield f"how often: {often}"
        if self.runbook:
            yield f"runbook: {self.runbook}"

    def fields(self) -> dict[str, Any]:
        outages = None
        if self.outages is not None:
            outages = {"count": self.outages.number, "period_s": round(self.outages.period_s)}
        return {"advice": self.advice or None, "outages": outages, "runbook": self.runbook or None}

    def annotations(self) -> dict[str, str]:
        texts = {"advice": self.advice, "how_often": how_often(self.outages), "runbook_url": self.runbook}
        return {name: text for name, text in texts.items() if text}


def find_help(entry: Entry, node: NodeState, outages: OutageLog) -> Help:
    """For a problem that is over, it only says how often it happened."""
    service, is_open = entry.subject.service, entry.kind in OPEN
    if service is None:
        return Help(_TARGET_ADVICE if is_open and entry.subject.key.type == "target" else "")
    was_down = Health.UNHEALTHY in (entry.health, entry.worst) and entry.kind is not Kind.REMOVED
    return Help(
        advice=_advice(service, entry, node) if is_open and entry.code else "",
        outages=outages.find(service.id, node.now_s()) if was_down else None,
        runbook=sanitize(service.runbook) if is_open else "",
    )


def _advice(service: Service, entry: Entry, node: NodeState) -> str:
    from svcnode.core.remedies import advice_text, advised_code  # loaded late: most nodes have no problem
    from svcnode.node.stats import probe_kind

    config = node.probe_config(service.id)
    is_probed = config is not None or service.policy.stale_after_s is not None  # by another replica
    code = advised_code(entry.code or "", is_probed=is_probed, is_failure=entry.worst is Health.UNHEALTHY)
    probe = None if config is None else _display_url(config.probe)
    timeout_s = None if config is None else config.schedule.timeout_s
    return sanitize(advice_text(code, service.id, probe_kind(config), probe, timeout_s))


def _display_url(probe: Probe) -> str | None:
    try:
        return probe.display_url
    except Exception:  # noqa: BLE001  a probe of another package may raise anything, and the message must be sent
        return None


def how_often(outages: Outages | None) -> str:
    """Empty if too little is known: that something is new within hours says nothing."""
    if outages is None or (outages.number == 1 and outages.period_s < MIN_PERIOD_S):
        return ""
    number, period_s = outages
    is_whole = period_s >= PERIOD_S
    period = "30 days" if is_whole else f"{format_short_duration(period_s)}; earlier outages are not counted"
    if number >= MAX_OUTAGES:
        return f"more than {MAX_OUTAGES - 1} times in {period}"
    return f"{'first' if number == 1 else _ordinal(number)} time in {period}"


def _ordinal(number: int) -> str:
    suffix = "th" if 11 <= number % 100 <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def page_link(page_url: str, service: Service | None = None) -> str:
    """To the page of the node, or to a service there; empty if the URL is not known."""
    place = "" if service is None else f"#q={quote(service.id, safe='')}"
    return f"{page_url.rstrip('/')}/{place}" if page_url else ""
