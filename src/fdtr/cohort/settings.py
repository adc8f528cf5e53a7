"""The settings of an extraction: public choices, agreed before anyone looks at a table. Defaults are the paper's."""

import tomllib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from fdtr import container
from fdtr.errors import InvalidSettings
from fdtr.study import Study
from fdtr.study.faults import readable
from fdtr.study.sections import MOST_STEPS, Number, Section, Text, Whole

Hours = Annotated[Number, Field(gt=0, le=100_000)]
Name = Annotated[str, Field(strict=True, pattern=r"^[a-z][a-z0-9_]{0,40}$")]
Bounds = tuple[Number, Number]

MOST_BYTES = 2**20
MISSING = "_missing"
"""What the column of a missingness indicator adds to its covariate's name."""

RESERVED = ("site", "patient", "person", "step", "dose", "action", "reward", "end", "cluster")
"""Names of the other columns of the table."""


def _ascending(pair: Bounds) -> Bounds:
    if pair[0] >= pair[1]:
        raise ValueError(f"the lower end must lie below the upper end, and {pair[0]:g} ≥ {pair[1]:g}")
    return pair


class Charted(Section):
    """Something that is measured and charted over time."""

    name: Annotated[Name, Field(description="Its column: small letters, digits and underscores.")]
    meaning: Annotated[Text, Field(description="For the dictionary.")]
    unit: Annotated[Text, Field(description="Into which sources convert.")]
    plausible: Annotated[Bounds, Field(description="Values outside are errors of charting: counted and dropped.")]
    range: Annotated[Bounds, Field(description="Public bounds for the study; values outside are clipped there.")]
    look_back_hours: Annotated[
        Hours | None, Field(description="How old a value may be when a step begins; None: as the extraction says.")
    ] = None

    @field_validator("plausible", "range")
    @classmethod
    def _check_bounds(cls, pair: Bounds) -> Bounds:
        return _ascending(pair)


class StateCovariate(Charted):
    """A charted covariate of the state."""

    effect: Annotated[Literal["shared", "specific"], Field(description="In the drafted study.")] = "shared"


class SiteCovariate(Section):
    """A covariate that is the same for all stays of a site; the source computes it."""

    name: Name
    meaning: Text
    unit: Text = "–"
    range: Bounds = (0.0, 1.0)

    @field_validator("range")
    @classmethod
    def _check_bounds(cls, pair: Bounds) -> Bounds:
        return _ascending(pair)


class Outcome(Charted):
    """What the reward of a step is made of: a charted value at the step's end, or its change within the step."""

    reward: Annotated[
        Literal["level", "change"], Field(description="Reward the value at a step's end, or how it changed.")
    ] = "level"
    better: Annotated[Literal["low", "high"], Field(description="Which end of the range is worth 1.")] = "low"
    unmeasured: Annotated[
        Number | None,
        Field(description="Taken for the value where none was measured. None: such stays leave the cohort."),
    ] = None


class Dose(Section):
    """The treatment: the volume given in a step, in levels."""

    names: Annotated[tuple[Name, ...], Field(min_length=1, description="Kinds of dose that are added up.")] = (
        "crystalloid",
        "colloid",
    )
    cuts: Annotated[
        tuple[Annotated[Number, Field(ge=0)], ...],
        Field(min_length=1, description="ml a step: the level is how many of these the volume exceeds."),
    ] = (0.0, 180.0)
    largest: Annotated[Number, Field(gt=0, description="ml: a larger single dose is an error of charting.")] = 10_000.0
    labels: tuple[Text, ...] = ("none", "up to 180 ml", "above 180 ml")

    @model_validator(mode="after")
    def _check_cuts(self) -> Self:
        if any(a >= b for a, b in pairwise(self.cuts)):
            raise ValueError("the cuts must increase")
        if len(self.labels) != len(self.cuts) + 1:
            raise ValueError(
                f"{len(self.cuts)} cuts make {len(self.cuts) + 1} levels; there are {len(self.labels)} labels"
            )
        return self


