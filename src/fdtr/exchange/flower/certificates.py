"""Make and check TLS certificates: an authority and one server certificate, for trials and for the hub's loopback.

In a real deployment nginx uses a certificate of the hub's institution. Flower's server on loopback gets a new
certificate at every start. The authority's private key is never written.
"""

import ipaddress
import os
import re
import ssl
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fdtr.container import create_private, write_atomically
from fdtr.errors import InvalidSettings, OutputExists, UnreadableFile, UnwritableFile

TRIAL_DAYS = 90
_SKEW = timedelta(minutes=5)  # clocks of two machines differ
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"({_LABEL}\.)*(?![0-9]+\Z){_LABEL}")  # one that ends in a number would be an address
_LONGEST_HOST_NAME = 253


@dataclass(frozen=True)
class ServerFiles:
    """Files of a TLS server: its authority's certificate, its own certificate, and its private key."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def within(cls, folder: Path) -> "ServerFiles":
        """The files that `make_certificates` writes into a folder."""
        return cls(folder / "ca.crt", folder / "server.crt", folder / "server.key")


def is_host(text: str) -> bool:
    """Whether `text` is a DNS name or an IP address, without a port and without brackets.

    >>> [is_host(text) for text in ("hub.example.org", "10.0.0.1", "::1", "hub.example.org:8443", "10.0.0.256", "")]
    [True, True, True, False, False, False]
    """
    return _is_address(text) or (len(text) <= _LONGEST_HOST_NAME and _HOST_NAME.fullmatch(text) is not None)


def _is_address(text: str) -> bool:
    try:
        return "%" not in str(ipaddress.ip_address(text))
    except ValueError:
        return False


def make_certificates(folder: Path, hosts: list[str], days: int = TRIAL_DAYS) -> ServerFiles:
    """Write an authority and a server certificate for `hosts`, names or addresses. The authority's key is not kept."""
    invalid = [host for host in hosts if not is_host(host)]
    if invalid:
        raise InvalidSettings(
            f"{invalid[0]!r} is no name or address of a host. Nothing was written. Give one without a port, such as "
            "hub.example.org or 10.0.0.1."
        )
    files = ServerFiles.within(folder)
    existing = [path for path in vars(files).values() if os.path.lexists(path)]
    if existing:
        raise OutputExists(f"{existing[0]} exists already. Nothing was written. Name another folder.")
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = _name(f"fdtr trial authority for {hosts[0]}"[:64])
    authority = _authority(authority_name, authority_key, days)
    server = _server(hosts, authority_name, authority_key, server_key, days)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UnwritableFile(
            f"The folder {folder} could not be made: {error.strerror}. Nothing was written. Name another."
        ) from None
    try:
        create_private(files.key, server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        write_atomically(files.certificate, server.public_bytes(Encoding.PEM))
        write_atomically(files.authority, authority.public_bytes(Encoding.PEM))
    except BaseException:
        for path in vars(files).values():  # none existed before
            path.unlink(missing_ok=True)
        raise
    return files


def certificate_fingerprint(path: Path) -> str:
    """SHA-256 of the first certificate in a PEM file, as browsers show it."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise UnreadableFile(f"{path} is no certificate in PEM.") from None
    return sha256(certificate.public_bytes(Encoding.DER)).digest().hex(":").upper()


def require_authority(path: Path) -> None:
    """Refuse a file that cannot serve as certificate authority."""
    _require_file("authority", path)
    try:
        ssl.create_default_context(cafile=str(path))
    except FileNotFoundError:
        raise InvalidSettings(f"authority: {path} is not there. Ask the hub for its certificate authority.") from None
    except ssl.SSLError:
        raise InvalidSettings(
            f"authority: {path} is no certificate in PEM. Ask the hub for its certificate authority."
        ) from None
    except OSError as error:
        raise InvalidSettings(f"authority: {path} could not be read: {error.strerror}.") from None


def _require_file(field: str, path: Path) -> None:
    """Refuse a path that exists and is no regular file, before it is opened: reading a pipe could block for ever."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # opening it gives the reason
    if not stat.S_ISREG(mode):
        raise InvalidSettings(f"{field}: {path} is no file.")


def require_server_certificate(certificate: Path, key: Path, host: str) -> None:
    """Refuse a certificate with which no site could connect to `host`. Runs a whole TLS handshake in memory."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # each site decides which authority it trusts
    _require_file("[tls] certificate", certificate)
    try:
        client.load_verify_locations(certificate)
    except ssl.SSLError:
        raise InvalidSettings(f"[tls] certificate: {certificate} is no certificate in PEM.") from None
    except OSError as error:
        raise InvalidSettings(f"[tls] certificate: {certificate} could not be read: {error.strerror}.") from None
    try:
        server.load_cert_chain(certificate, key, password="")  # a locked key would ask at the terminal
    except (OSError, ValueError):
        raise InvalidSettings(
            f"[tls] key: {key} is not the private key of {certificate}, or it is locked with a passphrase, which "
            "nginx cannot open."
        ) from None
    try:
        _shake_hands(client, server, host)
    except ssl.SSLCertVerificationError as error:
        raise InvalidSettings(
            f"[tls] certificate: no site could connect to {host} with {certificate}: "
            f"{error.verify_message.rstrip('.')}. Bring one for the host in `address`."
        ) from None
    except (ssl.SSLError, ValueError):
        raise InvalidSettings(f"[tls] certificate: {certificate} does not serve for TLS on {host}.") from None


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname=host)
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    while True:
        try:
            return client_end.do_handshake()
        except ssl.SSLWantReadError:
            with suppress(ssl.SSLWantReadError):
                server_end.do_handshake()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _dated(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _SKEW).not_valid_after(now + timedelta(days=days))


def _authority(name: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    public = key.public_key()
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates only
    builder = _dated(name, name, public, days).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    builder = builder.add_extension(usage, True)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False).sign(key, SHA256())


def _server(
    hosts: list[str],
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    builder = _dated(_name(hosts[0][:64]), issuer, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return builder.add_extension(issuer_id, False).sign(issuer_key, SHA256())


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
