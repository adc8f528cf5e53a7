"""Settings of an extraction: public choices, agreed before anyone looks at a table.

The default study has the shape of the paper's: five steps of four hours, its covariates, levels of fluid, lactate.
Ranges, look-backs and cuts, which the paper leaves open, are our choice.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from fdtr import __version__, container
from fdtr.cohort.settings_toml import Setting, as_toml, exact
from fdtr.errors import InvalidSettings
from fdtr.study import Study
from fdtr.study.sections import MOST_STEPS, Flag, Number, Text, Whole
from fdtr.study.validation_messages import readable

Hours = Annotated[Number, Field(gt=0, le=100_000)]
Name = Annotated[str, Field(strict=True, pattern=r"^[a-z][a-z0-9_]{0,40}$")]
SourceName = Literal["mimic-iv", "clif", "meds"]
Sepsis = Literal["sepsis3", "icd", "listed"]

MOST_BYTES = 2**20
MISSING = "_missing"
"""Suffix of the column that marks a missing covariate."""

MEASURED = "_measured"
"""Suffix of the column that says whether the outcome was measured within the step."""

RESERVED = ("site", "patient", "person", "step", "dose", "action", "reward", "end", "cluster")
"""Names of the other columns of the table."""


def _ascending(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] >= pair[1]:
        raise ValueError(f"the lower end must lie below the upper end, and {pair[0]:g} ≥ {pair[1]:g}")
    return pair


Bounds = Annotated[tuple[Number, Number], AfterValidator(_ascending)]


def with_defaults(table: Any, defaults: Mapping[str, Any]) -> Any:
    """A table of a file, and the tables in it, with `defaults` where it has no entry: a file holds what differs.

    >>> with_defaults({"lactate": {"mg/L": 0.0111}}, {"lactate": {"mg/dL": 0.111}, "potassium": {"mmol/L": 1.0}})
    {'lactate': {'mg/dL': 0.111, 'mg/L': 0.0111}, 'potassium': {'mmol/L': 1.0}}
    """
    if not isinstance(table, Mapping):
        return table
    nested = {key: default for key, default in defaults.items() if isinstance(default, Mapping) and key in table}
    return {**defaults, **table, **{key: with_defaults(table[key], default) for key, default in nested.items()}}


def _completed(table: Any, defaults: "Sequence[StateCovariate] | Sequence[SiteCovariate]") -> Any:
    """A table of a list, with its defaults if it has a known name and is incomplete."""
    for default in defaults:
        if isinstance(table, Mapping) and table.get("name") == default.name:
            required = [name for name, field in type(default).model_fields.items() if field.is_required()]
            # A complete table is taken as it is: an optional field that it leaves out (a look-back) is not wanted.
            return table if all(name in table for name in required) else with_defaults(table, default.model_dump())
    return table


class Charted(Setting):
    """A quantity that is measured and charted over time."""

    name: Annotated[Name, Field(description="Its column: small letters, digits and underscores.")]
    meaning: Annotated[Text, Field(description="For the dictionary.")]
    unit: Annotated[Text, Field(description="Unit of the column; sources convert into it.")]
    plausible: Annotated[Bounds, Field(description="Values outside are errors of charting: counted and dropped.")]
    range: Annotated[Bounds, Field(description="Public bounds for the study; values outside are clipped there.")]
    look_back_hours: Annotated[
        Hours | None, Field(description="Largest age of a value, in hours, when a step begins; left out: that of all.")
    ] = None


class StateCovariate(Charted):
    """A charted covariate of the state."""

    effect: Annotated[Literal["shared", "specific"], Field(description="Effect in the drafted study.")] = "shared"


class SiteCovariate(Setting):
    """A covariate that is the same for all stays of a site. The source computes it."""

    name: Annotated[Name, Field(description="Its column.")]
    meaning: Annotated[Text, Field(description="For the dictionary.")]
    unit: Annotated[Text, Field(description="For the dictionary.")] = "–"
    range: Annotated[Bounds, Field(description="Public bounds for the study.")] = (0.0, 1.0)


class Outcome(Charted):
    """The charted quantity that gives the reward: its value at a step's end, or its change within the step."""

    reward: Annotated[
        Literal["level", "change"], Field(description="Reward the value at a step's end, or how it changed.")
    ] = "level"
    better: Annotated[Literal["low", "high"], Field(description="Which end of the range is worth 1.")] = "low"
    unmeasured: Annotated[
        Number | None,
        Field(
            description="Value to use where none was measured. Left out: stays without one at time zero are removed."
        ),
    ] = None


