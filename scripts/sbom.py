"""Writes a bill of materials (CycloneDX 1.6, JSON) of what fdtr runs with: python scripts/sbom.py OUT.

The versions are those of the environment that runs this, which is the one the tests run in. cyclonedx-py lists all of
it; only what fdtr needs at run time, optional features included, is kept, so that tools for developers do not count.
"""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def needed(project: dict) -> dict[str, set[str]]:
    """Every package that fdtr needs with the extra `all`, by name, with what it needs itself."""
    own = {canonicalize_name(extra): asked for extra, asked in project["optional-dependencies"].items()}
    found: dict[str, set[str]] = {}
    waiting = [("", Requirement(text)) for text in [*project["dependencies"], *own["all"]]]
    seen = set()
    while waiting:
        by, requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        found.setdefault(by, set())
        if name == canonicalize_name(project["name"]):
            waiting += [(by, Requirement(text)) for extra in requirement.extras for text in own[extra]]
            continue
        found[by].add(name)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                for text in distribution(name).requires or []:
                    more = Requirement(text)
                    # Without extras first: what an extra adds counts only where somebody asks for it.
                    if more.marker is None or more.marker.evaluate({"extra": extra}):
                        waiting.append((name, more))
        found.setdefault(name, set())
    return found


def pruned(bill: dict, graph: dict[str, set[str]], version: str) -> dict:
    """The bill with the packages of `graph` alone, and fdtr's own version."""
    by_name = {canonicalize_name(part["name"]): part for part in bill["components"]}
    missing = sorted(graph.keys() - {""} - by_name.keys())
    if missing:
        raise SystemExit(f"Not installed here: {', '.join(missing)}. Run make setup first.")
    root = bill["metadata"]["component"] | {"version": version, "purl": f"pkg:pypi/fdtr@{version}"}
    refs = {name: by_name[name]["bom-ref"] for name in graph if name} | {"": root["bom-ref"]}
    return {
        **bill,
        "metadata": {**bill["metadata"], "component": root},
        "components": [part for name, part in sorted(by_name.items()) if name in graph],
        "dependencies": [
            {"ref": refs[name], "dependsOn": sorted(refs[other] for other in others)}
            for name, others in sorted(graph.items())
        ],
    }


def main() -> None:
    """Ask cyclonedx-py for everything here, keep what counts, write it."""
    out = Path(sys.argv[1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [version] = re.findall(r'^__version__ = "(.+)"$', (ROOT / "src/fdtr/__init__.py").read_text(), re.MULTILINE)
    command = [sys.executable, "-m", "cyclonedx_py", "environment", sys.executable, "--pyproject"]
    command += [str(ROOT / "pyproject.toml"), "--sv", "1.6", "--of", "JSON", "--output-reproducible"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    bill = pruned(json.loads(done.stdout), needed(project), version)
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(bill, indent=2, ensure_ascii=False) + "\n")
    print(f"{out}: fdtr {version} and {len(bill['components'])} packages")


main()
