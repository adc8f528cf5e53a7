"""Node keys: OpenSSH reads them, they are private, and nothing else is taken for one."""

import shutil
import subprocess

import pytest

from fdtr.errors import OutputExists, UnreadableFile
from fdtr.exchange.flower.node_keys import new_node_key, node_fingerprint, public_line, public_pem


def test_a_node_key_is_its_owners_alone_and_never_overwritten(tmp_path):
    path = tmp_path / "node.key"
    line = new_node_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert public_line(path) == line
    with pytest.raises(OutputExists):
        new_node_key(path)
    assert public_line(path) == line


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_ssh_keygen_reads_a_node_key_and_prints_the_same_fingerprint(tmp_path):
    line = new_node_key(tmp_path / "node.key")
    told = subprocess.run(["ssh-keygen", "-l", "-f", tmp_path / "node.key"], capture_output=True, text=True, check=True)
    assert node_fingerprint(line) in told.stdout
    assert "(ECDSA)" in told.stdout


@pytest.mark.parametrize("content", ["", "no key", "-----BEGIN OPENSSH PRIVATE KEY-----\n"])
def test_what_is_no_node_key_is_refused(tmp_path, content):
    (tmp_path / "key").write_text(content)
    with pytest.raises(UnreadableFile, match="fdtr keys node"):
        public_line(tmp_path / "key")
    with pytest.raises(ValueError, match="the line that `fdtr keys node` prints"):
        public_pem(content)