class Dose(Setting):
    """The treatment: the volume given in a step, in levels."""

    names: Annotated[tuple[Name, ...], Field(min_length=1, description="Kinds of dose that are added up.")] = (
        "crystalloid",
        "colloid",
    )
    cuts: Annotated[
        tuple[Annotated[Number, Field(ge=0)], ...],
        Field(min_length=1, description="ml a step: the level is how many of these the volume exceeds."),
    ] = (0.0, 180.0)
    largest: Annotated[Number, Field(gt=0, description="ml: more of one dose in a step's time is an error.")] = 10_000.0
    labels: Annotated[
        tuple[Text, ...], Field(description="Names of the levels. Left out: they follow from the cuts.")
    ] = ()

    @model_validator(mode="after")
    def _check_cuts(self) -> Self:
        if any(a >= b for a, b in pairwise(self.cuts)):
            raise ValueError("the cuts must increase")
        if not self.labels:
            object.__setattr__(self, "labels", labels_of(self.cuts))
        if len(self.labels) != len(self.cuts) + 1:
            raise ValueError(
                f"{len(self.cuts)} cuts make {len(self.cuts) + 1} levels; there are {len(self.labels)} labels"
            )
        for label in self.labels:
            if any(float(ml) not in self.cuts for ml in _ML.findall(label)):
                cuts = ", ".join(map(exact, self.cuts))
                raise ValueError(f"the label “{label}” names no cut ({cuts} ml): correct it, or leave the labels out")
        return self

    def derived(self) -> set[str]:
        """The labels, if they are those that follow from the cuts."""
        return {"labels"} if self.labels == labels_of(self.cuts) else set()


_ML = re.compile(r"(?<![\d.,])(\d+(?:\.\d+)?)\s*ml\b", re.IGNORECASE)


def labels_of(cuts: Sequence[float]) -> tuple[str, ...]:
    """Names of the levels between cuts, in ml.

    >>> labels_of([0, 180, 500])
    ('none', 'up to 180 ml', 'above 180 and up to 500 ml', 'above 500 ml')
    """
    if list(cuts) == [0.0]:
        return ("none", "any")
    ml = [exact(cut) for cut in cuts]
    inner = [f"above {low} and up to {high} ml" if low != "0" else f"up to {high} ml" for low, high in pairwise(ml)]
    return ("none" if ml[0] == "0" else f"up to {ml[0]} ml", *inner, f"above {ml[-1]} ml")


class Options(Setting):
    """Options of the command, recorded so that the file alone makes the table again. A new option overrides them."""

    source: Annotated[SourceName | None, Field(description="The command: fdtr extract SOURCE.")] = None
    version: Annotated[Text | None, Field(description="Version of fdtr that made the table.")] = None
    site: Annotated[Text | None, Field(description="--site: all stays are this one site's.")] = None
    one_site: Annotated[Flag, Field(description="--one-site: the table may be of one site.")] = False
    sepsis: Annotated[Sepsis | None, Field(description="--sepsis, or --stays FILE: listed (MIMIC-IV).")] = None
    file_type: Annotated[Text | None, Field(description="--file-type (CLIF).")] = None
    time_zone: Annotated[Text | None, Field(description="--time-zone: zone of times that state none (CLIF).")] = None


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


ENDS = {"death": 0.0, "discharge": 1.0}


