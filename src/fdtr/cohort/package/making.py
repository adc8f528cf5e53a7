"""Make the folder, and find one's way in it."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from fdtr.cohort.clif_settings import ClifExtraction
from fdtr.cohort.package.config import Config
from fdtr.cohort.settings import MISSING
from fdtr.cohort.writing import write_files
from fdtr.errors import InvalidSettings
from fdtr.study import Study
from fdtr.study.model import read_study_bytes

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


def write_package(folder: Path, study: Path, settings: ClifExtraction) -> Package:
    """Make the new `folder` for the analysts of all sites. A study with cuts of doses sets these, and the steps."""
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
        ".gitignore": b"private/\n",
    }
    write_files(folder, made)
    (folder / "run.sh").chmod(0o755)
    return package


def check_fits(study: Study, settings: ClifExtraction) -> None:
    """Refuse a study that the table of these settings cannot be read with; better here than at every site."""
    names = [covariate.name for covariate in settings.covariates]
    columns = {*names, *(f"{name}{MISSING}" for name in names), "dose"}
    lacking = [c.name for c in study.covariates if study.columns.of(c.name) not in columns]
    if lacking:
        raise InvalidSettings(
            f"The study has the covariate {lacking[0]!r}, and one site's table made with these settings has no such "
            f"column (it has {', '.join(names)}). Nothing was written. Add it to the settings, or drop it in the study."
        )
    if study.horizon != settings.steps:
        raise InvalidSettings(
            f"The study has {study.horizon} steps and the settings make {settings.steps}. Nothing was written."
        )
    levels = list(range(len(settings.dose.labels)))
    if list(study.actions.levels) != levels:
        raise InvalidSettings(
            f"The study's action levels are {list(study.actions.levels)}, and the settings' cuts make {levels}. "
            "Nothing was written."
        )
    if set(study.ends) != set(settings.ends):
        raise InvalidSettings("Stays may end early, by death or discharge: the study needs [ends] with both.")


def _text(name: str, study: str) -> bytes:
    text = files("fdtr.cohort.package").joinpath(name).read_text(encoding="utf-8").replace("{study}", study)
    return text.replace("\n", "\r\n" if name.endswith(".bat") else "\n").encode()
