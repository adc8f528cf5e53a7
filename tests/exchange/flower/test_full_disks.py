"""Disks that are full, of a site and of the hub: real ones, small enough to fill."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from folder_parties import study_of

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture
def small_disk(network) -> Iterator[Callable[[str], Path]]:
    """Puts a disk of its own where a party keeps its files; all are taken away at the end.

    It asks for the network, so that the network has ended before its disks go.
    """
    if os.geteuid() != 0:
        pytest.skip("a file system needs root to be mounted")
    made: list[Path] = []

    def mounted(name: str) -> Path:
        place = network.root / name
        place.mkdir(mode=0o700)
        told = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(place)]
        if subprocess.run(told, capture_output=True, timeout=30).returncode:
            pytest.skip("this machine lets nobody mount a file system")
        made.append(place)
        return place

    try:
        yield mounted
    finally:
        network.end()
        for place in made:
            subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True, timeout=30)


def fill(disk: Path) -> Path:
    """Leave no byte free."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    free = os.statvfs(disk)
    assert free.f_bavail == 0
    return ballast


def test_a_site_whose_disk_is_full_fails_and_comes_back(network, small_disk):
    disk = small_disk("d-state")
    sites = network.begin(study_of(tuple("abcd"), masked=False))
    ballast = fill(disk)
    result = network.finished(network.round("--min-sites", "4"), code=1)
    assert (result["ending"], result["total"]) == ("refused", None)
    assert [(one["site"], one["phase"], one["reason"]) for one in result["absent"]] == [("d", "sums", "failed")]
    assert str(disk) not in str(result)
    assert not sites["d"].ended
    ballast.unlink()
    again = network.finished(network.round("--min-sites", "4"))
    assert (again["ending"], again["members"]) == ("complete", ["a", "b", "c", "d"])


def test_a_hub_whose_disk_is_full_says_so_and_goes_on(network, small_disk):
    disk = small_disk("shared")
    network.begin(study_of(masked=False))
    ballast = fill(disk)
    round_ = network.round()
    assert round_.result() == 1
    assert "No space left" in round_.said
    ballast.unlink()
    assert network.finished(network.round())["ending"] == "complete"
