"""Writes a bill of materials (CycloneDX 1.6, JSON) of what fdtr runs with: python scripts/sbom.py OUT.

The versions are those of the environment that runs this, which is the one the tests run in. Only what fdtr needs at run
time, optional features included, is listed, so that tools for developers do not count.
"""

import json
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def needed(project: dict) -> dict[str, set[str]]:
    """Every package that fdtr needs with the extra `all`, by name, with what it needs itself; "" is fdtr."""
    own = {canonicalize_name(extra): texts for extra, texts in project["optional-dependencies"].items()}
    graph: dict[str, set[str]] = {}
    waiting = [("", Requirement(text)) for text in [*project["dependencies"], *own["all"]]]
    seen = set()
    while waiting:
        by, requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        graph.setdefault(by, set())
        if name == canonicalize_name(project["name"]):
            waiting += [(by, Requirement(text)) for extra in requirement.extras for text in own[extra]]
            continue
        graph[by].add(name)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                for text in distribution(name).requires or []:
                    more = Requirement(text)
                    # Without extras first: what an extra adds counts only where somebody asks for it.
                    if more.marker is None or more.marker.evaluate({"extra": extra}):
                        waiting.append((name, more))
        graph.setdefault(name, set())
    return graph


def component(name: str) -> Component:
    """Entry of an installed package: its version, licence as its authors state it, and address on PyPI."""
    about = distribution(name)
    fields = about.metadata
    licence = fields.get("License-Expression") or fields.get("License") or ""
    classifiers = [text.rpartition(" :: ")[2] for text in fields.get_all("Classifier") or [] if "License ::" in text]
    stated = [licence] if licence and "\n" not in licence else classifiers
    return Component(
        name=fields["Name"],
        version=about.version,
        bom_ref=f"{name}=={about.version}",
        purl=PackageURL("pypi", name=name, version=about.version),
        licenses=[LicenseFactory().make_from_string(text) for text in stated[:1]],
    )


def bill(project: dict, version: str) -> Bom:
    """Bill of materials: fdtr, the packages it needs, and which of them needs which."""
    graph = needed(project)
    root = Component(
        name=project["name"],
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref="root-component",
        purl=PackageURL("pypi", name=project["name"], version=version),
        licenses=[LicenseFactory().make_from_string(project["license"])],
        description=project["description"],
    )
    parts = {"": root} | {name: component(name) for name in graph if name}
    whole = Bom(components=[part for name, part in parts.items() if name])
    whole.metadata.component = root
    for name, others in graph.items():
        whole.register_dependency(parts[name], [parts[other] for other in sorted(others)])
    return whole


def main() -> None:
    """Write the bill of this environment."""
    out = Path(sys.argv[1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [version] = re.findall(r'^__version__ = "(.+)"$', (ROOT / "src/fdtr/__init__.py").read_text(), re.MULTILINE)
    try:
        whole = bill(project, version)
    except PackageNotFoundError as missing:
        raise SystemExit(f"Not installed here: {missing.name}. Run make setup first.") from None
    content = json.loads(JsonV1Dot6(whole).output_as_string())
    # Same environment, same file: neither a random serial number nor the time of day.
    del content["serialNumber"], content["metadata"]["timestamp"]
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    print(f"{out}: fdtr {version} and {len(whole.components)} packages")


main()
