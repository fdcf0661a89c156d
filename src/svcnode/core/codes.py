"""Reason codes: why a service has its status, as one word that programs compare.

A verdict and a state carry a code and a text. The text is for people and may change; the code is for programs and
is stable. The set is closed, so metrics by code have bounded cardinality and `explain` has advice for every member.
A probe from another package uses a member, or its own code, which begins with `x_`.
"""

from __future__ import annotations

import re
from enum import StrEnum


class ReasonCode(StrEnum):
    OK = "ok"  # the check succeeded

    # Nothing is known about the service, or not enough.
    NO_EVIDENCE = "no_evidence"  # no check has given a result yet
    NOT_STARTED = "not_started"  # no check has given a result yet, and the node runs no checks
    STALE = "stale"  # the last evidence is older than stale_after
    CANNOT_CHECK = "cannot_check"  # there is none, because this machine could not check
    TTL_EXPIRED = "ttl_expired"  # no heartbeat within ttl, or no success of a job in time
    FIXED = "fixed"  # the configuration sets the status
    REPORTED = "reported"  # the program reported the status and gave no code
    UNRELIABLE = "unreliable"  # too many of the last checks failed, although not enough in a row, or too many outages
    REGISTRY_LOST = "registry_lost"  # what other replicas know does not arrive any more
    UNCONFIRMED = "unconfirmed"  # Up by the checks of this replica; those of the other observers do not arrive
    OBSERVERS_DISAGREE = "observers_disagree"  # the replicas that check it have no majority for any status

    # The check could not be run: the fault is on this machine.
    PROBE_ERROR = "probe_error"  # the probe raised an exception
    DRIVER_MISSING = "driver_missing"  # the probe's driver is not installed
    RESOURCE_EXHAUSTED = "resource_exhausted"  # no file descriptors, memory, threads or ports left
    RESOLVER_FAILED = "resolver_failed"  # the DNS resolver did not answer
    PROXY_FAILED = "proxy_failed"  # the proxy between this machine and the service failed
    COMMAND_NOT_STARTED = "command_not_started"  # the program of an exec: probe could not be started
    BAD_RETURN = "bad_return"  # a check function returned a value that is not a result of a check

    # Network.
    HOST_NOT_FOUND = "host_not_found"
    NETWORK_UNREACHABLE = "network_unreachable"
    CONNECTION_REFUSED = "connection_refused"
    CONNECTION_CLOSED = "connection_closed"  # reset or closed before the response was complete
    CONNECT_TIMEOUT = "connect_timeout"
    TLS_TIMEOUT = "tls_timeout"
    TIMEOUT = "timeout"  # connected, but no complete response in time
    STILL_RUNNING = "still_running"  # the previous check has not returned
    BLOCKED_LOOP = "blocked_loop"  # the check blocked the event loop for longer than its timeout
    SLOW = "slow"  # succeeded, but took longer than max_latency

    # TLS.
    TLS_EXPIRED = "tls_expired"
    TLS_EXPIRES_SOON = "tls_expires_soon"
    TLS_NAME_MISMATCH = "tls_name_mismatch"
    TLS_UNTRUSTED = "tls_untrusted"
    TLS_NOT_OFFERED = "tls_not_offered"  # the server does not speak TLS on this port
    TLS_REQUIRED = "tls_required"  # the server accepts this login only over TLS
    TLS_FAILED = "tls_failed"  # any other TLS error

    # Login and permissions.
    AUTH_REQUIRED = "auth_required"
    AUTH_FAILED = "auth_failed"
    USER_NOT_FOUND = "user_not_found"
    USER_DISABLED = "user_disabled"  # the user exists, but may not log in
    CLIENT_NOT_ALLOWED = "client_not_allowed"  # the server does not accept this machine or user from here
    CLIENT_BLOCKED = "client_blocked"  # the server blocked this machine after too many errors
    PERMISSION_DENIED = "permission_denied"

    # Reported by the service itself.
    STARTING = "starting"
    SHUTTING_DOWN = "shutting_down"
    SYNCING = "syncing"
    LAGGING = "lagging"
    STALLED = "stalled"  # a value that must advance has not advanced in time
    DUTIES_MISSED = "duties_missed"  # a validator has missed more of its duties than it may
    SLASHED = "slashed"  # a validator was punished by its chain for signing what it must not sign
    LOW_BALANCE = "low_balance"  # an account has less money than the options of the probe require
    READ_ONLY = "read_only"
    WRONG_ROLE = "wrong_role"
    REPLICATION_STOPPED = "replication_stopped"
    NO_LEADER = "no_leader"
    NO_QUORUM = "no_quorum"  # too few members of a cluster or a replicated queue are left to decide
    CLUSTER_DOWN = "cluster_down"  # the cluster reports that it cannot serve
    TOO_FEW_REPLICAS = "too_few_replicas"  # fewer replicas than the server requires for a write
    LOCKED = "locked"
    OUT_OF_MEMORY = "out_of_memory"  # the server has no memory left for new data
    STORAGE_FULL = "storage_full"  # the server has no disk space or quota left for new data
    WRITE_TIMEOUT = "write_timeout"  # the server answers, but the write of the check did not finish in time
    WRITE_FAILED = "write_failed"  # the write of the check was refused for a reason that has no code of its own
    UPSTREAM_OFFLINE = "upstream_offline"  # a service that this one depends on is offline, as it reports itself
    CONNECTIONS_DISABLED = "connections_disabled"  # the database or server accepts no connections of normal users
    TOO_MANY_CONNECTIONS = "too_many_connections"
    RATE_LIMITED = "rate_limited"
    TOO_FEW_PEERS = "too_few_peers"
    WRONG_CHAIN = "wrong_chain"
    CLOCK_SKEW = "clock_skew"
    CLOCK_UNSYNCHRONIZED = "clock_unsynchronized"  # no program keeps the clock right, or it has ended
    NOT_RUNNING = "not_running"  # the unit is inactive, has failed or is masked
    PARTIALLY_HEALTHY = "partially_healthy"
    UNHEALTHY = "unhealthy"

    # The response is not the expected one.
    BAD_REQUEST = "bad_request"
    NOT_FOUND = "not_found"  # no such path, database, queue or service
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REDIRECTED = "redirected"
    SERVER_ERROR = "server_error"
    UNEXPECTED_RESPONSE = "unexpected_response"
    OUTDATED_RESPONSE = "outdated_response"  # a cache answered with an old response
    PROTOCOL_ERROR = "protocol_error"  # another protocol answers on this port
    NOT_SUPPORTED = "not_supported"  # the server lacks the method or the health service

    # Files and disks.
    FILE_NOT_FOUND = "file_not_found"
    FILE_NOT_READABLE = "file_not_readable"
    NOT_A_FILE = "not_a_file"  # a directory, a pipe, a socket or a device
    FILE_OUTDATED = "file_outdated"
    CORRUPT = "corrupt"
    DISK_LOW = "disk_low"
    INODES_LOW = "inodes_low"  # the file system has no free inodes left
    NOT_MOUNTED = "not_mounted"  # the volume that should be at the path is missing, or another one is mounted
    REPLACED = "replaced"  # another file has been put at the path since the last check

    # Programs and functions.
    EXIT_STATUS = "exit_status"  # of the program of an exec: probe, or of a job; not 0
    CHECK_FAILED = "check_failed"  # a check function raised or returned False

    # The node itself, in its history.
    UNCLEAN_SHUTDOWN = "unclean_shutdown"  # the previous process did not shut down cleanly

    OTHER = "other"


