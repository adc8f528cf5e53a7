"""The folder that the analyst of a CLIF site runs: config, study, settings and two scripts."""

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from fdtr import container
from fdtr.cohort.clif_settings import ClifSettings
from fdtr.cohort.extraction_folder import write_files
from fdtr.cohort.extraction_settings import MISSING, SITE_COVARIATES
from fdtr.errors import InvalidSettings, OutputExists, UnwritableFile
from fdtr.study import Study, read_study_bytes
from fdtr.study.sections import Section, Text
from fdtr.study.validation_messages import readable

TEXTS = ("run.sh", "run.bat", "README.md")
MOST_BYTES = 2**16
TO_FILL_IN = {
    "site_name": "YOUR-SITE",
    "tables_path": "/path/to/clif/tables",
    "file_type": "parquet",
    "time_zone": "UTC",
}
"""config.json as sites receive it."""


class Config(Section):
    """The four fields of config.json. All are required: a forgotten time zone would shift every time."""

    site_name: Annotated[Text, Field(description="As the study knows this site.")]
    tables_path: Annotated[Text, Field(description="The folder of CLIF tables.")]
    file_type: Literal["parquet", "csv"]
    time_zone: Annotated[Text, Field(description="Of times that state none.")]

    @field_validator("site_name", "tables_path")
    @classmethod
    def _check_filled_in(cls, value: str, field: ValidationInfo) -> str:
        if value == TO_FILL_IN[str(field.field_name)]:
            raise ValueError("still says what it said when the package was made; write what it is at this site")
        return value

    def tables(self, package: Path) -> Path:
        """The folder of CLIF tables. A relative path starts at the package; ~ is the home folder."""
        try:
            return package / Path(self.tables_path).expanduser()
        except RuntimeError:  # ~name of an unknown user
            raise InvalidSettings(
                f"{package / 'config.json'}: tables_path begins with ~, and no such home folder is known here. Write "
                "the path in full."
            ) from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read config.json; the error names every fault."""
        content = container.read_bounded(path, MOST_BYTES, "a site's config.json")
        try:
            values = json.loads(content.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            raise InvalidSettings(
                f"{path} is not valid JSON in UTF-8. Is a comma or a quote missing? In a Windows path, write / for \\."
            ) from None
        if not isinstance(values, dict):
            raise InvalidSettings(
                f"{path} is not valid: write its four fields in braces, such as "
                '{"site_name": "north", "tables_path": "/data/clif", "file_type": "parquet", "time_zone": "UTC"}.'
            )
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise InvalidSettings(f"{path} is not valid:\n" + "\n".join(readable(error, cls, values))) from None


class Package:
    """Paths in a folder that `write_package` made, and the replacement of its private table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.json"  # four fields that the site fills in
        self.study = folder / "study.toml"  # the same at every site
        self.settings = folder / "settings.toml"  # of the extraction, the same at every site
        self.private = folder / "private"  # patients' rows, which stay at the site
        self.output = folder / "output"  # files that may leave, and no others
        self.new = folder / ".private-new"  # the table of this run, which replaces `private` once it is accepted
        self._old = folder / ".private-old"

    def prepare(self) -> None:
        """Check the folder before a run, and clean up after a run that was killed."""
        if self.private.exists() and not _is_ours(self.private):
            raise OutputExists(
                f"{self.private} holds something that no run of this package made. Nothing was written. Move it away."
            )
        if self.output.exists() and not self.output.is_dir():
            raise OutputExists(
                f"{self.output} is a file, and should be the folder of what may leave. Nothing was written. Move it "
                "away."
            )
        if _is_ours(self._old) and not self.private.exists():
            self._old.rename(self.private)  # a run was killed between its two renames
        self.discard()
        try:
            self.output.mkdir(exist_ok=True)
        except OSError as error:
            raise UnwritableFile(f"{self.output} could not be made: {error.strerror}. Nothing was written.") from None

    def accept(self) -> None:
        """Replace the table of an earlier run by the new one."""
        if self.private.exists():
            self.private.rename(self._old)
        self.new.rename(self.private)
        self.discard()

    def discard(self) -> None:
        """Remove a new table that was refused, and an old one that was replaced."""
        for folder in (self.new, self._old):
            if _is_ours(folder):
                shutil.rmtree(folder)


def _is_ours(folder: Path) -> bool:
    """Whether a run of a package made this folder; no other folder may be removed."""
    return (folder / "settings.toml").is_file()


def write_package(folder: Path, study: Path, settings: ClifSettings) -> Package:
    """Make the new `folder` for the analysts of all sites. Cuts in the study override the settings' cuts and steps."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise OutputExists(f"{folder} exists already. Nothing was written. Name a folder that does not.")
    content = read_study_bytes(study)
    loaded = Study.parse(content, study)
    if loaded.actions.cuts:
        settings = settings.agreeing_with(loaded)
    check_fits(loaded, settings)
    package = Package(folder)
    texts = {name: _file(name, loaded.name) for name in TEXTS}
    contents = {
        **texts,
        package.config.name: (json.dumps(TO_FILL_IN, indent=2) + "\n").encode(),
        package.study.name: content,
        package.settings.name: settings.as_toml().encode(),
        ".gitignore": b"private/\n.private*/\n",
    }
    write_files(folder, contents)
    (folder / "run.sh").chmod(0o755)
    return package


def check_fits(study: Study, settings: ClifSettings) -> None:
    """Refuse a study that cannot read the table of these settings, before the package goes to every site."""
    study.require_shared()
    if settings.time_zero == "onset":
        raise InvalidSettings(
            "The settings begin steps at listed onsets, and a package carries no list. Nothing was written. Set "
            'time_zero = "admission" in the settings, or let each site run fdtr extract clif with --onsets.'
        )
    names = [covariate.name for covariate in settings.covariates]
    columns = {*names, *(f"{name}{MISSING}" for name in names), "dose"}
    lacking = [c.name for c in study.covariates if study.columns.of(c.name) not in columns]
    of_units = [name for name in lacking if study.columns.of(name) in {c.name for c in SITE_COVARIATES}]
    if of_units:
        raise InvalidSettings(
            f"The study has the covariate {of_units[0]!r}, which tells the units of one table apart, and a package's "
            "table is one site's. Nothing was written. Drop it in the study."
        )
    if lacking:
        raise InvalidSettings(
            f"The study has the covariate {lacking[0]!r}, and one site's table made with these settings has no such "
            f"column (it has {', '.join(names)}). Nothing was written. Add it to the settings, or drop it in the study."
        )
    if study.horizon != settings.steps:
        raise InvalidSettings(
            f"The study has {study.horizon} steps and the settings make {settings.steps}. Nothing was written. Set "
            f"steps in the settings to {study.horizon}."
        )
    levels = list(range(len(settings.dose.labels)))
    if list(study.actions.levels) != levels:
        raise InvalidSettings(
            f"The study's action levels are {list(study.actions.levels)}, and the settings' cuts make {levels}. "
            "Nothing was written. Give the study [actions] cuts, which the settings then take."
        )
    if set(study.ends) != set(settings.ends):
        raise InvalidSettings(
            "Stays may end early, by death or discharge: the study needs [ends] with both. Nothing was written."
        )


def _file(name: str, study: str) -> bytes:
    text = files("fdtr.cohort").joinpath("package_files", name).read_text(encoding="utf-8").replace("{study}", study)
    return text.replace("\n", "\r\n" if name.endswith(".bat") else "\n").encode()
