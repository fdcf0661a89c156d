"""A finding of `svcnode check-config --check`: its code, how bad it is, where it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_NEXT_STEPS = 3


class Level(StrEnum):
    """From the worst to the least."""

    FAULT = "fault"  # the node, or a part of it, will not work
    WARNING = "warning"  # it works, but not as safely or as well as it could
    NOTE = "note"  # it may be what was meant


class Code(StrEnum):
    """Codes are public: a code is never renamed."""

    # the configuration and the files that it names
    CONFIG_INVALID = "config_invalid"  # a key or its value is wrong
    CONFIG_WRITABLE = "config_writable"  # other users can change the configuration
    CONFIG_READABLE = "config_readable"  # it has a secret, and other users can read it
    SECRET_FILE_READABLE = "secret_file_readable"  # noqa: S105  of { file = "…" }
    KEY_FILE_READABLE = "key_file_readable"  # of a private key
    ENVIRONMENT_FILE_READABLE = "environment_file_readable"  # it sets a variable that holds a secret
    HEALTH_CONSTANT = "health_constant"  # no service can change the health of the node
    STALE_AFTER_LONG = "stale_after_long"  # a service may stay Up for long without checks
    HEARTBEAT_UNSUPPORTED = "heartbeat_unsupported"  # nothing can receive the heartbeats of a service
    NOTIFICATION_TARGET_UNMATCHED = "notification_target_unmatched"  # it gets a service that does not exist
    PUBLIC_UNMATCHED = "public_unmatched"  # [public] names a service that does not exist
    # addresses
    ADDRESS_IN_USE = "address_in_use"  # another process listens there
    ADDRESS_UNAVAILABLE = "address_unavailable"  # not of this machine, or not allowed
    OPERATOR_REFUSED = "operator_refused"  # the operator pages are served nowhere: there is no token
    TOKEN_UNENCRYPTED = "token_unencrypted"  # noqa: S105  a token is sent over a network without TLS
    # the control socket
    NODE_RUNNING = "node_running"  # a node answers on the control socket
    CONTROL_IN_USE = "control_in_use"  # a node with another configuration answers on it
    CONTROL_PATH_TOO_LONG = "control_path_too_long"
    CONTROL_NOT_A_SOCKET = "control_not_a_socket"  # another file is in its place
    CONTROL_UNWRITABLE = "control_unwritable"  # it cannot be created
    CONTROL_STALE = "control_stale"  # left behind by a node that has ended
    CONTROL_REPLACEABLE = "control_replaceable"  # other users can put a socket of their own in its place
    # the history
    HISTORY_UNWRITABLE = "history_unwritable"
    HISTORY_UNREADABLE = "history_unreadable"  # not a history, of a newer version, of another node, or corrupt
    HISTORY_IN_MEMORY = "history_in_memory"  # there is no folder for it
    DISK_SPACE_LOW = "disk_space_low"  # for the history
    # this machine
    DRIVER_MISSING = "driver_missing"
    DESCRIPTORS_LOW = "descriptors_low"  # the limit of open files
    CLOCK_UNSYNCHRONIZED = "clock_unsynchronized"  # says the kernel
    CLOCK_DIFFERS = "clock_differs"  # from the clocks of services
    # names and alert targets
    NAME_UNRESOLVED = "name_unresolved"
    NAME_SLOW = "name_slow"
    NAME_LOCAL = "name_local"  # a name means this machine, and does not look like it
    TARGET_INVALID = "target_invalid"  # [notify] has an error, such as an unknown scheme of Apprise
    TARGET_UNRESOLVED = "target_unresolved"
    TARGET_UNREACHABLE = "target_unreachable"
    TARGET_TLS_FAILED = "target_tls_failed"
    TARGET_UNENCRYPTED = "target_unencrypted"  # alerts go through the Internet without TLS
    # services
    SERVICE_FAILED = "service_failed"
    SERVICE_NOT_READY = "service_not_ready"
    SERVICE_UNKNOWN = "service_unknown"  # this machine could not check it
    # the inspection itself
    NOT_INSPECTED = "not_inspected"  # a part of it did not end in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    code: Code
    level: Level
    what: str
    fix: str
    key: str = ""  # of the configuration
    place: str = ""  # a file with or without a line, or what else sets the key


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first. Findings of the same level keep their order, since the more important inspections run first."""
    levels = list(Level)
    return sorted(findings, key=lambda finding: levels.index(finding.level))


def next_steps(findings: Sequence[Finding]) -> list[str]:
    """What to do first: one step for each code, and one for each key."""
    steps: list[str] = []
    seen: set[str] = {""}
    for finding in in_order(findings):
        if (
            finding.level is not Level.NOTE
            and finding.code not in seen
            and (not finding.key or finding.key not in seen)
        ):
            seen |= {finding.code, finding.key}
            steps.append(f"{finding.key}: {finding.fix}" if finding.key else finding.fix)
    return steps[:MAX_NEXT_STEPS] or ["Start the node: svcnode serve"]
