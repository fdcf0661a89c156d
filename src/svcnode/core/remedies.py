"""The meaning of each reason code, and advice: `explain` and alerts show it. docs/reference.md has the meanings.

Placeholders: `{address}` is host and port in the URL of the probe, `{host}` the host alone, `{timeout}` the timeout of
a check, `{id}` the id of the service.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.codes import ReasonCode, is_custom_code
from svcnode.core.url import Url, UrlError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_KINDS: Mapping[str, str] = MappingProxyType({})


class Remedy(NamedTuple):
    meaning: str
    advice: str
    by_kind: Mapping[str, str] = _NO_KINDS  # advice for one kind of probe; replaces the general advice


_NO_REPORT = (
    'Check that the program that reports for "{id}" is running and uses this id. It can report to svcnode serve '
    "through the control socket, whose path is in the log, or with a push and the token of the service; with "
    "[sharing], also through the registry."
)
_HTTP_LOGIN = "check the user name and the password in the URL of the probe, or its option bearer or headers"
_SLOW_CAUSES = "it may be frozen, overloaded, or waiting for a disk, a lock or another service"

CUSTOM_CODE_MEANING = "a code of the package that provides this probe"  # of a code that begins with x_

REMEDIES: Mapping[ReasonCode, Remedy] = {
    ReasonCode.OK: Remedy("the check succeeded", "Nothing to do."),
    # ---- no evidence, or no check
    ReasonCode.NO_EVIDENCE: Remedy(
        "no check has given a result yet",
        "Wait for the first check.",
        {"reported": _NO_REPORT, "heartbeat": _NO_REPORT},
    ),
    ReasonCode.NOT_STARTED: Remedy(
        "the program that embeds the node has not started its checks",
        "Call node.start() in the program, or use node.lifespan in its framework. The reason may say more.",
    ),
    ReasonCode.STALE: Remedy(
        "the last success is older than stale_after, or the last result if the service is Down",
        "No check has finished in time: the node's machine may be overloaded, or was suspended. See the log of the "
        "node.",
    ),
    ReasonCode.CANNOT_CHECK: Remedy(
        "there is no valid result, because the node's machine could not check",
        "The fault is on the node's machine, and says nothing about the service. The reason names it. If there are too "
        "many open files, raise the limit of the node's process (ulimit -n, or LimitNOFILE in its systemd unit). If "
        "the machine stood still, it was suspended or overloaded, or the node's process was stopped.",
    ),
    ReasonCode.TTL_EXPIRED: Remedy("no heartbeat, report or success of a job arrived in time", _NO_REPORT),
    ReasonCode.FIXED: Remedy(
        "the configuration sets the status; the service is not checked",
        "Change or remove status in the configuration, then reload it (SIGHUP).",
    ),
    ReasonCode.REPORTED: Remedy(
        "the program reported the status without a code",
        "See the log of the program that reports for the service.",
    ),
    ReasonCode.UNRELIABLE: Remedy(
        "too many of the last checks failed, although not enough in a row, or one outage followed another",
        "The service works only some of the time: one of several servers behind a load balancer may be "
        "broken, or the service restarts again and again. See its log. The key tolerance "
        "sets the limit.",
    ),
    ReasonCode.REGISTRY_LOST: Remedy(
        "this replica cannot see what the others know, because the registry cannot be read",
        "Check that the registry (etcd) is running and can be reached from the node's machine and from the other "
        "replicas: svcnode registry check.",
    ),
    ReasonCode.UNCONFIRMED: Remedy(
        "this replica finds the service working, but cannot ask the other observers, because etcd is unreachable",
        "Check that the registry (etcd) is running and can be reached from the node's machine: svcnode registry check.",
    ),
    ReasonCode.OBSERVERS_DISAGREE: Remedy(
        "the replicas that check the service have no majority for any status",
        "The network between some replicas and the service may be broken. Run svcnode probe on each of these machines.",
    ),
    # ---- the check could not run
    ReasonCode.PROBE_ERROR: Remedy(
        "the probe raised an exception",
        "This is a fault of the probe, not of the service. The log of the node has the traceback.",
    ),
    ReasonCode.DRIVER_MISSING: Remedy(
        "the driver of the probe is not installed",
        "Install the driver where the node runs, with the pip command in the reason, and restart the node.",
    ),
    ReasonCode.RESOURCE_EXHAUSTED: Remedy(
        "the node has no file descriptors, memory, threads or ports left",
        'The check cannot run; this says nothing about the service. For "too many open files", raise the limit of the '
        "node's process (ulimit -n, or LimitNOFILE in its systemd unit). Otherwise free memory, threads or ports on "
        "the node's machine.",
    ),
    ReasonCode.RESOLVER_FAILED: Remedy(
        "the DNS resolver did not answer",
        "The node's machine cannot resolve names; this says nothing about the service. Check its resolver "
        "(/etc/resolv.conf).",
    ),
    ReasonCode.PROXY_FAILED: Remedy(
        "the proxy between the node and the service failed",
        "Check that the proxy is running, and that its address and login in the option proxy of the probe are right. "
        "This says nothing about the service.",
    ),
    ReasonCode.COMMAND_NOT_STARTED: Remedy(
        "the program of an exec: probe could not be started",
        "Check the path and the permissions of the program.",
    ),
    ReasonCode.BAD_RETURN: Remedy(
        "a check function returned a value that is not a result of a check",
        "Return nothing, True, False, a Verdict, an Outcome or a Status, or raise an exception.",
    ),
    # ---- network
    ReasonCode.HOST_NOT_FOUND: Remedy(
        "DNS has no such host",
        "Check the host name in the URL of the probe. On the node's machine, run: getent hosts {host}.",
    ),
    ReasonCode.NETWORK_UNREACHABLE: Remedy(
        "no route to the host",
        "If the outcome is unknown, the node's machine has no route to {address}: check its interfaces and routes. "
        "Otherwise check that the other machine is switched on, and check the routers and firewalls on the way.",
    ),
    ReasonCode.CONNECTION_REFUSED: Remedy(
        "nothing listens on that port",
        "Nothing listens at {address}. Start the server. If it is running, it listens on another address or port: "
        "compare its settings with the URL of the probe.",
    ),
    ReasonCode.CONNECTION_CLOSED: Remedy(
        "the connection was reset or closed before the response was complete",
        "A server at {address} accepts the connection, but closes it. Check that it is the right service, and whether "
        "it expects TLS on this port. A proxy closes connections like this if the server behind it is not running.",
    ),
    ReasonCode.CONNECT_TIMEOUT: Remedy(
        "no connection within the timeout",
        "No connection to {address} within {timeout}. Check that the machine is switched on and that no firewall drops "
        "the packets. If the server is running, it may be frozen or overloaded.",
    ),
    ReasonCode.TLS_TIMEOUT: Remedy(
        "connected, but the TLS handshake did not finish within the timeout",
        "The server at {address} may be frozen or overloaded, or does not speak TLS on this port.",
    ),
    ReasonCode.TIMEOUT: Remedy(
        "connected, but no complete response within the timeout",
        f"The service does not respond within {{timeout}}: {_SLOW_CAUSES}; see its log. Check that the right service "
        "listens at {address}. If it is only slow, raise timeout.",
        {
            "exec": "The program did not end within {timeout}. Run it by hand to see why, or raise timeout.",
            "function": f"The function did not return within {{timeout}}: {_SLOW_CAUSES}. If it is only slow, raise "
            "timeout.",
            **dict.fromkeys(
                ("file", "disk", "sqlite"),
                "The file system did not respond within {timeout}: check the disk or the network mount. If it is only "
                "slow, raise timeout.",
            ),
        },
    ),
    ReasonCode.STILL_RUNNING: Remedy(
        "the previous check has not returned",
        f"The service does not respond within {{timeout}}: {_SLOW_CAUSES}; see its log. If it is only slow, raise "
        "timeout.",
    ),
    ReasonCode.BLOCKED_LOOP: Remedy(
        "the check blocked the event loop for longer than its timeout",
        "This is a fault of the check, not of the service: it calls a blocking function in a coroutine. Make the "
        "check a plain function, which runs in a thread.",
    ),
    ReasonCode.SLOW: Remedy(
        "the check succeeded, but took longer than max_latency",
        "The service works, but slowly. Find the cause, or raise max_latency.",
    ),
    # ---- TLS
    ReasonCode.TLS_EXPIRED: Remedy(
        "the certificate has expired",
        "Renew the certificate and make the server load it.",
    ),
    ReasonCode.TLS_EXPIRES_SOON: Remedy(
        "the certificate expires within min_cert_days",
        "Renew the certificate and make the server load it. The option min_cert_days sets the limit.",
    ),
    ReasonCode.TLS_NAME_MISMATCH: Remedy(
        "the certificate is for another host name",
        "In the URL of the probe, or in its option server_name, use a name that is in the certificate.",
    ),
    ReasonCode.TLS_UNTRUSTED: Remedy(
        "the certificate is not signed by a trusted authority",
        "Name the PEM file of the authority that signed the certificate in the option ca of the probe.",
    ),
    ReasonCode.TLS_NOT_OFFERED: Remedy(
        "the server does not speak TLS on this port",
        "The server at {address} does not speak TLS. Use the scheme without TLS, or the port on which the server "
        "speaks TLS.",
    ),
    ReasonCode.TLS_REQUIRED: Remedy(
        "the server accepts the connection, or this login, only over TLS",
        "Use the scheme with TLS, or the option of the probe that turns TLS on.",
    ),
    ReasonCode.TLS_FAILED: Remedy(
        "any other TLS error",
        "Check whether the server requires another TLS version or a client certificate (option client_certificate).",
    ),
    # ---- login and permissions
    ReasonCode.AUTH_REQUIRED: Remedy(
        "the server requires a login, and the probe sent none or an incomplete one",
        "Put the user name and the password into the URL of the probe; ${{NAME}} takes the password from the "
        "environment.",
        {"http": f"The server requires a login: {_HTTP_LOGIN}."},
    ),
    ReasonCode.AUTH_FAILED: Remedy(
        "the server rejected the login",
        "Check the user name and the password in the URL of the probe, and that the server accepts this user from the "
        "node's machine.",
        {"http": f"The server rejected the login: {_HTTP_LOGIN}."},
    ),
    ReasonCode.USER_NOT_FOUND: Remedy(
        "the server has no such user",
        "Create the user, or use another one in the URL of the probe.",
    ),
    ReasonCode.USER_DISABLED: Remedy(
        "the user exists, but may not log in",
        "Allow the user to log in, or use another one in the URL of the probe.",
        {"postgresql": "Allow the login (ALTER ROLE … LOGIN), or use another user in the URL of the probe."},
    ),
    ReasonCode.CLIENT_NOT_ALLOWED: Remedy(
        "the server does not accept this user from this machine",
        "Allow the user to connect from the node's machine, or use another user in the URL of the probe.",
        {
            "postgresql": "Add a line to pg_hba.conf that allows this user to connect to this database from the node's "
            "machine, and reload the server.",
            "mysql": "Create a user that may connect from the node's machine (CREATE USER 'name'@'host').",
        },
    ),
    ReasonCode.CLIENT_BLOCKED: Remedy(
        "the server blocked this machine after too many failed connections",
        "Find the program on the node's machine whose connections fail, then unblock the machine as the reason says.",
    ),
    ReasonCode.PERMISSION_DENIED: Remedy(
        "the user may not do this",
        "Grant the user the permission that the reason names, or check the names in the URL of the probe.",
        {
            "http": f"The server denies access. If it requires a login, {_HTTP_LOGIN}. Otherwise it may not accept "
            "requests from the node's machine, or may not serve this path."
        },
    ),
    # ---- the service reports its own state
    ReasonCode.STARTING: Remedy(
        "the service says that it is starting or loading",
        "Wait. If the service makes no progress, see its log.",
        {"svc": "Wait. If the other node makes no progress, ask it for the reason: svcnode explain ADDRESS."},
    ),
    ReasonCode.SHUTTING_DOWN: Remedy(
        "the service says that it is shutting down",
        "Find out why the server is being stopped, and start it again if that was not intended.",
    ),
    ReasonCode.SYNCING: Remedy(
        "the service says that it is syncing",
        "Wait. If the service makes no progress, see its log.",
    ),
    ReasonCode.LAGGING: Remedy(
        "the data is older than the limit in the options of the probe",
        "Wait until the service has caught up. If it makes no progress, see its log.",
    ),
    ReasonCode.STALLED: Remedy(
        "a value that must advance has not advanced in time",
        "The service answers, but makes no progress: see its log. It may have lost its peers or its disk. "
        "If it is only slow, give it more time in the condition.",
    ),
    ReasonCode.DUTIES_MISSED: Remedy(
        "a validator has missed more of its duties than it may",
        "The client answers, but the validator does not vote or sign: check its signer, its keys, its clock, its peers "
        "and the load of its machine.",
    ),
    ReasonCode.SLASHED: Remedy(
        "the chain has slashed a validator",
        "Before you look further, stop every signer that has the key of the validator. The usual cause is that two of "
        "them run at the same time, and the other validators of this machine are in danger too.",
    ),
    ReasonCode.LOW_BALANCE: Remedy(
        "the account has less money than the options of the probe require",
        "Send money to the account that the reason names. When it has none left, its transactions fail.",
    ),
    ReasonCode.READ_ONLY: Remedy(
        "the server accepts no writes",
        "Check whether the server is a replica, its disk is full, or it was set to read-only.",
        {
            "disk": "If the reason names an error, check the disk (dmesg, fsck) and mount it again. If the mount is "
            "read-only on purpose, set read_only = true.",
            "sqlite": "If the reason names an error, check the disk (dmesg, fsck). Mount the file system writable.",
            "postgresql": "If the server is not a replica, set default_transaction_read_only to off; pg_settings shows "
            "where it is set.",
        },
    ),
    ReasonCode.WRONG_ROLE: Remedy(
        "the server has another role (primary, replica, validator) than the probe expects",
        "Check whether a failover happened: another server may have this role now.",
        {
            "beacon": "The validator has left the chain and has no duties any more: remove it from validators.",
            "cometbft": "The validator is not in the active set: check whether it is jailed, and how much is staked.",
        },
    ),
    ReasonCode.REPLICATION_STOPPED: Remedy(
        "the replica receives no changes from its primary",
        "See the log of the replica.",
    ),
    ReasonCode.NO_LEADER: Remedy(
        "the cluster has no leader",
        "Check that a majority of the members is running and that they can connect to each other.",
    ),
    ReasonCode.NO_QUORUM: Remedy(
        "too few members of the cluster, or of a replicated queue or stream, are running",
        "Check that a majority of the members is running and that they can connect to each other.",
    ),
    ReasonCode.CLUSTER_DOWN: Remedy(
        "the cluster reports that it cannot serve",
        "Check that every part of the data has a running server, and that the servers can connect to each other.",
    ),
    ReasonCode.TOO_FEW_REPLICAS: Remedy(
        "the server requires more connected replicas for a write",
        "Check that the replicas are running, and that they are connected and not lagging.",
        {
            "postgresql": "Every commit waits for the synchronous standbys: start them, and see their logs. If they "
            "will not come back, change synchronous_standby_names.",
        },
    ),
    ReasonCode.LOCKED: Remedy(
        "the database, file or queue is locked",
        "Find the program that holds the lock.",
    ),
    ReasonCode.OUT_OF_MEMORY: Remedy(
        "the server has no memory left for new data",
        "Raise the memory limit of the server, or remove data.",
    ),
    ReasonCode.STORAGE_FULL: Remedy(
        "the server has no disk space or quota left for new data",
        "Free space on the disk of the server, raise its quota, or remove data.",
        {
            "disk": "Free space on the disk, or raise the quota of the user.",
            "sqlite": "Free space on the disk.",
            "etcd": "Compact the history (etcdctl compact REVISION), defragment every member (etcdctl defrag), then "
            "disarm the alarm (etcdctl alarm disarm). If you need all the data, first raise --quota-backend-bytes.",
        },
    ),
    ReasonCode.WRITE_TIMEOUT: Remedy(
        "the server answers, but the write of the check did not finish within the timeout",
        "Reads work and writes hang: check the disk of the server, its locks, and whether it waits for a "
        "replica that is gone.",
    ),
    ReasonCode.WRITE_FAILED: Remedy(
        "the server refused the write of the check",
        "The reason has the message of the server.",
    ),
    ReasonCode.UPSTREAM_OFFLINE: Remedy(
        "the service reports that a service it depends on is offline",
        "Check the other service: this one answers, but cannot do its work without it.",
        {
            "postgresql": "The lag of the replica is not known without its primary. Start the primary, or correct "
            "primary in the options of the probe.",
        },
    ),
    ReasonCode.CONNECTIONS_DISABLED: Remedy(
        "the database or server accepts no connections from normal users",
        "Allow connections, or check the name of the database in the URL of the probe.",
        {
            "postgresql": "Allow connections (ALTER DATABASE … ALLOW_CONNECTIONS true), or check the name of the "
            "database in the URL of the probe."
        },
    ),
    ReasonCode.TOO_MANY_CONNECTIONS: Remedy(
        "the server has no free connection",
        "Find the clients that hold the connections, or raise the limit of the server.",
    ),
    ReasonCode.RATE_LIMITED: Remedy(
        "the server limits how often it may be asked",
        "Check less often (interval), or find the other clients that send requests.",
    ),
    ReasonCode.TOO_FEW_PEERS: Remedy(
        "the service has fewer peers than min_peers",
        "Wait while the service finds peers, or check its network and its ports.",
    ),
    ReasonCode.WRONG_CHAIN: Remedy(
        "the client follows another chain than the probe expects",
        "Check that the URL of the probe leads to the right client, and that the client follows the right chain.",
    ),
    ReasonCode.CLOCK_SKEW: Remedy(
        "the clocks of the node and the service differ too much",
        "Synchronize both clocks (NTP).",
        {"clock": "Synchronize the clock of the node's machine. If it is right, the clock of the server is wrong."},
    ),
    ReasonCode.CLOCK_UNSYNCHRONIZED: Remedy(
        "the clock of the node's machine is not synchronized",
        "Start a program that synchronizes it, such as chrony or systemd-timesyncd, and check that it reaches its "
        "servers: chronyc sources, or timedatectl timesync-status.",
    ),
    ReasonCode.NOT_RUNNING: Remedy(
        "the unit is inactive, has failed or is masked",
        "See systemctl status and journalctl for this unit.",
    ),
    ReasonCode.PARTIALLY_HEALTHY: Remedy(
        "the service says that it is partially healthy",
        "See the log of the service.",
        {"svc": "Ask the other node for the reason: svcnode explain ADDRESS."},
    ),
    ReasonCode.UNHEALTHY: Remedy(
        "the service says that it is unhealthy",
        "See the log of the service.",
        {"svc": "Ask the other node for the reason: svcnode explain ADDRESS."},
    ),
    # ---- an unexpected response
    ReasonCode.BAD_REQUEST: Remedy(
        "the server does not understand the request",
        "Check the path in the URL of the probe, and its options. A server that expects https may answer an http "
        "request like this.",
    ),
    ReasonCode.NOT_FOUND: Remedy(
        "the server has no such path, database, table, queue or service",
        "The server is running, but does not have what the probe asks for: check the names in the URL and in the "
        "options of the probe.",
        {
            "svc": "There is no such node, or it has no such service: check the port and the path in the URL, and the "
            "options service and prefix.",
            "http": "The server is running, but has nothing at this path: check the path in the URL of the probe.",
        },
    ),
    ReasonCode.METHOD_NOT_ALLOWED: Remedy(
        "the server does not accept this HTTP method at this path",
        "Another program may answer at {address}: check the port and the path in the URL of the probe. If the probe "
        "sets the option method, check that too.",
    ),
    ReasonCode.REDIRECTED: Remedy(
        "the server redirects to another URL",
        "Use that URL in the probe, or let the probe follow redirects (redirects = 1). If it is a login page, the "
        "server requires a login (bearer, headers).",
    ),
    ReasonCode.SERVER_ERROR: Remedy(
        "the server reported an internal error",
        "See the log of the server.",
    ),
    ReasonCode.UNEXPECTED_RESPONSE: Remedy(
        "the response is not the one that the options of the probe expect",
        "Compare the response in the reason with the options of the probe. Check that the service is ready, and that "
        "it is the right service at {address}.",
        dict.fromkeys(("file", "sqlite"), "Compare the content in the reason with the options of the probe."),
    ),
    ReasonCode.OUTDATED_RESPONSE: Remedy(
        "a cache answered with an old response",
        "Check the server behind the cache: it may be down. Exclude the URL of the probe from caching.",
    ),
    ReasonCode.PROTOCOL_ERROR: Remedy(
        "another protocol answers on this port",
        "Another service answers at {address}: check the port, the path and the scheme in the URL of the probe.",
    ),
    ReasonCode.NOT_SUPPORTED: Remedy(
        "the server does not have this method or health service",
        "Check the names in the URL and in the options of the probe, and that this part of the server's interface is "
        "enabled.",
    ),
    # ---- files and disks
    ReasonCode.FILE_NOT_FOUND: Remedy(
        "there is no such file or socket",
        "Check the path, and that the program that creates the file or the socket is running.",
    ),
    ReasonCode.FILE_NOT_READABLE: Remedy(
        "the node may not read the file",
        "Check the owner and the mode of the file: the user of the node's process must be able to read it.",
    ),
    ReasonCode.NOT_A_FILE: Remedy(
        "the path is not a regular file",
        "Use the path of a regular file in the URL of the probe.",
    ),
    ReasonCode.FILE_OUTDATED: Remedy(
        "the file is older than max_age",
        "Check that the program that writes the file is running.",
    ),
    ReasonCode.CORRUPT: Remedy(
        "the data is damaged, or the file is not a database",
        "Check the path. If it is right, restore the file from a backup.",
    ),
    ReasonCode.DISK_LOW: Remedy(
        "the disk has less free space than the probe requires",
        "Free space on the disk, or make it larger.",
    ),
    ReasonCode.INODES_LOW: Remedy(
        "the file system has no free inodes",
        "Remove files, or create the file system with more inodes.",
    ),
    ReasonCode.NOT_MOUNTED: Remedy(
        "the volume that should be at the path is not mounted",
        "Find out why: findmnt, and the log of the kernel. Before you mount it, stop the programs that write below the "
        "mount point: what they have written in the meantime is on another file system, and will be hidden.",
    ),
    ReasonCode.REPLACED: Remedy(
        "the file at the path has been replaced since the last check",
        "Check that this was intended. Programs that opened the file before still use the old one: restart them.",
    ),
    # ---- programs and functions
    ReasonCode.EXIT_STATUS: Remedy(
        "the exit status of the program is not 0",
        "Run the program by hand to see more: the program of a probe on the node's machine, a job on the machine that "
        "it runs on.",
    ),
    ReasonCode.CHECK_FAILED: Remedy(
        "a check function raised an exception or returned False",
        "See the code of the function, and the log of its program.",
    ),
    # ---- the node itself, in its history
    ReasonCode.UNCLEAN_SHUTDOWN: Remedy(
        "the previous process of the node did not shut down cleanly",
        "See the logs of the node and of the system: the process was killed or crashed, or the machine lost power.",
    ),
    ReasonCode.OTHER: Remedy(
        "a cause without a code of its own",
        "See the reason, and the log of the service.",
    ),
}

_PROGRESS_CODES = {ReasonCode.STARTING, ReasonCode.SYNCING, ReasonCode.LAGGING}
_CODES_OF_THE_NODE = {  # of a service that no probe checks
    ReasonCode.NO_EVIDENCE,
    ReasonCode.NOT_STARTED,
    ReasonCode.STALE,
    ReasonCode.CANNOT_CHECK,
    ReasonCode.TTL_EXPIRED,
    ReasonCode.FIXED,
    ReasonCode.REGISTRY_LOST,
}
_SAME_KINDS = {"https": "http", "mariadb": "mysql", "postgres": "postgresql", "ws": "http", "wss": "http"}


def find_remedy(code: str) -> Remedy:
    """The remedy of `other` for a code of another package (`x_…`)."""
    return REMEDIES[ReasonCode(code) if code in REMEDIES else ReasonCode.OTHER]


def meaning_text(code: str) -> str:
    return CUSTOM_CODE_MEANING if is_custom_code(code) else find_remedy(code).meaning


def advised_code(code: str, *, is_probed: bool, is_failure: bool) -> str:
    """The code whose advice helps.

    A program that reports its status may give any code, and its log says more than advice about a probe would. The
    advice to wait helps only while the service reports progress, not when it has failed.
    """
    if not is_probed:
        return code if code in _CODES_OF_THE_NODE else ReasonCode.REPORTED
    return ReasonCode.OTHER if is_failure and code in _PROGRESS_CODES else code


def advice_text(code: str, service_id: str, kind: str, probe: str | None, timeout_s: float | None) -> str:
    """What to do about a service. `probe` is the URL that is shown, or None if it is not known."""
    address, timeout = _address(probe), "the timeout" if timeout_s is None else f"{timeout_s:g} s"
    text = _advice(find_remedy(code), kind)
    return text.format(address=address, host=_host(probe) or address, timeout=timeout, id=service_id)


def _advice(remedy: Remedy, kind: str) -> str:
    kinds = [_SAME_KINDS.get(part, part) for part in kind.split("+")]  # "svc+https" is a kind of "svc" and of "http"
    return next((remedy.by_kind[part] for part in kinds if part in remedy.by_kind), remedy.advice)


def _address(probe: str | None) -> str:
    """host:port as in the URL of the probe."""
    if probe is None:
        return "the address of the service"
    url = _parse_url(probe)
    if url is None or not url.host:
        return probe
    return url.host_port if url.port is not None else f"{url.host_port} (default port of {url.scheme})"


def _host(probe: str | None) -> str | None:
    url = _parse_url(probe or "")
    return url.host if url is not None and url.host else None


def _parse_url(probe: str) -> Url | None:
    try:
        return Url.parse(probe, register_secrets=False)
    except UrlError:
        return None