class ExtractionSettings(Setting):
    """All settings of an extraction that do not depend on its source.

    >>> ExtractionSettings().window_hours
    20.0
    """

    SOURCE: ClassVar[SourceName] = "mimic-iv"
    KNOWN_SITE_COVARIATES: ClassVar[tuple[str, ...]] = ("no_icu", "flow")

    name: Annotated[Text, Field(description="Name of the drafted study.")] = "sepsis-fluids"
    time_zero: Annotated[
        Literal["onset", "admission"],
        Field(description="When step 0 begins: the onset of sepsis, if that is later than admission, or admission."),
    ] = "onset"
    steps: Annotated[Whole, Field(ge=1, le=MOST_STEPS, description="How many steps a stay has at most.")] = 5
    step_hours: Annotated[Hours, Field(description="The length of a step, in hours.")] = 4.0
    look_back_hours: Annotated[Hours, Field(description="Largest age of a value, in hours, when a step begins.")] = 24.0
    may_be_absent: Annotated[
        tuple[Name, ...],
        Field(description="Covariates, the outcome or kinds of dose that may have no usable value at all."),
    ] = ()
    covariates: Annotated[
        tuple[StateCovariate, ...], Field(min_length=1, description="The state; a list names all that are wanted.")
    ] = COVARIATES
    site_covariates: Annotated[
        tuple[SiteCovariate, ...], Field(description="What is the same for all stays of a site.")
    ] = SITE_COVARIATES
    outcome: Annotated[Outcome, Field(description="What the reward of a step is made of.")] = LACTATE
    dose: Annotated[Dose, Field(description="The treatment: the volume given in a step, in levels.")] = Dose()
    ends: Annotated[
        dict[str, Annotated[Number, Field(ge=0, le=1)]],
        Field(description="What each missing step is worth on [0, 1], after death and after discharge."),
    ] = ENDS
    options: Annotated[Options, Field(description="Options of the command; a new option overrides these.")] = Options()

    @model_validator(mode="before")
    @classmethod
    def _fill_tables(cls, values: Any) -> Any:
        """A table changes the fields that it names and keeps the other defaults."""
        if not isinstance(values, Mapping):
            return values
        filled = with_defaults(values, {"ends": ENDS})
        outcome = values.get("outcome")
        if isinstance(outcome, Mapping) and outcome.get("name", LACTATE.name) == LACTATE.name:
            filled["outcome"] = with_defaults(outcome, LACTATE.model_dump())
        for name, defaults in (("covariates", COVARIATES), ("site_covariates", SITE_COVARIATES)):
            if isinstance(values.get(name), list | tuple):  # it names all that are wanted
                filled[name] = [_completed(table, defaults) for table in values[name]]
        return filled

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [c.name for c in self.covariates] + [c.name for c in self.site_covariates]
        taken = [*RESERVED, *(f"{c.name}{MISSING}" for c in self.covariates), f"{self.outcome.name}{MEASURED}"]
        clashes = [name for i, name in enumerate(names) if name in names[:i] or name in taken]
        if clashes:
            raise ValueError(f"two columns would be called {clashes[0]!r}: rename a covariate")
        other_unit = [c.unit for c in self.covariates if c.name == self.outcome.name and c.unit != self.outcome.unit]
        if other_unit:
            raise ValueError(
                f"{self.outcome.name!r} is a covariate in {other_unit[0]} and the outcome in {self.outcome.unit}: give "
                "both the same unit"
            )
        if set(self.ends) != {"death", "discharge"}:
            raise ValueError("ends says what death and discharge are worth, both and no other")
        wanted = {*names, self.outcome.name, *self.dose.names}
        unknown = [name for name in self.may_be_absent if name not in wanted]
        if unknown:
            raise ValueError(f"may_be_absent names {unknown[0]!r}, which is no covariate, outcome or kind of dose here")
        not_given = [c.name for c in self.site_covariates if c.name not in self.KNOWN_SITE_COVARIATES]
        if not_given:
            known = " and ".join(self.KNOWN_SITE_COVARIATES)
            raise ValueError(f"{self.SOURCE} gives no site covariate {not_given[0]!r}; {known} can be had")
        if self.options.source not in (None, self.SOURCE):
            raise ValueError(
                f"these settings were made with `fdtr extract {self.options.source}`, not {self.SOURCE}: use them there"
            )
        return self

    @property
    def zero(self) -> str:
        """When step 0 begins, in words."""
        if self.time_zero == "onset":
            return "the onset of sepsis, or admission where onset is earlier or not known"
        return "admission to the unit"

    @property
    def looks_ahead(self) -> str:
        """Which rules of eligibility use what came after time zero, in words; empty if none does."""
        return ""

    @property
    def fewest_sites(self) -> int:
        """How many sites the table must have: 2, or 1 if it is one site's own part of a study."""
        return 1 if self.options.site is not None or self.options.one_site else 2

    @property
    def window_hours(self) -> float:
        """From time zero to the end of the last step."""
        return self.steps * self.step_hours

    @property
    def charted(self) -> tuple[Charted, ...]:
        """All charted quantities, each name once. The outcome comes last, unless it is a covariate too."""
        return (*self.covariates, *(() if self.outcome.name in {c.name for c in self.covariates} else (self.outcome,)))

    def look_back(self, charted: Charted) -> float:
        """How many hours old a value of `charted` may be."""
        return charted.look_back_hours or self.look_back_hours

    @property
    def longest_look_back(self) -> float:
        """How many hours before time zero a source must read."""
        return max(self.look_back(charted) for charted in (*self.covariates, self.outcome))

    def agreeing_with(self, study: Study) -> Self:
        """These settings with the number of steps and the cuts of doses of `study`."""
        if not study.actions.cuts:
            raise InvalidSettings(
                "The study file has no [actions] cuts, which say above which dose a level begins. Add them, in ml."
            )
        actions = study.actions
        unnamed = actions.labels == tuple(f"{level:g}" for level in actions.levels)
        agreed = {"cuts": actions.cuts, "labels": () if unnamed else actions.labels}
        changed = {"steps": study.horizon, "dose": {**self.dose.model_dump(), **agreed}}
        return type(self).model_validate({**self.model_dump(), **changed})

    def with_options(
        self,
        *,
        site: str | None = None,
        one_site: bool = False,
        sepsis: Sepsis | None = None,
        file_type: str | None = None,
        time_zone: str | None = None,
    ) -> Self:
        """These settings with options of the command recorded in them, and with this version of fdtr.

        An option that is left out stays as it was. A named `site` drops the covariates that tell its units apart.
        """
        options = {"site": site, "one_site": one_site or None, "sepsis": sepsis, "file_type": file_type}
        options |= {"time_zone": time_zone, "source": self.SOURCE, "version": __version__}
        changed = {name: value for name, value in options.items() if value is not None}
        recorded = Options.model_validate(self.options.model_dump() | changed)
        dropped = {} if recorded.site is None else {"site_covariates": ()}
        return self.model_copy(update={"options": recorded, **dropped})

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
        """Read a settings file (TOML)."""
        content = container.read_bounded(path, MOST_BYTES, "settings of an extraction")
        try:
            values = tomllib.loads(content.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            raise InvalidSettings(f"{path} is not valid TOML in UTF-8. Start from --print-settings.") from None
        return cls.model_validate(values)

    def as_toml(self) -> str:
        """Every setting with its meaning, as a file that `load` reads."""
        return as_toml(self)
