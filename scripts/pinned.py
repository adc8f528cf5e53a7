"""Print a requirements file that pins every wheel of a folder to its version and SHA-256: scripts/pinned.py FOLDER."""

import hashlib
import sys
from pathlib import Path

from packaging.utils import parse_wheel_filename


def pinned(folder: Path) -> list[str]:
    """A line for each wheel, by name."""
    found = []
    for wheel in sorted(folder.glob("*.whl")):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        found.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    return found


if __name__ == "__main__":
    print("\n".join(pinned(Path(sys.argv[1]))))
