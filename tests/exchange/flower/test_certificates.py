"""Certificates: what TLS asks of them, and what is refused."""

import socket
import ssl
import threading
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from fdtr.errors import InvalidSettings, OutputExists, UnreadableFile, UnwritableFile
from fdtr.exchange.flower.certificates import certificate_fingerprint, make_certificates, require_server_certificate


def handshake(files, authority, name):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    ours, theirs = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ssl.create_default_context(cafile=authority).wrap_socket(ours, server_hostname=name):
            pass
    finally:
        ours.close()
        thread.join(10)


def test_certificates_hold_for_their_hosts_under_their_authority_alone(tmp_path):
    files = make_certificates(tmp_path / "one", ["hub.example.org", "127.0.0.1"])
    assert files.key.stat().st_mode & 0o777 == 0o600
    handshake(files, files.authority, "hub.example.org")
    handshake(files, files.authority, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, files.authority, "other.example.org")
    other = make_certificates(tmp_path / "two", ["hub.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, other.authority, "hub.example.org")
    assert certificate_fingerprint(files.authority) != certificate_fingerprint(other.authority)


@pytest.mark.parametrize("host", ["bad host!ü", "", "hub.example.org:8443", "[::1]", "10.0.0.256", "a" * 64, "a..b"])
def test_what_is_no_host_gets_no_certificate_and_leaves_no_folder(tmp_path, host):
    with pytest.raises(InvalidSettings, match=r"no name or address of a host\. Nothing was written"):
        make_certificates(tmp_path / "tls", ["hub.example.org", host])
    assert not (tmp_path / "tls").exists()


def test_certificates_are_written_all_or_not_at_all(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for place in ("file", "file/below", "x" * 300):
        with pytest.raises(UnwritableFile, match="could not be made"):
            make_certificates(tmp_path / place, ["hub.example.org"])

    def full(*_: object) -> None:
        raise UnwritableFile("The disk is full.")

    monkeypatch.setattr("fdtr.exchange.flower.certificates.write_atomically", full)
    with pytest.raises(UnwritableFile, match="full"):
        make_certificates(tmp_path / "tls", ["hub.example.org"])
    assert list((tmp_path / "tls").iterdir()) == []


def test_certificates_are_for_servers_and_end_with_the_trial(tmp_path):
    files = make_certificates(tmp_path, ["hub.example.org"])
    server, authority = (
        x509.load_pem_x509_certificate(one.read_bytes()) for one in (files.certificate, files.authority)
    )
    usage = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    for one in (server, authority):
        assert timedelta(days=90) <= one.not_valid_after_utc - one.not_valid_before_utc < timedelta(days=91)


def test_a_certificate_that_has_ended_is_refused_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("fdtr.exchange.flower.certificates._SKEW", timedelta(days=3))
    files = make_certificates(tmp_path, ["hub.example.org"], days=-1)
    with pytest.raises(
        InvalidSettings, match=r"no site could connect to hub.example.org .*: certificate has expired\."
    ):
        require_server_certificate(files.certificate, files.key, "hub.example.org")


def test_the_authoritys_key_is_nowhere(tmp_path):
    make_certificates(tmp_path, ["hub.example.org"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "server.crt", "server.key"]
    with pytest.raises(OutputExists):
        make_certificates(tmp_path, ["hub.example.org"])
    with pytest.raises(UnreadableFile):
        certificate_fingerprint(tmp_path / "server.key")
