"""The shape of a kind: a frozen dataclass whose first field is the URL, and whose other fields are its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from svcnode.probes.tools.url import Url  # noqa: TC001  the type of a field of every kind, needed when it runs


@dataclass(frozen=True, slots=True, repr=False)
class UrlProbe:
    """What a kind begins with. Two probes with equal fields look at the same thing in the same way."""

    url: Url

    # The key in [security] without which a configuration may not use this kind; "" for harmless ones.
    permission: ClassVar[str] = ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"  # options may hold secrets
