"""The tables of a study file, each with its own checks."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Whole = Annotated[int, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1)]


MOST_STEPS = 10_000
LARGEST_INTEGER = 2**53 - 1  # beyond it JSON numbers are not exact, and canonical JSON refuses them


def _number_or_auto(value: Any) -> str:
    return "auto" if value == "auto" else "number"


def _kind_of_pessimism(value: Any) -> str:
    return "noise units" if isinstance(value, Mapping | NoiseUnits) else _number_or_auto(value)


Auto = Annotated[Literal["auto"], Tag("auto")]
Ridge = Annotated[Annotated[Number, Field(gt=0), Tag("number")] | Auto, Discriminator(_number_or_auto)]
Weight = Annotated[Annotated[Number, Field(ge=0, le=1), Tag("number")] | Auto, Discriminator(_number_or_auto)]


def _ascending(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] >= pair[1]:
        raise ValueError(f"the lower end must lie below the upper end, and {pair[0]:g} ≥ {pair[1]:g}")
    return pair


Range = Annotated[tuple[Number, Number], AfterValidator(_ascending)]


class Section(BaseModel):
    """A table of the study file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Columns(BaseModel):
    """Column names in this site's table; a covariate's column by the covariate's name. Not in the fingerprint."""

    model_config = ConfigDict(extra="allow", frozen=True)
    ROLES: ClassVar[tuple[str, ...]] = ("site", "patient", "step", "action", "reward", "end", "cluster")

    site: Text = "site"
    patient: Text = "patient"
    step: Text = "step"
    action: Text = "action"
    reward: Text = "reward"
    end: Text = "end"
    cluster: Annotated[
        Text | None,
        Field(description="Who belongs together, as a person's stays do: folds and errors go by it. None: by patient."),
    ] = None

    @property
    def by_role(self) -> dict[str, str]:
        """The column of each role that has one."""
        columns = {role: getattr(self, role) for role in self.ROLES}
        return {role: column for role, column in columns.items() if column is not None}

    def of(self, covariate: str) -> str:
        """The column that holds a covariate."""
        return str((self.model_extra or {}).get(covariate, covariate))


