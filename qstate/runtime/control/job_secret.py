"""Makes the secret of a job: a certificate that only this job's processes have, with its private key.

Rules of this module: it exists to wrap the optional package `cryptography`, which only the driver needs. What is done
with the secret is in `tls_records`.

The secret goes to Spark's workers inside Spark's own closure, and to a task manager over its standard input. It is on
no command line, in no environment, in no log and in no file.
"""

from __future__ import annotations

from datetime import datetime, timezone

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

__all__ = ["new_secret"]

#: The certificate lives as long as its job, whatever the clocks of the hosts say. The end is that of RFC 5280 for
#: certificates that do not expire.
BEGIN = datetime(2000, 1, 1, tzinfo=timezone.utc)
END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc)


def new_secret() -> bytes:
    """A new self-signed certificate and its private key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "qstate job")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGIN)
        .not_valid_after(END)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)  # it vouches for itself only
        .sign(key, SHA256())
    )
    shown: bytes = certificate.public_bytes(Encoding.PEM)
    hidden: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return shown + hidden
