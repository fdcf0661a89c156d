"""What the program or a person sets for the whole node, whatever the states of its services are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from svcnode.core.model import Condition
from svcnode.core.text import MAX_REASON_CHARS, safe_reason, truncate, visible_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class SharedIssues(Protocol):
    """The issues that this process shares with other workers of the program."""

    def sync(self) -> None: ...

    def set_issue(self, issue: str, *, is_set: bool) -> None: ...


class HealthOverrides:
    """Issues, caveats, draining and starting: each lowers the health of the node. Thread-safe."""

    def __init__(
        self,
        changing: Callable[[], AbstractContextManager[float]],
        on_change: Callable[[float, str], None],
        *,
        starting: bool,
    ) -> None:
        """`changing` holds the lock of the node, and gives the time. `on_change`: it, and what has changed."""
        self._changing = changing
        self._on_change = on_change
        self.condition = Condition(starting=starting)
        self._caveats: dict[str, str] = {}
        self.shared: SharedIssues | None = None

    def set_issue(self, issue: object, *, instead_of: str | None = None) -> None:
        """The health is 503 until this issue is cleared. It may be any object, as a reason may.

        `instead_of` is its text until now, if that has changed: it is the same issue.
        """
        issue = _issue_text(issue)
        if self.shared is not None:
            self.shared.set_issue(issue, is_set=True)
            if instead_of is not None:
                self.shared.set_issue(instead_of, is_set=False)
        with self._changing() as now_s:
            others = tuple(one for one in self.condition.issues if one != instead_of)
            self._set(now_s, issues=others if issue in others else (*others, issue))

    def clear_issue(self, issue: object = None) -> None:
        """Clear one issue, or all of them."""
        if self.shared is not None:
            self.shared.sync()
        cleared = self.condition.issues if issue is None else (_issue_text(issue),)
        if self.shared is not None:
            for one in cleared:
                self.shared.set_issue(one, is_set=False)
        with self._changing() as now_s:
            self._set(now_s, issues=tuple(other for other in self.condition.issues if other not in cleared))

    def take_over_issues(self, issues: tuple[str, ...], now_s: float) -> None:
        """Those of all workers. The caller holds the lock."""
        self._set(now_s, issues=issues)

    def set_caveat(self, name: str, text: str) -> None:
        """What this node does not know, and says so: its health is 206 at best. An empty text ends the caveat."""
        with self._changing() as now_s:
            if text:
                self._caveats[name] = text
            else:
                self._caveats.pop(name, None)
            self._set(now_s, caveats=tuple(self._caveats.values()))

    def started(self) -> None:
        with self._changing() as now_s:
            self._set(now_s, starting=False)

    def drain(self, reason: object = "") -> None:
        """Set the health to 503, so that load balancers stop sending requests. Operators see the reason."""
        with self._changing() as now_s:
            self._set(now_s, draining=True, drain_reason=safe_reason(reason))

    def undrain(self) -> None:
        with self._changing() as now_s:
            self._set(now_s, draining=False, drain_reason="")

    def _set(self, now_s: float, **changes: Any) -> None:  # noqa: ANN401  fields of Condition
        before = self.condition
        self.condition = before._replace(**changes)
        if self.condition != before:
            self._on_change(now_s, "; ".join(_differences(before, self.condition)))


def _differences(before: Condition, after: Condition) -> Iterator[str]:
    if after.draining and (before.draining, before.drain_reason) != (True, after.drain_reason):
        yield f"draining: {after.drain_reason}" if after.drain_reason else "draining"
    if before.draining and not after.draining:
        yield "no longer draining"
    yield from (f"issue: {issue}" for issue in after.issues if issue not in before.issues)
    yield from (f"issue cleared: {issue}" for issue in before.issues if issue not in after.issues)
    yield from (caveat for caveat in after.caveats if caveat not in before.caveats)
    yield from (f"no longer: {caveat}" for caveat in before.caveats if caveat not in after.caveats)


def _issue_text(issue: object) -> str:
    """The text by which an issue is known and cleared. Long ones that begin alike stay apart: one may be cleared."""
    if type(issue) is str and 0 < len(issue) <= MAX_REASON_CHARS and issue.isprintable():
        return issue  # as it is: what is known as a secret may change before it is cleared
    text = visible_text(issue) or "an issue without a text"
    if len(text) <= MAX_REASON_CHARS:
        return text
    from zlib import crc32

    return f"{truncate(text, MAX_REASON_CHARS - 9)} {crc32(text.encode()):08x}"
