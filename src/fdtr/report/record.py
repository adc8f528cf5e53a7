"""The findings of a study as plain values: the content of results.json, and everything that the report shows.

No value describes a single patient. A number that does not exist is NaN here and null in the file.
"""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from fdtr.comparisons import Evidence
from fdtr.errors import UnreadableFile
from fdtr.study import Study
from fdtr.trajectories import Sample

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
_FromArray = BeforeValidator(lambda value: value.tolist() if isinstance(value, np.ndarray) else value)
Steps = Annotated[list[Number], _FromArray]
Counts = Annotated[list[int], _FromArray]
Table = Annotated[list[Steps], _FromArray]

RESULTS_FILE = "results.json"
"""The file by which a folder of results is known."""

ROBUST, MODEL = "wdr", "fqe"
"""Estimators of a value: weighted doubly robust, and the linear model alone (fitted-Q evaluation)."""


class Part(BaseModel):
    """A piece of the record, never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)

    @classmethod
    def of(cls, *results: object, **others: Any) -> Self:
        """Copy the fields that have the same name in one of `results`; `others` are the remaining fields."""
        copied = {
            name: getattr(result, name) for result in results for name in cls.model_fields if hasattr(result, name)
        }
        return cls.model_validate({**copied, **others})


class Feature(Part):
    """The share of a shared feature that a site's own features leave unexplained; `reason` says why it is 0."""

    feature: str
    retained: Number
    reason: str


class BrokenRule(Part):
    """A disclosure rule that a site's sums break: at which `steps`, and at which it is missed by most, the `worst`.

    There `measured` was found, and the study `asked` for something else. `otherwise` is what follows: "refuse",
    "withhold" the step, or "repair", which takes something out of the sums. A rule about the message as a whole is
    broken at no step.
    """

    rule: str
    otherwise: str
    steps: list[int]
    worst: int | None = None
    measured: str
    asked: str


class Curve(Part):
    """Calibration of one action in bins: predicted chance, observed share, and number of rows."""

    predicted: Steps
    observed: Steps
    count: Counts


class Past(Part):
    """What the previous step adds to the prediction of an outcome (held-out R²), with its standard error."""

    outcome: str
    r_squared: Number
    gain: Number
    standard_error: Number
    clear: bool


class Check(Part):
    """What one method's value at a site rests on: the verified part, or the full policy; lists are by step.

    `patients_behind` is the number of patients whom the difference from clinicians rests on; NaN where there is none.
    `misfit` is T of the linear model, NaN where no richer one could be fitted; `usual_misfit` is T_b. `unexplained` is
    T of what trees see beyond the richer model, NaN where no model was needed.
    """

    method: str
    advised_share: Number
    effective_sample_size: Steps
    mean_weight: Steps
    patients_behind: Number
    misfit: Number
    usual_misfit: Number
    unexplained: Number


class Trust(Part):
    """Diagnostics of values at one site, of FDTR's full policy unless said otherwise; lists are by step.

    `checks` are of the verified part and of the full policy.
    `odds_low` and `odds_high` bound the value under unmeasured confounding with odds ratios up to `odds`.
    `tipping_odds` is the odds ratio at which the difference from clinicians can change its sign. It is NaN where no
    ratio up to 100 does that, and where the bounds are not reliable; then `confounding_doubt` has the reason.
    """

    present: Counts
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
    checks: list[Check] = []


class Variation(Part):
    """The share of decisions that stay `same` with `value` times the pessimism, or with `value` as w."""

    setting: Literal["pessimism", "w"]
    value: Number
    same: Number


class Rung(Part):
    """One way of sharing on the ladder: weight w, what is shared, and how a site's held-out patients judge it.

    They reject it where its `excess` over the best way, of the errors of outcomes and contrasts together, is larger
    than `tolerance`. Both are shares of the best way's error of outcomes; a tolerance without limit is written as null.
    """

    sharing: Number
    share: str
    ridge: Number
    excess: Number
    tolerance: Number
    rejected: bool
    chosen: bool


class UsualCare(Part):
    """Whether patients who got what clinicians usually give fared `better` than others like them, and the `statistic`.

    The statistic is None where there is nothing to compare. `closer` says whether the policy stays closer to usual
    care, because a `bolder` policy's advice did not do better still; `bolder` is None where the two were not compared.
    """

    statistic: Number | None
    better: bool
    bolder: Number | None
    closer: bool


