"""What the configuration says about telling people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.notify.rules import Manners
    from svcnode.notify.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    targets: tuple[Target, ...] = field(repr=False)  # what their addresses hold may be secret
    manners: Manners
