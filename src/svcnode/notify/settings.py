"""What the configuration says about telling people: whom, and how they want to be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from svcnode.core.model import Impact

if TYPE_CHECKING:
    from svcnode.core.model import Service
    from svcnode.notify.targets import NotificationTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    targets: tuple[NotificationTarget, ...] = field(repr=False)  # what their addresses hold may be secret
    policy: AlertPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """How people want to be told. Where a service is None, it is the node."""

    services: Literal["critical", "all", "none"] = "critical"  # which have messages of their own
    group_wait_s: float = 5.0
    resolve_delay_s: float = 300.0

    def has_own_alert(self, service: Service | None) -> bool:
        """Whether it is told by itself, and not only as the cause of something."""
        if service is None or self.services == "all":
            return True
        return self.services == "critical" and service.impact is Impact.CRITICAL

    def is_reported(self, service: Service | None) -> bool:
        """By itself, or as the cause of something."""
        return self.has_own_alert(service) or (service is not None and service.impact is not Impact.NONE)