class Site(Part):
    """One site: its data, its policy beside practice, and how far its value can be trusted.

    `actions` counts patients and `given` and `recommended` are shares, all by step and action. `with_part` are shares
    where the verified part advises and clinicians decide the rest, `advised` the share of patients whom it advises, by
    step. `sharing` says how far
    the site shares and why, `ladder` how its held-out patients judge every way to share, and `few` whether they are few
    for the number of features. `usual_care` says how patients fared with what clinicians usually do, and `nearness` how
    near to it the policy stays and why; None and empty where the study fixes the pessimism. `not_valued` says why
    `trust` is missing. `near_ties` has the share of patients with nearly tied actions by step, and `withheld` what is
    not shown because of them. `disclosure` has the rules that the site's sums break. `steps_sent` are the steps at
    which something is left of the shared features in what the site may send, `share_sent` the share of their
    independent directions and `efficiency_sent` of the information on them; `near_threshold` says that other secret
    weights could change what is taken out of a secure sum. `verified_on` is the sample that the verified part
    was judged on, and `valued_on` the one that was valued; None where these are all.
    """

    patients: int
    rows: int
    clipped: dict[str, int]
    filled: dict[str, int]
    actions: Annotated[list[list[int]], _FromArray]
    identified: list[Feature]
    transitions: Steps
    disclosure: list[BrokenRule]
    steps_sent: list[int]
    share_sent: Number
    efficiency_sent: Number
    near_threshold: bool = False
    settings: dict[str, Any]
    sharing: str
    ladder: list[Rung]
    few: bool
    usual_care: UsualCare | None
    nearness: str
    given: Table
    recommended: Table
    with_part: Table
    advised: Steps
    agreement_with_practice: Number
    agreement_with_baselines: dict[str, Number]
    variations: list[Variation]
    near_ties: Steps
    withheld: str
    verified_on: Sample | None = None
    valued_on: Sample | None = None
    not_valued: str = ""
    trust: Trust | None = None


class Value(Part):
    """Value of a method for one site's patients by one estimator, on the mapped scale.

    `verdict` is that of the method's value at the site, whatever the estimator; `reason` says why not to use this one.
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
    verdict: Evidence
    reason: str


class Assessment(Part):
    """What can be said of a method's value at one site, or of its paired gain `over` another; mapped scale.

    A value that is not estimable has no number. `tolerance` is the estimated error of the model, by which the interval
    of every model-based value is wider. `estimator` is "richer" where T, the `misfit`, rejects the linear model; T is
    exactly 0 where no richer model could be fitted. `advised_share` is the share of decisions that the method makes,
    `n_advised` the patients for whom it makes any. `brief` says the `reason` in a few words.
    """

    site: str
    method: str
    over: str
    verdict: Evidence
    estimator: str
    value: Number
    low: Number
    high: Number
    standard_error: Number
    tolerance: Number
    misfit: Number
    advised_share: Number
    n_advised: int
    n: int
    reason: str
    brief: str


class MeanOverSites(Part):
    """The plain mean over `sites` of assessments that have a number; `verdict` is the worst of theirs.

    `label` names the method, what a gain is over, and, of clinicians, the sites where these are not all.
    """

    method: str
    over: str
    label: str
    verdict: Evidence
    sites: list[str]
    n: int
    tolerance: Number
    plain: "Span"
    fixed: "Span"
    random: "Span"
    i_squared: Number
    warnings: list[str]


class Subgroup(Part):
    """The verified part's gain over clinicians in one group of one site's patients, judged together (Holm).

    `group` names the covariate, `label` the band or level. A group that is withheld has a `reason` and no number, not
    even of its patients. `p_value` is adjusted over all groups of the site.
    """

    site: str
    method: str
    group: str
    label: str
    n: int | None
    value: Number
    low: Number
    high: Number
    p_value: Number
    reason: str


class Span(Part):
    """A value and its 95% interval."""

    value: Number
    low: Number
    high: Number


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
    """Gain from sharing for one site and feature; medians over steps.

    `alone` and `together` are standard errors. `worth` is the number of its own patients that the site would
    need for the same precision. It is NaN where no number suffices (`only_together`) or no site identifies the effect.
    """

    site: str
    feature: str
    alone: Number
    together: Number
    worth: Number
    only_together: bool


class Coefficient(Part):
    """FDTR's own estimates of a shared coefficient: `by_step` averaged over sites, and `by_site` of each.

    NaN at steps at which all sites together do not identify it; `identified` if they do at some step.
    """

    identified: bool
    by_step: Steps
    by_site: dict[str, Steps] = {}


class KnownValue(Part):
    """True value of a method, known for simulated data: over all sites and by site."""

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
    """A made-up patient: a `state` in raw units at a `step`, and how each site's policy judges every action."""

    state: dict[str, float]
    step: int
    by_site: dict[str, list[Choice]]


class Record(Part):
    """The findings of a whole study.

    `definition` is its study file. `theorem3_bound` bounds ‖θ̂⁰ − θ⁰‖ of every step with the c and λ of messages.
    `split` says how patients were held out for evaluation. Only simulated data have `known_values` and an `example`.
    """

    format: Literal[1] = 1
    fdtr: str
    versions: dict[str, str]
    study: str
    fingerprint: str
    definition: dict[str, Any]
    sites: dict[str, Site]
    values: list[Value]
    assessments: list[Assessment]
    means: list[MeanOverSites]
    subgroups: list[Subgroup] = []
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


def load_record(folder: str | Path) -> Record:
    """Read the record of saved results: the results.json in `folder`, as `Results.save` and `fdtr run` write it."""
    source = Path(folder) / RESULTS_FILE
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise UnreadableFile(
            f"{folder} holds no readable {RESULTS_FILE}. Name a folder that fdtr run or fdtr demo made."
        ) from None
    try:
        return Record.model_validate_json(text)
    except ValidationError:
        raise UnreadableFile(
            f"{source} is not what this version of fdtr writes. Nothing was written. Run the study again: fdtr run."
        ) from None
