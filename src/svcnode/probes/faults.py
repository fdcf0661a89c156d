"""Errors of the operating system as verdicts: the service's fault, or our own."""

from __future__ import annotations

import errno

from svcnode.core.model import Verdict

# We have run out of something ourselves; it says nothing about the service.
_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def verdict_on(exc: OSError, what: str) -> Verdict:
    if exc.errno in _OURS:
        return Verdict.unknown(f"this machine cannot look: {exc.strerror}")
    return Verdict.failed(f"{(exc.strerror or str(exc)).lower()}: {what}")
