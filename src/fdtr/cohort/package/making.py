"""Make the folder, and find one's way in it."""

import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from fdtr.cohort.clif_settings import ClifExtraction
from fdtr.cohort.package.config import Config
from fdtr.cohort.settings import MISSING, SITE_COVARIATES
from fdtr.cohort.writing import write_files
from fdtr.errors import InvalidSettings, OutputExists, UnwritableFile
from fdtr.study import Study
from fdtr.study.model import read_study_bytes

NEW, OLD = ".private-new", ".private-old"
TEXTS = ("run.sh", "run.bat", "README.md")


@dataclass(frozen=True)
class Package:
    """A folder that `write_package` made: what it holds, and where a run puts what."""

    folder: Path

    @property
    def config(self) -> Path:
        """The four fields to fill in."""
        return self.folder / "config.json"

    @property
    def study(self) -> Path:
        """The study, the same at every site."""
        return self.folder / "study.toml"

    @property
    def settings(self) -> Path:
        """How the table is made, the same at every site."""
        return self.folder / "settings.toml"

    @property
    def private(self) -> Path:
        """Patients' rows: stays at the site."""
        return self.folder / "private"

    @property
    def output(self) -> Path:
        """What may leave, and nothing else."""
        return self.folder / "output"

    @property
    def new(self) -> Path:
        """Where a run makes its table: it takes the place of `private` once nothing refuses it."""
        return self.folder / NEW

    def prepare(self) -> None:
        """Refuse what is in a run's way, before its work, and clear away what a killed one left."""
        if self.private.exists() and not _made(self.private):
            raise OutputExists(
                f"{self.private} holds something that no run of this package made. Nothing was written. Move it away."
            )
        if self.output.exists() and not self.output.is_dir():
            raise OutputExists(
                f"{self.output} is a file, and should be the folder of what may leave. Nothing was written. Move it "
                "away."
            )
        if _made(self.folder / OLD) and not self.private.exists():
            (self.folder / OLD).rename(self.private)  # killed between two names
        self.discard()
        try:
            self.output.mkdir(exist_ok=True)
        except OSError as error:
            raise UnwritableFile(f"{self.output} could not be made: {error.strerror}. Nothing was written.") from None

    def accept(self) -> None:
        """Put the new table in the place of an earlier run's."""
        if self.private.exists():
            self.private.rename(self.folder / OLD)
        self.new.rename(self.private)
        self.discard()

    def discard(self) -> None:
        """Remove a table that was refused, and one that was replaced."""
        for name in (NEW, OLD):
            if _made(self.folder / name):
                shutil.rmtree(self.folder / name)


def _made(folder: Path) -> bool:
    """Whether a run of a package made this folder of patients' rows; anything else is not ours to remove."""
    return (folder / "settings.toml").is_file()


def write_package(folder: Path, study: Path, settings: ClifExtraction) -> Package:
    """Make the new `folder` for the analysts of all sites. A study with cuts of doses sets these, and the steps."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise OutputExists(f"{folder} exists already. Nothing was written. Name a folder that does not.")
    content = read_study_bytes(study)
    loaded = Study.parse(content, study)
    if loaded.actions.cuts:
        settings = settings.agreeing_with(loaded)
    check_fits(loaded, settings)
    package = Package(folder)
    texts = {name: _text(name, loaded.name) for name in TEXTS}
    made = {
        **texts,
        package.config.name: Config.to_fill_in().encode(),
        package.study.name: content,
        package.settings.name: settings.as_toml().encode(),
        ".gitignore": b"private/\n.private*/\n",
    }
    write_files(folder, made)
    (folder / "run.sh").chmod(0o755)
    return package


def check_fits(study: Study, settings: ClifExtraction) -> None:
    """Refuse a study that the table of these settings cannot be read with; better here than at every site."""
    study.require_shared()
    if settings.time_zero == "onset":
        raise InvalidSettings(
            "The settings begin steps at listed onsets, and a package carries no list. Nothing was written. Set "
            'time_zero = "admission" in the settings, or let each site run fdtr extract clif with --onsets.'
        )
    names = [covariate.name for covariate in settings.covariates]
    columns = {*names, *(f"{name}{MISSING}" for name in names), "dose"}
    lacking = [c.name for c in study.covariates if study.columns.of(c.name) not in columns]
    of_units = [name for name in lacking if study.columns.of(name) in {one.name for one in SITE_COVARIATES}]
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


def _text(name: str, study: str) -> bytes:
    text = files("fdtr.cohort.package").joinpath(name).read_text(encoding="utf-8").replace("{study}", study)
    return text.replace("\n", "\r\n" if name.endswith(".bat") else "\n").encode()