_CUSTOM_CODE = re.compile(r"x_[a-z0-9_]{1,62}")


def known_code(code: object) -> str:
    """The code if it is a member or begins with `x_`; `other` for anything else."""
    if isinstance(code, ReasonCode):
        return code
    if isinstance(code, str):
        if code in _MEMBERS:
            return ReasonCode(code)
        if is_custom_code(code):
            return code
    return ReasonCode.OTHER


def is_custom_code(code: str) -> bool:
    """Whether it is a code of another package."""
    return _CUSTOM_CODE.fullmatch(code) is not None


_MEMBERS = frozenset(member.value for member in ReasonCode)


_HTTP_STATUS_CODES = {
    400: ReasonCode.BAD_REQUEST,
    401: ReasonCode.AUTH_REQUIRED,
    403: ReasonCode.PERMISSION_DENIED,
    404: ReasonCode.NOT_FOUND,
    405: ReasonCode.METHOD_NOT_ALLOWED,
    429: ReasonCode.RATE_LIMITED,
}


def code_for_http_status(status: int) -> ReasonCode:
    """The code of a response that the probe did not expect, by its HTTP status."""
    if 300 <= status <= 399:
        return ReasonCode.REDIRECTED
    if 500 <= status <= 599:
        return ReasonCode.SERVER_ERROR
    return _HTTP_STATUS_CODES.get(status, ReasonCode.UNEXPECTED_RESPONSE)


_GRPC_STATUS_CODES = {
    3: ReasonCode.BAD_REQUEST,  # INVALID_ARGUMENT
    4: ReasonCode.TIMEOUT,  # DEADLINE_EXCEEDED
    5: ReasonCode.NOT_FOUND,
    7: ReasonCode.PERMISSION_DENIED,
    8: ReasonCode.RATE_LIMITED,  # RESOURCE_EXHAUSTED
    12: ReasonCode.NOT_SUPPORTED,  # UNIMPLEMENTED
    14: ReasonCode.UNHEALTHY,  # UNAVAILABLE
    16: ReasonCode.AUTH_REQUIRED,  # UNAUTHENTICATED
}


def code_for_grpc_status(status: int) -> ReasonCode:
    """The code of a call that failed, by its gRPC status."""
    return _GRPC_STATUS_CODES.get(status, ReasonCode.SERVER_ERROR)
