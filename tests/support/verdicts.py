"""Expected verdicts: equal to any verdict with the same outcome and code, whatever its reason."""

from __future__ import annotations

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Verdict

READY = Verdict.ready()


class ExpectedVerdict(Verdict):
    """As the right operand of == too: Python asks the subclass first."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Verdict) and (self.outcome, self.code) == (other.outcome, other.code)

    def __hash__(self) -> int:
        return hash((self.outcome, self.code))


def failed(code: ReasonCode) -> ExpectedVerdict:
    return ExpectedVerdict(Outcome.FAILED, code=code)


def not_ready(code: ReasonCode) -> ExpectedVerdict:
    return ExpectedVerdict(Outcome.NOT_READY, code=code)


def unknown(code: ReasonCode) -> ExpectedVerdict:
    return ExpectedVerdict(Outcome.UNKNOWN, code=code)


CONNECTION_REFUSED = failed(ReasonCode.CONNECTION_REFUSED)
CONNECTION_CLOSED = failed(ReasonCode.CONNECTION_CLOSED)
PROTOCOL_ERROR = failed(ReasonCode.PROTOCOL_ERROR)
UNEXPECTED_RESPONSE = failed(ReasonCode.UNEXPECTED_RESPONSE)
TLS_UNTRUSTED = failed(ReasonCode.TLS_UNTRUSTED)
EXPIRES_SOON = not_ready(ReasonCode.TLS_EXPIRES_SOON)
NO_DESCRIPTORS = unknown(ReasonCode.RESOURCE_EXHAUSTED)
