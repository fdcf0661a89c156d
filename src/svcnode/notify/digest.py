"""From news to a message: words for people, and fields for programs. The fields are stable: docs/notify.md has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, assert_never

from svcnode.core.model import Health, Status
from svcnode.core.redaction import redacted
from svcnode.core.times import iso_time
from svcnode.core.wording import one_line
from svcnode.notify.flapping import SETTLED_AFTER_S
from svcnode.notify.news import TOLD_ONE_BY_ONE, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from svcnode.core.model import Identity, Service
    from svcnode.notify.news import Item, News

MAX_NAMES = 10  # as many are named that are not Up, beside those
MAX_REASON_CHARS = 300

Tone = Literal["failure", "warning", "success", "info"]

_HEALTH_WORDS = {Health.HEALTHY: "healthy", Health.PARTIAL: "partially healthy", Health.UNHEALTHY: "unhealthy"}
_STATUSES = {Health.HEALTHY: Status.UP, Health.PARTIAL: Status.INITIALIZING, Health.UNHEALTHY: Status.DOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Ready for any target. What was lost on the way to one of them is added for that one."""

    title: str
    lines: tuple[str, ...]
    tone: Tone
    fields: dict[str, Any] = field(default_factory=dict)

    def body(self, lost: int = 0) -> str:
        return "\n".join([*self.lines, *_about_lost(lost)])

    def document(self, lost: int = 0) -> dict[str, Any]:
        """What a webhook gets; `text` is all that a chat needs."""
        text = "\n".join([self.title, *(f"- {line}" for line in (*self.lines, *_about_lost(lost)))])
        return {"text": text, **self.fields, "lost": lost}


def _about_lost(lost: int) -> Iterator[str]:
    if lost:
        yield f"{lost} earlier {'messages were' if lost > 1 else 'message was'} lost on the way to you"


def digest(news: News, identity: Identity, message_id: str, to_wall: Callable[[float], float]) -> Message:
    """`to_wall` makes seconds of the wall clock from a reading of the node's clock."""
    name = clean(identity.node_name)
    is_whole_news = news.node is None and len(news.services) == 1
    title = f"{name}: {_service_line(news.services[0])}" if is_whole_news else _title(name, news)
    return Message(
        title=title,
        lines=tuple(_lines(news, () if is_whole_news else news.services)),
        tone=_tone(news),
        fields={
            "id": message_id,
            "kind": "change",
            "at": iso_time(to_wall(news.at_s)),
            "node": _node_fields(news, identity),
            "services": [_service_fields(item, to_wall) for item in news.services],
            "more_services": news.more_services,
            "not_up": [service.id for service in news.not_up[:TOLD_ONE_BY_ONE]],
        },
    )


def trial(identity: Identity, message_id: str, at_s: float) -> Message:
    """What `svcnode notify-test` sends; it says the same to people and programs: nothing has happened."""
    name = clean(identity.node_name)
    return Message(
        title=f"{name}: this is a test",
        lines=("svcnode notify-test was called to see whether messages arrive. Nothing has happened.",),
        tone="info",
        fields={
            "id": message_id,
            "kind": "test",
            "at": iso_time(at_s),
            "node": {
                "name": identity.node_name,
                "version": identity.node_version,
                "health": None,
                "health_before": None,
            }
            | {"change": None, "lasted_s": None, "lasted_at_most": False, "issues": []},
            "services": [],
            "more_services": 0,
            "not_up": [],
        },
    )


# ---- for people


def _title(name: str, news: News) -> str:
    if news.node is None:
        return f"{name}: {len(news.services) + news.more_services} services have changed"
    node, is_, was = news.node, _spoken_health(news.health), _spoken_health(news.node.before)
    match node.turn:
        case Turn.WORSE | Turn.BETTER | Turn.REMOVED:
            return f"{name} is {is_}" + (f", was {was}" if was else "")
        case Turn.RECOVERED:
            return f"{name} has recovered: {is_} after {_lasted(node)}{_in_between(node)}"
        case Turn.PASSED:
            return f"{name} was {_spoken_health(node.worst)} for {spoken(node.lasted_s)}, and is {is_}"
        case Turn.FLAPPING:
            return f"{name} is flapping: it changed {node.changes} times in {spoken(node.lasted_s)}, now {is_}"
        case Turn.SETTLED | Turn.STILL | Turn.AGAIN:
            return f"{name} {_unchanged(node, is_)}"
        case _:
            assert_never(node.turn)


def _lines(news: News, told: Sequence[Item]) -> Iterator[str]:
    yield from (f"issue: {clean(issue)}" for issue in news.issues)
    yield from map(_service_line, told)
    if news.more_services:
        yield f"and {news.more_services} more services have changed"
    if news.not_up:
        yield f"{'also' if news.services else 'services'} not Up: {_named(news.not_up)}"
    if news.node is None:
        yield f"the node is {_spoken_health(news.health)}, as before"
    items = [item for item in (news.node, *news.services) if item is not None]
    if any(item.turn is Turn.FLAPPING for item in items):
        yield f"what flaps is told again once it has not changed for {spoken(SETTLED_AFTER_S)}"
    if any(item.is_at_most and item.turn is Turn.RECOVERED for item in items):
        yield "svcnode was restarted meanwhile, so it may have recovered sooner"
    if any(item.turn in (Turn.STILL, Turn.AGAIN) for item in items):
        yield "svcnode was restarted meanwhile, and you may have been told before"


