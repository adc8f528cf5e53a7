"""What a site keeps of a round, when its files are damaged."""

from __future__ import annotations

import pytest

from fdtr.errors import DamagedFile
from folder_releases import BOTH, due

pytestmark = pytest.mark.slow


@BOTH
@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"policy": 1}', b"\xff"])
def test_a_damaged_note_of_the_policy_is_refused_and_made_again_once_moved_away(tmp_path, masked, content):
    parties = due(tmp_path, masked=masked)
    parties.play()
    [note] = parties.home_of("a").glob("*/finished.json")
    before = note.read_bytes()
    note.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"finished\.json cannot be read.*Move it away"):
        parties.site("a")
    note.unlink()
    parties.site("a")
    assert note.read_bytes() == before
