"""What all kinds of documents of the control socket have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from svcnode.core.text import safe_reason, truncate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.control.changes import ChangeRequest, Transaction
    from svcnode.control.store import Document
    from svcnode.node.node_state import NodeState

MAX_PERSON_CHARS = 100
FREE_TEXTS = ("reason", "by", "user")  # they are shown, and may be anything


class DocumentKind(ABC):
    """A kind of documents. `name` is the variable part of a path, decoded: a service id, a name of an issue, or ""."""

    def __init__(self, node: NodeState) -> None:
        self._node = node

    def check(self, transaction: Transaction, name: str, change: ChangeRequest) -> None:  # noqa: B027  allows any
        """Raises `ControlError` if the change is not allowed, whatever the precondition is."""

    def value(self, transaction: Transaction, name: str, given: dict[str, Any], sent_at_s: float) -> dict[str, Any]:
        """What is stored. May change other documents, and raises `ControlError`.

        `sent_at_s` is when it was requested, at the earliest: the node may have stood still since.
        """
        return given

    def delete(self, transaction: Transaction, path: str) -> None:
        transaction.delete(path)

    @abstractmethod
    def is_missing(self, name: str) -> bool:
        """Whether the node does not have the document yet. A report that it has is not recorded again."""

    @abstractmethod
    def apply(self, name: str, document: Document | None) -> None:
        """Make the node equal to the document, or to its absence."""

    def is_worse(self, name: str, value: Mapping[str, Any]) -> bool:
        """Whether the node gets worse by it. Then it is applied, even if it cannot be stored."""
        return False

    def after_boot(self, value: dict[str, Any]) -> dict[str, Any]:
        """The machine was restarted, and its clock with it: a service has been silent for an unknown time."""
        return value

    def has_ended(self, name: str, value: Mapping[str, Any]) -> bool:
        """Whether the document is without effect from now on. It is deleted soon after."""
        return False


def author_of(value: Mapping[str, Any]) -> str:
    """Who has made a change: the person, if the request names one, and the user of the process that has sent it."""
    person, user = truncate(value.get("by", ""), MAX_PERSON_CHARS), value.get("user", "")
    return f"{person} (user {user})" if person and user and person != user else person or user


def with_safe_texts(value: dict[str, Any]) -> dict[str, Any]:
    return {key: safe_reason(text) if key in FREE_TEXTS else text for key, text in value.items()}
