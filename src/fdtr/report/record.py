"""What a study found, as plain values: the content of results.json, and all that the report shows.

None of it is about one patient. A number that does not exist is NaN here and null in the file.
"""

import json
import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from fdtr.errors import UnreadableFile
from fdtr.study import Study

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Steps = list[Number]
Table = list[Steps]

ROBUST, MODEL = "wdr", "fqe"
"""Estimators of a value: weighted doubly robust, and the linear model alone (fitted-Q evaluation)."""


class Part(BaseModel):
    """A piece of the record, never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Feature(Part):
    """How much of a shared feature a site's own effects leave; `reason` says why nothing is left."""

    feature: str
    retained: Number
    reason: str


class Refusal(Part):
    """A disclosure rule that a site's sums would break at a step."""

    rule: str
    step: int
    measured: str
    asked: str


class Curve(Part):
    """Predicted chances of an action in bins, what was observed, and how many rows each bin has."""

    predicted: Steps
    observed: Steps
    count: list[int]


class Past(Part):
    """What the step before adds to the prediction of an outcome (held-out R²), with its standard error."""

    outcome: str
    r_squared: Number
    gain: Number
    standard_error: Number
    clear: bool


class Trust(Part):
    """What stands beside a site's value of FDTR, by step unless said otherwise.

    `odds`, `odds_low` and `odds_high` bound the value under unmeasured confounding; `tipping_odds` is NaN where no odds
    ratio up to 100 turns the difference from clinicians, or where a `confounding_doubt` says why nothing can be said.
    """

    present: list[int]
    effective_sample_size: Steps
    zero_share: Steps
    largest_share: Steps
    clipped_share: Steps = []
    mean_weight: Steps = []
    rare_share: Steps
    low_propensity: Steps
    agreement: Steps
    odds: Steps
    odds_low: Steps
    odds_high: Steps
    practice: Number
    tipping_odds: Number
    confounding_doubt: str = ""
    calibration: dict[str, Curve]
    past: list[Past]
    warnings: list[str]


class Variation(Part):
    """The share of decisions that stay `same` with another `value` of c or w."""

    setting: Literal["c", "w"]
    value: Number
    same: Number


class Site(Part):
    """One site: its data, its policy beside practice, and how far its value can be trusted.

    `actions` counts patients and `given` and `recommended` are shares, all by step and action. `not_valued` says why
    `trust` is missing. `near_ties` are shares of patients by step; `withheld` what follows from them.
    """

    patients: int
    rows: int
    clipped: dict[str, int]
    filled: dict[str, int]
    actions: list[list[int]]
    identified: list[Feature]
    transitions: Steps
    disclosure: list[Refusal]
    settings: dict[str, Any]
    given: Table
    recommended: Table
    agreement_with_practice: Number
    agreement_with_baselines: dict[str, Number]
    variations: list[Variation]
    near_ties: Steps
    withheld: str
    not_valued: str
    trust: Trust | None


class Value(Part):
    """What a method is worth to one site's patients, by one estimator, on the mapped scale.

    `n_clusters` is None where errors are by patient.
    """

    site: str
    method: str
    estimator: str
    value: Number
    low: Number
    high: Number
    standard_error: Number
    n: int
    n_clusters: int | None = None
    believable: bool
    reason: str


class Span(Part):
    """A value and its 95% interval."""

    value: Number
    low: Number
    high: Number


class Pooled(Part):
    """The sites' values of a method as one; with `over`, the paired differences from another method."""

    method: str
    over: str
    estimator: str
    sites: list[str]
    n: int
    plain: Span
    fixed: Span
    random: Span
    i_squared: Number
    warnings: list[str]
    believable: bool
    reason: str


class Effect(Part):
    """A shared effect on the reward at one step.

    `low` and `high` hold for it alone, `band_low` and `band_high` for all steps of its feature together. `raw` times
    any of them is in raw units.
    """

    step: int
    feature: str
    identified: bool
    estimate: Number
    standard_error: Number
    low: Number
    high: Number
    band_low: Number
    band_high: Number
    p_value: Number
    adjusted_p_value: Number
    raw: Number


class Difference(Part):
    """Cochran's Q of one step, or of all where `step` is None."""

    step: int | None
    statistic: Number
    df: int
    p_value: Number
    i_squared: Number


class Gain(Part):
    """What sharing gains one site for one feature; medians over steps.

    `alone` and `together` are standard errors. `worth` is how many patients of its own the site would need instead; NaN
    where no number of them would do (`only_together`) or where nobody knows the effect.
    """

    site: str
    feature: str
    alone: Number
    together: Number
    worth: Number
    only_together: bool


class Coefficient(Part):
    """FDTR's own estimates of a shared coefficient: `by_step` averaged over sites, and `by_site` of each."""

    identified: bool
    by_step: Steps
    by_site: dict[str, Steps] = {}


class KnownValue(Part):
    """What a method is worth where the truth is known, and by site."""

    method: str
    value: Number
    low: Number
    high: Number
    by_site: dict[str, Number]


class Choice(Part):
    """One action for the example patient: `bound` = `estimate` − `penalty`, `estimate` = `shared` + `specific`."""

    label: str
    estimate: Number
    penalty: Number
    bound: Number
    shared: Number
    specific: Number
    chosen: bool


class Example(Part):
    """One made-up patient: a `state` in raw units at a `step`, and what each site's policy says of it."""

    state: dict[str, float]
    step: int
    by_site: dict[str, list[Choice]]


class Record(Part):
    """A whole study.

    `definition` is its study file. `theorem3_bound` bounds ‖θ̂⁰ − θ⁰‖ of every step with the c and λ of messages.
    `split` is how patients were held out to be valued. `known_values` and `example` exist for simulated data alone.
    """

    format: Literal[1] = 1
    fdtr: str
    versions: dict[str, str]
    study: str
    fingerprint: str
    definition: dict[str, Any]
    sites: dict[str, Site]
    values: list[Value]
    pooled: list[Pooled]
    shared_effects: list[Effect]
    heterogeneity: list[Difference]
    gains: list[Gain]
    shared_coefficients: dict[str, Coefficient]
    theorem3_bound: Steps
    split: Literal["folds", "half"] = "folds"
    known_values: list[KnownValue] = []
    known_values_note: str = ""
    example: Example | None = None

    def load_study(self) -> Study:
        """The study as a study file would give it."""
        return Study.model_validate(self.definition)

    def as_json(self) -> dict[str, Any]:
        """Plain values, with null for NaN."""
        plain: dict[str, Any] = json.loads(self.model_dump_json())
        return plain


def read_record(text: str, where: str) -> Record:
    """The record that a results.json holds."""
    try:
        return Record.model_validate_json(text)
    except ValidationError:
        raise UnreadableFile(
            f"{where} is not what this version of fdtr writes. Nothing was written. Run the study again: fdtr run."
        ) from None
