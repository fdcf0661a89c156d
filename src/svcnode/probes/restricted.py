"""Which probes may leave the machine on which they are configured.

A probe that runs a program or reads a file uses the permissions of the node. A probe with a password, a token or a
header holds a secret. Neither is published or accepted from others without thought.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.redaction import SecretScope, redacted
from svcnode.core.url import Url
from svcnode.probes import KINDS, scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    ProbeTable = str | Mapping[str, Any]  # a URL, or a table with a url and options, as in TOML

LOCAL_KINDS = frozenset(
    {"clock", "disk", "ethereum+unix", "exec", "file", "http+unix", "jsonrpc+unix", "sqlite", "systemd"}
)
FILE_OPTIONS = frozenset({"ca", "client_certificate", "client_key", "credentials_file"})
# Options without secrets: limits, names, and what the response must be. A probe without a login and without headers
# reads only what every client can read. All other options may hold a secret, also those of later versions.
PUBLIC_OPTIONS = frozenset(
    "authoritative chain chain_id contains db expect fresh grace http2 jetstream json keys matches max_behind "  # noqa: SIM905  a list would take 30 lines
    "max_block_age max_finalized_age max_l1_age max_lag max_missed max_safe_age max_slot_lag method min_cert_days "
    "min_peers min_relays period prefix queue redirects result reuse role schedule server_name service sslmode "
    "starting_json starting_status status tcp timezone tls ttl type validator vhost vote_account write".split()
)


def reject_local_access(probe: ProbeTable, hint: str = "") -> None:
    """Raise if the probe runs a program, reads a file, or reads secrets of the node."""
    scheme, (_, options) = scheme_of(probe), _parts(probe)
    if scheme in LOCAL_KINDS:
        access = "runs a program" if scheme == "exec" else "reads this machine"
        raise InvalidValueError(f"{scheme}: {access} with the permissions of the node{hint}")
    for option in sorted(FILE_OPTIONS.intersection(options)):
        raise OptionError(option, f"reads a file with the permissions of the node{hint}")
    text = json.dumps(probe)
    if "${" in text or '"file":' in text:
        raise InvalidValueError(f"${{…}} and {{ file = … }} read secrets of the node{hint}")


def is_restricted(probe: ProbeTable) -> bool:
    """Whether only the machine on which the probe is configured can use it: it reads this machine, or may hold a
    secret. A probe of another package counts as restricted: what its options mean is not known here."""
    url, options = _parts(probe)
    try:
        reject_local_access(probe)
        return not isinstance(url, str) or not PUBLIC_OPTIONS.issuperset(options) or _may_hold_secret(url, probe)
    except (ProbeError, InvalidValueError):
        return True


def _parts(probe: ProbeTable) -> tuple[object, Mapping[str, Any]]:
    if isinstance(probe, str):
        return probe, {}
    return probe.get("url"), {name: value for name, value in probe.items() if name != "url"}


def _may_hold_secret(text: str, probe: ProbeTable) -> bool:
    """Registered secrets are found by `redacted`, also a key in the path, which `Url.parse` registers."""
    with SecretScope() as scope:
        url = Url.parse(text)
        shown = json.dumps(probe, ensure_ascii=False)
        has_secret = redacted(shown) != shown
    scope.release()
    has_login = bool(url.username or url.password or url.query or "@" in text or "?" in text or "#" in text)
    return url.scheme not in KINDS or has_login or has_secret