WEIGHT = StateCovariate(
    name="weight", meaning="body weight", unit="kg", plausible=(20.0, 350.0), range=(40.0, 160.0), look_back_hours=720.0
)
COVARIATES = (
    WEIGHT,
    StateCovariate(
        name="temperature", meaning="body temperature", unit="°C", plausible=(25.0, 45.0), range=(34.0, 41.0)
    ),
    StateCovariate(
        name="sbp", meaning="systolic blood pressure", unit="mmHg", plausible=(20.0, 300.0), range=(60.0, 200.0)
    ),
    StateCovariate(name="hemoglobin", meaning="hemoglobin", unit="g/dL", plausible=(2.0, 25.0), range=(5.0, 17.0)),
    StateCovariate(name="potassium", meaning="potassium", unit="mEq/L", plausible=(1.0, 12.0), range=(2.5, 6.5)),
)
LACTATE = Outcome(name="lactate", meaning="lactate", unit="mmol/L", plausible=(0.1, 40.0), range=(0.5, 10.0))
SITE_COVARIATES = (
    SiteCovariate(name="no_icu", meaning="1 where the unit is not an intensive care unit"),
    SiteCovariate(name="flow", meaning="the unit's share of all patients' time in all units"),
)


class Extraction(Section):
    """All settings of an extraction.

    >>> Extraction().window_hours
    20.0
    """

    name: Text = "sepsis-fluids"
    time_zero: Annotated[
        Literal["onset", "admission"],
        Field(description="When step 0 begins: the onset of sepsis, if that is later than admission, or admission."),
    ] = "onset"
    steps: Annotated[Whole, Field(ge=1, le=MOST_STEPS)] = 5
    step_hours: Annotated[Hours, Field(description="The length of a step.")] = 4.0
    look_back_hours: Annotated[Hours, Field(description="How old a value may be when a step begins.")] = 24.0
    covariates: Annotated[tuple[StateCovariate, ...], Field(min_length=1)] = COVARIATES
    site_covariates: tuple[SiteCovariate, ...] = SITE_COVARIATES
    outcome: Outcome = LACTATE
    dose: Dose = Dose()
    ends: Annotated[
        dict[str, Annotated[Number, Field(ge=0, le=1)]],
        Field(description="What each missing step is worth on [0, 1]."),
    ] = Field(default_factory=lambda: {"death": 0.0, "discharge": 1.0})

    @model_validator(mode="before")
    @classmethod
    def _change_the_outcome(cls, given: Any) -> Any:
        """An [outcome] without a name changes the default one, so that a file may hold only what differs."""
        outcome = given.get("outcome") if isinstance(given, Mapping) else None
        if isinstance(outcome, Mapping) and "name" not in outcome:
            return {**given, "outcome": {**LACTATE.model_dump(), **outcome}}
        return given

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [c.name for c in self.covariates] + [c.name for c in self.site_covariates]
        taken = [*RESERVED, *(f"{c.name}{MISSING}" for c in self.covariates)]
        wrong = [n for i, n in enumerate(names) if n in names[:i] or n in taken]
        if wrong:
            raise ValueError(f"two columns would be called {wrong[0]!r}: rename a covariate")
        if set(self.ends) != {"death", "discharge"}:
            raise ValueError("ends says what death and discharge are worth, both and no other")
        return self

    @property
    def window_hours(self) -> float:
        """From time zero to the end of the last step."""
        return self.steps * self.step_hours

    @property
    def charted(self) -> tuple[Charted, ...]:
        """Everything that is read from charts, the outcome last; it may be a covariate too."""
        return (*self.covariates, *(() if self.outcome.name in {c.name for c in self.covariates} else (self.outcome,)))

    def look_back(self, charted: Charted) -> float:
        """How many hours old a value may be."""
        return charted.look_back_hours or self.look_back_hours

    @property
    def longest_look_back(self) -> float:
        """How many hours before time zero a source has to read."""
        return max(self.look_back(charted) for charted in self.charted)

    def agreeing_with(self, study: Study) -> Self:
        """These settings with the number of steps, and the cuts of doses, that a study has."""
        if not study.actions.cuts:
            raise InvalidSettings(
                "The study file has no [actions] cuts, which say above which dose a level begins. Add them, in ml."
            )
        agreed = {"cuts": study.actions.cuts, "labels": study.actions.labels}
        changed = {"steps": study.horizon, "dose": {**self.dose.model_dump(), **agreed}}
        return type(self).model_validate({**self.model_dump(), **changed})

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Settings from a dictionary; raises InvalidSettings with one line for each fault."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            lines = "\n".join(readable(error, cls, obj))
            raise InvalidSettings(f"The settings of the extraction are not valid:\n{lines}") from None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file of settings (TOML)."""
        content = container.read_bounded(path, MOST_BYTES, "settings of an extraction")
        try:
            given = tomllib.loads(content.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            raise InvalidSettings(f"{path} is not valid TOML in UTF-8. Start from --print-settings.") from None
        return cls.model_validate(given)

    def as_toml(self) -> str:
        """Every setting, as a file that `load` takes."""
        import tomli_w

        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))
