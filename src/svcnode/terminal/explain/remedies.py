"""What to mend, by the reason that a look gave. The first row that fits is the one.

The reasons are those of the probes, of their drivers and of the servers behind them, so a row looks for as little of
one as will do. `{address}` is where it was looked at, `{host}` is that without its port, and `{timeout}` is how long a
look may take.
"""

from __future__ import annotations

from typing import NamedTuple

from svcnode.core.model import Outcome


class Remedy(NamedTuple):
    pattern: str  # anywhere in the reason, in small or large letters
    text: str
    only_for: Outcome | None = None  # the verdict that the reason came with; None: any


_CONNECT_REMEDIES = (
    Remedy(
        "^connection refused",
        "Nothing listens at {address}. Is the server running? If it is, it listens at another address or port: compare "
        "its settings with the URL of the probe.",
    ),
    Remedy(
        "^no such host",
        "The node's machine knows no host of the name {host}. Is it spelled right in the URL of the probe? On that "
        "machine, does `getent hosts {host}` find it?",
    ),
    Remedy(
        "^the resolver ",
        "The node's machine cannot resolve names just now: see to its resolver (/etc/resolv.conf). Nothing is known "
        "against the service.",
    ),
    Remedy(
        "^(network is unreachable|no route to host|host is down|connection timed out)",
        "There is no way from the node's machine to {address}: check the network, routes and firewalls. Is that machine "
        "switched on?",
    ),
    Remedy(
        "^no answer within .* step (connect|tunnel)",
        "No connection comes about at {address}. Is that machine switched on? Does a firewall drop what is sent there? "
        "If the server runs, it may be frozen or overloaded.",
    ),
    Remedy(
        "^no answer within .* step handshake",
        "It takes the connection, but the TLS handshake does not end: it may be frozen or overloaded, or not speak TLS "
        "at {address}.",
    ),
    Remedy(
        "^no answer within .* step (log in|exchange|reuse)",
        "It takes the connection, but does not answer within {timeout}: it may be frozen, overloaded, or wait for "
        "something itself (its disk, a lock, another service); its own log may say. Or something else listens at "
        "{address}. If it is only slow, raise timeout.",
    ),
)

# What the look itself says of any probe, even of one whose other words are somebody else's.
CHECK_REMEDIES = (
    Remedy(
        "^no answer within .* step (run|start)",
        "The program of the probe does not end within {timeout}: run it by hand to see what it waits for, or raise "
        "timeout.",
    ),
    Remedy(
        r"^(no answer within|(its|the) previous \w+ has not returned yet)",
        "It does not answer within {timeout}: it may be frozen, overloaded, or wait for something itself (its disk, a "
        "lock, another service). Its own log may say. If it is only slow, raise timeout.",
    ),
    Remedy(
        "^slow: ",
        "It works, but takes longer than max_latency allows. Find out what slows it down, or raise max_latency.",
    ),
    Remedy(
        "^(this machine cannot look|cannot run).*too many open files",
        "The process of the node cannot open more files: raise its limit (ulimit -n, or LimitNOFILE of its unit).",
    ),
    Remedy(
        "^this machine cannot look",
        "The node's machine has run out of something, and cannot look. Nothing is known against the service.",
    ),
    Remedy(
        "^the probe itself failed",
        "That is a fault of the probe, not of the service: the log of the node has all of it.",
    ),
    Remedy("^cannot run", "The program of the probe cannot be started: check its path and its permissions."),
)

