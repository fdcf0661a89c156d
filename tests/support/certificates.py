"""Certificates for localhost, made for one test: self-signed, or at the end of a chain."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    certificate: Path
    key: Path


def make_certificate(
    directory: Path, name: str = "node", *, passphrase: bytes | None = None, is_rsa: bool = False
) -> Certificate:
    """A certificate for localhost with this common name, and its key. It replaces one with the same name."""
    key = rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    pair = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    pair.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
    pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return pair


def make_chain(directory: Path, *, leaf_days: float = 90, intermediate_days: float = 90) -> tuple[Certificate, Path]:
    """A server certificate, in one file with the intermediate that signed it, and the root to trust."""
    root_key, root = _issue("root", None, days=900)
    intermediate_key, intermediate = _issue("intermediate", (root_key, root), days=intermediate_days)
    leaf_key, leaf = _issue("leaf", (intermediate_key, intermediate), days=leaf_days, is_authority=False)
    pair, ca = Certificate(directory / "chain.pem", directory / "chain.key"), directory / "root.pem"
    pair.certificate.write_bytes(b"".join(each.public_bytes(Encoding.PEM) for each in (leaf, intermediate)))
    pair.key.write_bytes(leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    ca.write_bytes(root.public_bytes(Encoding.PEM))
    return pair, ca


def _issue(
    name: str,
    issuer: tuple[ec.EllipticCurvePrivateKey, x509.Certificate] | None,
    *,
    days: float,
    is_authority: bool = True,
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer_key, issuer_name = (key, subject) if issuer is None else (issuer[0], issuer[1].subject)
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(_key_usage(is_authority=is_authority), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
    return key, certificate


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    """Python 3.13 verifies it, as it does the key identifiers."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
