"""The [notify] section of the configuration: targets, and when they are notified."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from svcnode.core.model import Impact

if TYPE_CHECKING:
    from svcnode.core.model import Service
    from svcnode.notify.targets import NotificationTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    targets: tuple[NotificationTarget, ...] = field(repr=False)  # their URLs may contain secrets
    policy: AlertPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """Which changes cause a notification, and when. In the methods, a service of None is the node."""

    services: Literal["critical", "all", "none"] = "critical"  # the services that cause notifications themselves
    group_wait_s: float = 5.0
    resolve_delay_s: float = 300.0

    def has_own_alert(self, service: Service | None) -> bool:
        """Whether a change causes a notification, also if the health of the node does not change."""
        if service is None or self.services == "all":
            return True
        return self.services == "critical" and service.impact is Impact.CRITICAL

    def is_reported(self, service: Service | None) -> bool:
        """Whether a notification contains a change, also if it was caused by another change."""
        return self.has_own_alert(service) or (service is not None and service.impact is not Impact.NONE)