_KIND_REMEDIES = (
    Remedy("pip install", "Install the driver where the node runs, and start the node anew."),
    # ---- what others said, quoted: before the rows that look for words
    Remedy(
        "^heard |^it did not say what was expected",
        "It answers, but not what the probe expects: is it ready, and is it this service that listens at {address}? "
        "Compare what it says with the probe's option expect.",
    ),
    Remedy(
        "^answered .*, but", "It answers, but not what the probe expects: compare the answer with the probe's options."
    ),
    Remedy(
        "^(unhealthy|down|partially healthy|initializing): ",
        "That node says so itself: ask it why, with svcnode explain --url.",
    ),
    Remedy(
        "^not found there.*: service ",
        "Nobody there knows that service: its id is the option service of the probe. If the id is right, check the "
        "port and the path in the URL, or the option prefix.",
    ),
    Remedy("^not found there", "No node answers there: check the port and the path in the URL, or the option prefix."),
    # ---- TLS
    Remedy("certificate has expired", "Its certificate has expired: renew it, and let the server load the new one."),
    Remedy(
        "certificate expires in",
        "Its certificate ends soon: renew it, and let the server load the new one. How soon is too soon is the option "
        "min_cert_days.",
    ),
    Remedy(
        "certificate.*(mismatch|not valid for)",
        "Its certificate is for another name: write that name into the URL of the probe, or into its option "
        "server_name.",
    ),
    Remedy(
        "self-signed|unable to get (local )?issuer|certificate verify failed|certificate is not valid",
        "Nobody whom the node's machine trusts has signed its certificate: give the probe the PEM file of who has, as "
        "its option ca.",
    ),
    Remedy(
        "wrong version number|record layer failure|does not (offer|support) (TLS|SSL)",
        "It does not speak TLS at {address}: use the scheme without TLS, or the port where it speaks it.",
    ),
    Remedy(
        "asks for TLS|SSL off|^TLS: ",
        "The two do not agree on TLS: does the server want it, or want a certificate of the client "
        "(client_certificate)?",
    ),
    # ---- HTTP, and what is spoken over it
    Remedy(
        r"(^|: )answered 401\b",
        "The server asks for a login, and gets none or a wrong one: check the user name and the password in the URL of "
        "the probe, or its option bearer or headers.",
    ),
    Remedy(
        r"(^|: )answered 403\b",
        "The server is there, and refuses. If it wants a login, check the user name and the password in the URL of the "
        "probe, or its option bearer or headers. If not, it may not let the node's machine in, or nobody to that path.",
    ),
    Remedy(
        r"(^|: )answered 400\b",
        "The server cannot make sense of the request: check the path in the URL of the probe, and its options. A port "
        "that speaks TLS says so to http, where https is meant.",
    ),
    Remedy(
        r"(^|: )answered 405\b",
        "The server does not take such a request at that path: check the path in the URL of the probe, and its option "
        "method.",
    ),
    Remedy(
        r"(^|: )answered 429\b",
        "The server is asked too often: look less often (interval), or find out who else asks it.",
    ),
    Remedy("^answered 404", "It answers, and has nothing under that path: check the path in the URL of the probe."),
    Remedy(
        "^answered 3.., a redirect",
        "It sends whoever asks elsewhere: make that the URL of the probe, or let the probe follow (redirects = 1). If "
        "that is a page to log in, it wants a login (bearer, headers).",
    ),
    Remedy(
        "error -32601",
        "The server knows no such method: check the option method of the probe, and whether the server has that part "
        "of its interface switched on.",
    ),
    Remedy(
        "what came back is not|is no answer of|not HTTP|no JSON-RPC reply",
        "Something else answers at {address}: check the port and the path in the URL of the probe.",
    ),
    Remedy("^answered 5..", "It answers with an error of its own: its log says why."),
    # ---- the server is full, or is being stopped: before the login, which these may speak of as well
    Remedy(
        "too many (open )?(clients|connections)|connections exceeded|connection slots|max number of clients"
        "|max_user_connections|connection limit",
        "The server has no connection left to give: find out who holds them, or raise its limit.",
    ),
    Remedy(
        "shutting down|shutdown in progress|closure with reason .?shutdown",
        "The server is being stopped: find out by whom, and start it again if that was not meant.",
    ),
    # ---- the login
    Remedy(
        r"no password supplied|authentication required|NOAUTH|\(using password: NO\)",
        "The server asks for a login, and the probe brings none or half of one: write the user name and the password "
        "into its URL (the password as ${{NAME}} to take it from the environment).",
    ),
    Remedy(
        "is not permitted to log in",
        "The server is there, and refuses the login: it knows that user, but not as one who may log in. Allow it "
        "(ALTER ROLE … LOGIN), or write another user into the URL of the probe.",
    ),
    Remedy(
        "role .* does not exist|no such user",
        "The server is there, and refuses the login: it has no such user. Create it, or write another one into the URL "
        "of the probe.",
    ),
    Remedy(
        "pg_hba",
        "The server is there, and refuses the login: its pg_hba.conf does not let that user into that database from "
        "the node's machine. Add a line that does, and let the server reload it.",
    ),
    Remedy(
        "host .* is not allowed to connect",
        "The server is there, and refuses the login: it has no user who may come from the node's machine. Create one "
        "(CREATE USER 'name'@'host').",
    ),
    Remedy(
        "host .* is blocked because of",
        "The server has shut out the node's machine, after too many connections from there that failed. Find out whose "
        "they are, then let it in again as the reason says.",
    ),
    Remedy(
        "NOPERM|no permissions? to|permission denied for|permissions violation|access to .* refused|command denied"
        r"|to database .*\(1044\)|grant it ",
        "The server knows that user, who may not do what the probe asks for: grant it that right, or check the names "
        "in the URL of the probe.",
    ),
    Remedy(
        "password|authenticat|access denied|access.?refused|login was refused|authorization|not authorized|WRONGPASS"
        "|credentials",
        "The server is there, and refuses the login. Check the user name and the password in the URL of the probe, and "
        "whether the server lets that user in from the node's machine.",
    ),
    Remedy(
        "database .* does not exist|unknown database|no queue|no such table|vhost .* not found|DB index is out of",
        "The server is there, but what was asked for is not: check the name in the URL or in the options of the probe.",
    ),
    Remedy(
        "is not currently accepting connections",
        "The server is there, and lets nobody into that database: allow it (ALTER DATABASE … ALLOW_CONNECTIONS true), "
        "or check the name in the URL of the probe.",
    ),
    # ---- somebody else is there, or somebody in trouble
    Remedy(
        "connection reset|broken pipe|closed the connection|connection closed|connection was lost",
        "Something takes the connection at {address}, and ends it. Is it this service that listens there, with or "
        "without TLS as the probe has it? A proxy does this when nothing is behind it.",
    ),
    # ---- files and disks
    Remedy("permission denied", "The user that the node runs as may not read it: check owner and mode."),
    Remedy("no such file or directory", "It is not there. Is the path right? Does the program run that makes it?"),
    Remedy("less than (min|warn)_free", "The disk has less room than the probe asks for: make room there."),
    Remedy("allowed are", "The file is not kept up to date: does the program run that writes it?"),
    Remedy("database is locked", "Another program holds the database: find out which, and why for so long."),
    Remedy(
        "malformed|quick_check|its end is missing|not a SQLite database|database of another program",
        "The file is damaged, or not the one that was meant: check the path, or bring it back from a backup.",
    ),
    # ---- what only some kinds say
    Remedy("peers, min_peers", "It has too few peers: check its network and its ports, or give it time to find some."),
    Remedy(
        "not the (primary|replica)|no replica",
        "The server has another role than the probe expects: has another one taken over?",
    ),
    Remedy("link to its primary|replication does not run", "Replication has stopped: the log of the replica says why."),
    Remedy(
        "syncing|behind|old, max_|replayed nothing|loading|start(ing|ed)|initializing",
        "It is starting or catching up: wait, and see whether it gets further. If it does not, its own log says why.",
        only_for=Outcome.NOT_READY,
    ),
    Remedy("no leader", "The cluster has no leader: do most of its members run, and do they reach each other?"),
    Remedy("follows chain", "The client follows another chain than the probe expects: is it the right one?"),
    Remedy(
        "health checks|knows no service|SERVICE_UNKNOWN",
        "The server does not tell the health of that service: check its name in the URL of the probe.",
    ),
)

REMEDIES = (*_CONNECT_REMEDIES, *CHECK_REMEDIES, *_KIND_REMEDIES)
