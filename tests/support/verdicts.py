"""Expected verdicts: equal to any verdict with the same outcome and code, whatever its reason."""

from __future__ import annotations

from dataclasses import dataclass

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Verdict

READY = Verdict.ready()


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedVerdict:
    outcome: Outcome
    code: ReasonCode

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ExpectedVerdict | Verdict):
            return (self.outcome, self.code) == (other.outcome, other.code)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.outcome, self.code))


def failed(code: ReasonCode) -> ExpectedVerdict:
    return ExpectedVerdict(Outcome.FAILED, code)


def not_ready(code: ReasonCode) -> ExpectedVerdict:
    return ExpectedVerdict(Outcome.NOT_READY, code)


def unknown(code: ReasonCode) -> ExpectedVerdict:
    return ExpectedVerdict(Outcome.UNKNOWN, code)


CONNECTION_REFUSED = failed(ReasonCode.CONNECTION_REFUSED)
CONNECTION_CLOSED = failed(ReasonCode.CONNECTION_CLOSED)
PROTOCOL_ERROR = failed(ReasonCode.PROTOCOL_ERROR)
UNEXPECTED_RESPONSE = failed(ReasonCode.UNEXPECTED_RESPONSE)
TLS_UNTRUSTED = failed(ReasonCode.TLS_UNTRUSTED)
EXPIRES_SOON = not_ready(ReasonCode.TLS_EXPIRES_SOON)
NO_DESCRIPTORS = unknown(ReasonCode.RESOURCE_EXHAUSTED)
