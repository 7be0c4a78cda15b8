"""Certificate authorities and certificates for tests, made when they are needed."""

from __future__ import annotations

import ipaddress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID

__all__ = ["Authority"]


class Authority:
    """An authority that writes the certificates that it issues into a directory."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._issued = 0
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_signs_certificates(), critical=True)
        # The strict checks of Python 3.13 want the identifiers of keys.
        self._identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
        )
        self.certificate = builder.sign(self._key, hashes.SHA256())
        #: The file for the `ca_file` of those who trust it.
        self.file = self._write("ca", self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, *names: str, common_name: str = "", expired: bool = False, raw_name: bytes = b"") -> str:
        """The file with a certificate for these host names or addresses, and with its key.

        `raw_name`, of less than 100 bytes, is written as the one host name, whatever it is.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(common_name or names[0]), self._name, key.public_key(), expired=expired)
        if raw_name:  # in DER: a sequence of one element, the tag of which says that it is a DNS name
            element = bytes([0x82, len(raw_name)]) + raw_name
            alternative = x509.UnrecognizedExtension(
                ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes([0x30, len(element)]) + element
            )
            builder = builder.add_extension(alternative, critical=False)
        elif names:
            found = [_general_name(name) for name in names]
            builder = builder.add_extension(x509.SubjectAlternativeName(found), critical=False)
        builder = builder.add_extension(self._identifier, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._write("cert", certificate.public_bytes(serialization.Encoding.PEM) + private)

    def _write(self, kind: str, data: bytes) -> str:
        self._issued += 1
        path = self._directory / f"{kind}-{id(self)}-{self._issued}.pem"
        path.write_bytes(data)
        return str(path)


def _signs_certificates() -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    others = dict.fromkeys((*names, "crl_sign", "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(key_cert_sign=True, **others)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.UniformResourceIdentifier(name) if "://" in name else x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, expired: bool = False
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now - timedelta(days=1) if expired else now + timedelta(days=1))
    )
