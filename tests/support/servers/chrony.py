"""chrony as a time server that does not change the clock of the machine."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tests.support.servers.base import RealServer
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Sequence


class ChronyServer(RealServer):
    """Without `is_synchronized`, it says that its own clock is not."""

    is_synchronized = True

    def command(self) -> Sequence[str]:
        return [program("chronyd", "chrony"), "-d", "-x", "-u", "root", "-f", str(self.folder / "chrony.conf")]

    def prepare(self) -> None:
        (self.folder / "chrony.conf").write_text(
            f"port {self.port}\nbindaddress 127.0.0.1\nallow 127.0.0.1\ncmdport 0\nbindcmdaddress /\n"
            f"pidfile {self.folder}/pid\n{'local stratum 8' if self.is_synchronized else ''}\n"
        )

    def is_ready(self) -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(0.5)
            sock.connect((self.host, self.port))
            sock.send(b"\x23" + bytes(47))
            return len(sock.recv(1024)) == 48


class UnsynchronizedChronyServer(ChronyServer):
    is_synchronized = False
