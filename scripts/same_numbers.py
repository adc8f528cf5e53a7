"""Compare what two commits compute: policies, messages, totals and the opened total of a masked round, byte by byte.

    .venv/bin/python scripts/same_numbers.py HEAD~20 HEAD

Both commits run the same commands in this environment: the demo, and a study that `fdtr simulate linear` draws, through
files, and once more as a secure sum through a shared folder. Masks and round keys are random, so only the arrays of the
masked round's total are compared; everything else is compared as whole files.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load

SITES = ("site-1", "site-2", "site-3", "site-4")
MASKED = "secure_sum = true\nmax_patients = 100000"


class Commit:
    """A commit's source in a folder of its own, and a folder in which its commands run."""

    def __init__(self, name: str, place: Path) -> None:
        self.source, self.work = place / "source", place / "work"
        for folder in (self.source, self.work):
            folder.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", name, "src"], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", self.source], input=archive, check=True)

    def fdtr(self, *words: str, site: str = "hub") -> str:
        """Run `fdtr` with this commit's source; every party has a state folder of its own."""
        environment = os.environ | {"PYTHONPATH": f"{self.source}/src", "FDTR_STATE": f"{self.work}/state-{site}"}
        command = [sys.executable, "-m", "fdtr", *words]
        done = subprocess.run(command, cwd=self.work, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"fdtr {' '.join(words)} failed:\n{done.stderr}")
        return done.stdout

    def digests(self, keys: Path) -> dict[str, str]:
        """What the commit computes, as SHA-256 by the name of the file."""
        self.fdtr("demo", "--out", "demo")
        self.fdtr(
            *("simulate", "linear", "--out", "linear", "--patients", "1000", "--sites", "4"),
            *("--horizon", "3", "--actions", "3", "--shared", "2", "--specific", "3"),
        )
        self._through_files()
        self._masked(keys)
        files = [path for path in self.work.rglob("*") if path.suffix in {".fdtr", ".policy", ".csv", ".json"}]
        shown = [path for path in files if "state-" not in str(path) and "share" not in path.parts]
        digests = {str(path.relative_to(self.work)): _sha256(path.read_bytes()) for path in shown}
        total = load((self.work / "share/rounds/1/hub/total.fdtr").read_bytes())
        for name, array in sorted(total.items()):
            digests[f"masked round, opened total: {name} {array.shape}"] = _sha256(array.tobytes())
        return digests

    def _through_files(self) -> None:
        study, table = "linear/study.toml", "linear/table.csv"
        messages = [f"{site}.fdtr" for site in SITES]
        for site, message in zip(SITES, messages, strict=True):
            self.fdtr("site", "summarize", study, table, "--site", site, "--out", message, "--yes", site=site)
        self.fdtr("hub", "combine", study, *messages, "--out", "total.fdtr")
        for site in SITES:
            self.fdtr("site", "fit", study, table, "total.fdtr", "--site", site, "--out", f"{site}.policy", site=site)
        self.fdtr("run", study, table, "--out", "results")

    def _masked(self, keys: Path) -> None:
        text = (self.work / "linear/study.toml").read_text().replace("secure_sum = false", MASKED)
        (self.work / "masked.toml").write_text(text.replace("min_sites = 1\n", "min_sites = 3\n"))
        for party in (*SITES, "hub"):
            public = json.loads((keys / f"{party}.json").read_text())["public_key"]
            self.fdtr("roster", "add", "masked.toml", party, public)
        self.fdtr("hub", "open", "share", "masked.toml", "--key", f"{keys}/hub.key")
        for site in SITES:
            words = ("--site", site, "--data", "linear/table.csv", "--key", f"{keys}/{site}.key")
            self.fdtr("site", "join", "share", *words, site=f"masked-{site}")
        while not (self.work / "share/rounds/1/hub/total.fdtr").exists():
            for site in SITES:
                self.fdtr("site", "next", "share", "--yes", site=f"masked-{site}")
            self.fdtr("hub", "next", "share", "--key", f"{keys}/hub.key")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(before: str, after: str) -> int:
    """Print a line for every file; 1 where any differs."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        commits = [Commit(name, place / side) for name, side in ((before, "before"), (after, "after"))]
        keys = place / "keys"
        keys.mkdir()
        for party in (*SITES, "hub"):
            public = commits[0].fdtr("keys", "new", "--out", f"{keys}/{party}.key", "--json")
            (keys / f"{party}.json").write_text(public)
        first, second = (commit.digests(keys) for commit in commits)
    differ = 0
    for name in sorted(first | second):
        same = first.get(name) == second.get(name)
        differ += not same
        print(f"{'same  ' if same else 'DIFFERS'} {second.get(name, 'missing')[:16]} {name}")
    print(f"{len(first | second)} files and arrays, {differ} differ.")
    return 1 if differ else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("Name two commits: scripts/same_numbers.py BEFORE AFTER")
    sys.exit(main(*sys.argv[1:]))