def _service_line(item: Item) -> str:
    assert item.service is not None, "the node is in the title"
    what, is_ = _called(item.service), _STATUSES[item.health].value
    why = f": {clean(item.reason)}" if item.reason and item.health is not Health.HEALTHY else ""
    match item.turn:
        case Turn.WORSE | Turn.BETTER:
            was = ", and has not been Up yet" if item.before is None else f", was {_STATUSES[item.before].value}"
            return f"{what} is {is_}{was}{why}"
        case Turn.RECOVERED:
            return f"{what} has recovered: {is_} after {_lasted(item)}{_in_between(item)}"
        case Turn.PASSED:
            why = f": {clean(item.reason)}" if item.reason else ""
            return f"{what} was {_STATUSES[item.worst].value} for {spoken(item.lasted_s)}, and is {is_} again{why}"
        case Turn.FLAPPING:
            return f"{what} is flapping: it changed {item.changes} times in {spoken(item.lasted_s)}, now {is_}{why}"
        case Turn.SETTLED | Turn.STILL | Turn.AGAIN:
            return f"{what} {_unchanged(item, is_)}{why}"
        case Turn.REMOVED:
            return f"{what} is no longer watched; it was told as {_STATUSES[item.before or Health.HEALTHY].value}"
        case _:
            assert_never(item.turn)


def _unchanged(item: Item, is_: str) -> str:
    lasted = spoken(item.lasted_s)
    if item.turn is Turn.AGAIN:
        return f"is {is_} again, for {lasted}"
    return f"is still {is_}, after {lasted}" if item.turn is Turn.STILL else f"has settled: {is_} for {lasted}"


def _lasted(item: Item) -> str:
    return f"at most {spoken(item.lasted_s)}" if item.is_at_most else spoken(item.lasted_s)


def _in_between(item: Item) -> str:
    """Two changes are a way there and back."""
    return f", with {item.changes} changes" if item.changes > 2 else ""


def _called(service: Service) -> str:
    own_name = f" ({clean(service.name)})" if service.name not in ("", service.id) else ""
    return clean(service.id) + own_name


def _named(services: Sequence[Service]) -> str:
    names = [clean(service.id) for service in services[:MAX_NAMES]]
    if len(services) > MAX_NAMES:
        names.append(f"{len(services) - MAX_NAMES} more")
    return ", ".join(names)


def _spoken_health(health: Health | None) -> str:
    return "" if health is None else f"{_HEALTH_WORDS[health]} ({health.value})"


def spoken(seconds: float) -> str:
    """The two largest units, as people say it."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    total = round(seconds)
    for unit_s, unit, smaller_s, smaller in _UNITS:
        if total >= unit_s:
            rest = total % unit_s // smaller_s
            return f"{total // unit_s}{unit}" + (f" {rest}{smaller}" if rest else "")
    return f"{total}s"


_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def clean(text: str) -> str:
    """Fit to be sent: one line, not endless, and without secrets."""
    text = one_line(redacted(text))
    return text if len(text) <= MAX_REASON_CHARS else f"{text[: MAX_REASON_CHARS - 1]}…"


# ---- for programs


def _node_fields(news: News, identity: Identity) -> dict[str, Any]:
    node = news.node
    return {
        "name": identity.node_name,
        "version": identity.node_version,
        "health": int(news.health),
        "health_before": None if node is None or node.before is None else int(node.before),
        "change": None if node is None else node.turn.value,
        "lasted_s": None if node is None else _seconds(node),
        "lasted_at_most": node is not None and node.is_at_most,
        "issues": [clean(issue) for issue in news.issues],
    }


def _service_fields(item: Item, to_wall: Callable[[float], float]) -> dict[str, Any]:
    assert item.service is not None, "the node has fields of its own"
    return {
        "id": item.service.id,
        "name": clean(item.service.name),
        "impact": item.service.impact.value,
        "change": item.turn.value,
        "status": None if item.turn is Turn.REMOVED else _STATUSES[item.health].value,
        "status_before": None if item.before is None else _STATUSES[item.before].value,
        "reason": clean(item.reason),
        "since": iso_time(to_wall(item.since_s)),
        "lasted_s": _seconds(item),
        "lasted_at_most": item.is_at_most,
        "changes": item.changes,
    }


def _seconds(item: Item) -> float | None:
    return None if item.turn in (Turn.WORSE, Turn.BETTER) else round(item.lasted_s, 3)


def _tone(news: News) -> Tone:
    items = [item for item in (news.node, *news.services) if item is not None]
    if any(item.turn in _BAD_NEWS for item in items):
        return "failure" if news.health is Health.UNHEALTHY else "warning"
    if news.health is Health.HEALTHY and all(item.turn in _GOOD_NEWS for item in items):
        return "success"
    return "info" if news.health is Health.HEALTHY else "warning"


_BAD_NEWS = (Turn.WORSE, Turn.FLAPPING, Turn.STILL, Turn.AGAIN)
_GOOD_NEWS = (Turn.RECOVERED, Turn.SETTLED, Turn.REMOVED)
