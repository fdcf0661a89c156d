"""dnsmasq as the name server of a zone."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tests.support.servers.base import RealServer
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Sequence

LONG_TEXTS = [f"{number:03d}{'x' * 200}" for number in range(40)]  # more than fits into a datagram


class DnsmasqServer(RealServer):
    scheme = "dns"

    def command(self) -> Sequence[str]:
        records = [
            "--host-record=one.example.test,10.0.0.1",
            "--host-record=two.example.test,10.0.0.1,fd00::1",
            "--address=/two.example.test/10.0.0.2",
            "--cname=alias.example.test,one.example.test",
            "--mx-host=example.test,mail.example.test,10",
            "--txt-record=text.example.test,ready",
            *(f"--txt-record=long.example.test,{text}" for text in LONG_TEXTS),
            "--local=/example.test/",  # other names in it do not exist
        ]
        return [
            program("dnsmasq", "dnsmasq-base"),
            "--keep-in-foreground",
            "--no-resolv",
            "--no-hosts",
            "--user=root",
            "--conf-file=/dev/null",
            "--bind-interfaces",
            f"--listen-address={self.host}",
            f"--port={self.port}",
            f"--pid-file={self.folder}/pid",
            *records,
        ]

    def is_ready(self) -> bool:
        with socket.create_connection((self.host, self.port), timeout=1.0):
            return True