class Actions(Section):
    """The treatments and the functions p(a) of their codes."""

    levels: Annotated[tuple[Number, ...], Field(description="Codes in the data, as many as there are treatments.")]
    labels: Annotated[tuple[Text, ...], Field(description="Names for people, one for each level.")] = ()
    basis: Annotated[
        Literal["polynomial", "categorical"],
        Field(description="p(a) = (1, a, …, a^degree), or 1 and an indicator for each level but the first."),
    ] = "polynomial"
    degree: Annotated[Whole, Field(ge=1, le=20, description="Of a polynomial basis.")] = 2
    scale: Annotated[Literal["unit", "none"], Field(description="Map codes onto [0, 1], or use them as they are.")] = (
        "unit"
    )

    cuts: Annotated[
        tuple[Annotated[Number, Field(ge=0)], ...],
        Field(description="For `fdtr extract`: the level of a dose is how many of these it exceeds."),
    ] = ()

    @field_validator("levels")
    @classmethod
    def _check_levels(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        twice = [level for i, level in enumerate(levels) if level in levels[:i]]
        if twice:
            raise ValueError(f"the level {twice[0]:g} is listed twice")
        if len(levels) < 2:
            raise ValueError("at least two levels are needed: with one treatment there is nothing to decide")
        if any(abs(level) > LARGEST_INTEGER for level in levels):
            raise ValueError("a level is too large to be a code; use small numbers")
        return tuple(int(x) for x in levels) if all(float(x).is_integer() for x in levels) else levels

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if not self.labels:
            object.__setattr__(self, "labels", tuple(f"{level:g}" for level in self.levels))
        if len(self.labels) != len(self.levels):
            raise ValueError(f"there are {len(self.levels)} levels and {len(self.labels)} labels")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("a label is listed twice")
        return self

    @model_validator(mode="after")
    def _check_cuts(self) -> Self:
        if any(a >= b for a, b in pairwise(self.cuts)):
            raise ValueError("the cuts must increase")
        if self.cuts and self.levels != tuple(range(len(self.cuts) + 1)):
            raise ValueError(f"{len(self.cuts)} cuts make the levels 0 to {len(self.cuts)}; list these")
        return self


class LinearBasis(Section):
    """z."""

    kind: Literal["linear"] = "linear"


class PolynomialBasis(Section):
    """z, …, z^degree."""

    kind: Literal["polynomial"]
    degree: Annotated[Whole, Field(ge=1, le=20)] = 2


class CategoricalBasis(Section):
    """An indicator of each level but the first."""

    kind: Literal["categorical"]
    levels: tuple[Number, ...]

    @field_validator("levels")
    @classmethod
    def _check_levels(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(levels)) < len(levels):
            raise ValueError("a level is listed twice")
        if len(levels) < 2:
            raise ValueError("at least two levels are needed")
        return levels


class SplineBasis(Section):
    """B-splines, clamped at the range, with these interior knots in raw units."""

    kind: Literal["spline"]
    knots: tuple[Number, ...] = ()
    degree: Annotated[Whole, Field(ge=1, le=5)] = 3


class FourierBasis(Section):
    """sin 2πjz and cos 2πjz, j = 1 … order; the range is the period."""

    kind: Literal["fourier"]
    order: Annotated[Whole, Field(ge=1, le=50)] = 1


StateBasis = Annotated[
    LinearBasis | PolynomialBasis | CategoricalBasis | SplineBasis | FourierBasis, Field(discriminator="kind")
]


class Covariate(Section):
    """One column of the state."""

    name: Text
    effect: Annotated[
        Literal["shared", "specific"],
        Field(description="shared: one effect common to all sites (φ0); specific: each site its own (φ1)."),
    ] = "specific"
    range: Annotated[Range, Field(description="Public bounds; values outside are clipped and counted.")] = (0.0, 1.0)
    level: Annotated[
        Literal["patient", "site"], Field(description="site: constant within a site, and checked to be.")
    ] = "patient"
    basis: StateBasis = LinearBasis()
    interacts: Annotated[Flag, Field(description="false: a main effect only, no action terms.")] = True
    missing: Annotated[
        Literal["refuse", "forward", "range-middle"],
        Field(description="What to do with a gap: refuse, carry the patient's last value forward, or mid-range."),
    ] = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _range_of_levels(cls, fields: Any) -> Any:
        """A categorical covariate without a range gets that of its levels."""
        basis = fields.get("basis") if isinstance(fields, Mapping) else None
        if not isinstance(basis, Mapping) or basis.get("kind") != "categorical" or "range" in fields:
            return fields
        levels = basis.get("levels")
        numbers = [x for x in levels if isinstance(x, int | float)] if isinstance(levels, list | tuple) else []
        return {**fields, "range": (min(numbers), max(numbers))} if numbers else fields

    @model_validator(mode="after")
    def _check_basis(self) -> Self:
        low, high = self.range
        if isinstance(self.basis, SplineBasis):
            inside = (low, *self.basis.knots, high)
            if any(a >= b for a, b in pairwise(inside)):
                raise ValueError(f"the knots must increase strictly inside the range [{low:g}, {high:g}]")
        if isinstance(self.basis, CategoricalBasis):
            if (low, high) != (min(self.basis.levels), max(self.basis.levels)):
                raise ValueError("the range of a categorical covariate is that of its levels; leave it out")
            if self.missing == "range-middle":
                raise ValueError('a categorical covariate has no middle; use missing = "forward" or fill the table')
        return self


class Features(Section):
    """What belongs to the feature map as a whole."""

    intercept: Literal["shared", "specific", "none"] = "specific"
    scale: Annotated[
        Literal["unit", "none"],
        Field(description="unit: ranges onto [0, 1] and φ divided by its largest possible norm; none: as they are."),
    ] = "unit"


class Reward(Section):
    """The outcome of a step."""

    range: Annotated[Range, Field(description="Mapped onto [0, 1]; outside is an error.")] = (0.0, 1.0)


class NoiseUnits(Section):
    """Pessimism in units of the outcome's noise: α_h = κ d σ̂_h."""

    noise: Annotated[Number, Field(ge=0, le=100, description="κ; σ̂_h is the residual standard deviation of step h.")]


Pessimism = Annotated[
    Annotated[Number, Field(ge=0, le=100), Tag("number")] | Auto | Annotated[NoiseUnits, Tag("noise units")],
    Discriminator(_kind_of_pessimism),
]


class Learning(Section):
    """Settings of the method."""

    pessimism: Annotated[
        Pessimism,
        Field(
            description="Larger stays closer to usual care: { noise = κ } for α_h = κ d σ̂_h, a number for the paper's "
            'c, or "auto": κ = 0.03, or 0.1 at a site whose patients fared better with usual care, and not '
            "better still as κ = 0.03 advises."
        ),
    ] = "auto"
    ridge: Annotated[Ridge, Field(description='λ, or "auto": from each site\'s own folds.')] = "auto"
    sharing: Annotated[
        Weight,
        Field(description="w on the others' sums: 1 is the paper, 0 is alone, \"auto\": from the site's own folds."),
    ] = "auto"
    share: Annotated[
        Literal["value", "reward", "auto"],
        Field(description="What is estimated together: values (the paper) or rewards alone."),
    ] = "auto"
    failure_probability: Annotated[
        Number, Field(gt=0, lt=1, description="ξ in the paper's α; without effect in noise units.")
    ] = 0.99
    misspecification: Annotated[Number, Field(ge=0, description="η, the largest error of the linear model.")] = 0.0
    seed: Annotated[Whole, Field(ge=0, le=LARGEST_INTEGER, description="Of the folds in which settings are tuned.")] = 0


class Disclosure(Section):
    """What leaves a site, and what must hold before it may."""

    OF_GRAMS: ClassVar[dict[str, float]] = {"max_ratio": 0.05, "max_leverage": 0.33}

    payload: Annotated[
        Literal["schur", "gram"],
        Field(description="schur: sums of the shared features alone; gram: of all features, for audits."),
    ] = "schur"
    secure_sum: Annotated[Flag, Field(description="Nobody sees a site's sums, only those of all sites.")] = False
    colluding: Annotated[
        Whole, Field(ge=0, description="Sites of a secure sum that may work with the hub; it needs three more.")
    ] = 0
    max_patients: Annotated[
        Whole | None, Field(ge=1, le=LARGEST_INTEGER, description="Most patients of a site; needed by a secure sum.")
    ] = None
    norm_bound: Annotated[
        Number | None, Field(gt=0, description="Rule BOUND: largest ‖φ‖ where features are not scaled to 1.")
    ] = None
    jitter: Annotated[
        Number,
        Field(
            ge=0,
            le=0.5,
            description="Rows count with secret weights from 1 - jitter to 1; 0: exact sums. Below 0.2, and for Grams, "
            "the rules look at all columns.",
        ),
    ] = 0.3
    max_membership: Annotated[
        Number,
        Field(
            gt=0.5,
            le=1,
            description="Rule NUMBERS: the AUC with which somebody who knows a patient's whole trajectory may tell "
            "whether it is in the sums; 1: no rule.",
        ),
    ] = 0.80
    min_patients: Annotated[Whole, Field(ge=1, description="Rule N: patients at every step.")] = 50
    max_ratio: Annotated[
        Number,
        Field(
            gt=0, le=1, description='Rule RATIO, without weights: rank of the features per patient; 0.05 with "gram".'
        ),
    ] = 0.10
    min_action: Annotated[Whole, Field(ge=1, description="Rule ACTION: patients at each action that is used.")] = 11
    min_cell: Annotated[
        Whole, Field(ge=1, description="Rules CELL, NONZERO, REF, PAIR: patients in a cell that is not empty.")
    ] = 11
    max_leverage: Annotated[
        Number, Field(gt=0, le=1, description='Rule LEVERAGE: of one patient; 0.33 with "gram".')
    ] = 0.20
    min_sites: Annotated[Whole, Field(ge=1, description="Rule SITES, at the hub.")] = 3
    once_margin: Annotated[
        Whole, Field(ge=0, description="Rule ONCE: patients by which two releases must differ, at least; 0: no rule.")
    ] = 10
    small_step: Annotated[
        Literal["refuse", "withhold"],
        Field(
            description="A step that breaks a rule, without weights: nothing is released, or the step goes as zeros. "
            "Weighted sums are repaired first, and then withheld."
        ),
    ] = "refuse"
    min_effective_sample_size: Annotated[
        Number, Field(ge=1, description="Rule ESS: patients that the weights behind a released value are worth.")
    ] = 30.0
    epsilon: Annotated[
        Number | None,
        Field(gt=0, le=1000, description="ε of differential privacy, experimental; with delta. None: no noise."),
    ] = None
    delta: Annotated[Number | None, Field(gt=0, lt=1, description="δ of differential privacy, with epsilon.")] = None

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_payload(cls, fields: Any) -> Any:
        """Stricter defaults for a full Gram, which tells more about patients than its Schur complement."""
        if isinstance(fields, Mapping) and fields.get("payload") == "gram":
            return {**cls.OF_GRAMS, **fields}
        return fields

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.colluding and not self.secure_sum:
            raise ValueError("colluding counts sites that a secure sum is safe from: it needs secure_sum = true")
        if self.secure_sum and self.max_patients is None:
            raise ValueError("secure_sum needs max_patients: it bounds the sums, which are added modulo 2^64")
        if self.secure_sum and self.payload == "gram":
            raise ValueError('secure_sum adds what payload = "schur" sends; from added Grams no effect can be removed')
        if self.secure_sum and self.small_step == "withhold":
            raise ValueError(
                "secure_sum hides who withheld a step, and a step of few sites would stand for one: "
                'use small_step = "refuse"'
            )
        if (self.epsilon is None) != (self.delta is None):
            raise ValueError("epsilon and delta belong together: give both, or neither")
        return self


class Evaluation(Section):
    """How policies are valued. Not in the fingerprint: another way to value them voids no total."""

    min_chance: Annotated[
        Number,
        Field(ge=0.01, lt=1, description="Verified advice: clinicians' chance of it, in such patients."),
    ] = 0.05
    min_advantage: Annotated[
        Number, Field(ge=0, description="Verified advice: standard errors by which it is better than clinicians.")
    ] = 1.0
    min_share: Annotated[
        Number,
        Field(ge=0.02, le=1, description="Verified advice: patients that its weights are worth, as a share of all."),
    ] = 0.10
    groups: Annotated[
        dict[Text, tuple[Number, ...]],
        Field(description="Subgroups by a covariate at the first step: cuts between bands; none for each level."),
    ] = Field(default_factory=dict)

    @field_validator("groups")
    @classmethod
    def _check_groups(cls, groups: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
        for name, cuts in groups.items():
            if any(a >= b for a, b in pairwise(cuts)):
                raise ValueError(f"{name}: the cuts must increase")
        return groups
