"""Drafts for people to agree on: the study file of an extracted table, and the target trial that it imitates."""

import json

from fdtr.cohort.extraction_settings import MEASURED, ExtractionSettings, Outcome, StateCovariate
from fdtr.cohort.settings_toml import exact
from fdtr.cohort.time_steps import ExtractedTable


def draft_study(
    settings: ExtractionSettings, *, ragged: bool = True, cluster: bool = False, teaching: bool = False
) -> str:
    """The text of a study file that loads, with comments on what has to be decided.

    `ragged`: stays may end early. `cluster`: some persons have several stays. `teaching`: the patients are public
    already, and the disclosure rules are relaxed.

    Effects of a patient's state are shared by all sites. Each site has an intercept of its own for every action. A
    covariate that is constant within a site cannot be told from that intercept: it is named in a comment, not drafted.

    >>> draft_study(ExtractionSettings(steps=3)).splitlines()[4]
    'horizon = 3  # steps of 4 hours from time zero'
    """
    dose = settings.dose
    levels = list(range(len(dose.labels)))
    lines = [
        "# Drafted by `fdtr extract`. Ranges, cuts and ends come from its settings, none from the patients. Decide,",
        "# together with all sites: which effects are shared, what death and discharge are worth, and the disclosure.",
        *([] if any(covariate.effect == "shared" for covariate in settings.covariates) else _NOTHING_SHARED),
        "format = 1",
        f"name = {_quoted(settings.name)}",
        f"horizon = {settings.steps}  # steps of {exact(settings.step_hours)} hours from time zero",
        *(["", "[columns]", 'cluster = "person"  # stays of one person are held out together'] if cluster else []),
        "",
        "[actions]",
        f"levels = {levels}",
        f"labels = [{', '.join(map(_quoted, dose.labels))}]",
        'basis = "polynomial"',
        f"degree = {min(2, len(levels) - 1)}",
        f"cuts = [{', '.join(map(exact, dose.cuts))}]  # ml a step; public, and the same at every site",
    ]
    for covariate in settings.covariates:
        lines += ["", *_covariate(covariate, ragged)]
    lines += ["", "[features]"]
    if settings.site_covariates:
        names = " and ".join(covariate.name for covariate in settings.site_covariates)
        lines.append(
            f"# The table has {names} too, constant within a site: an intercept of each site's own absorbs that."
        )
    lines.append('intercept = "specific"  # each site has a level of its own, for every action')
    lines += ["", "[reward]", "range = [0, 1]  # mapped by the extraction"]
    return "\n".join([*lines, *_ends_and_rules(settings, ragged, teaching)]) + "\n"


def _ends_and_rules(settings: ExtractionSettings, ragged: bool, teaching: bool) -> list[str]:
    lines = []
    if ragged:
        lines += ["", "[ends]  # what each missing step is worth on [0, 1]"]
        lines += [f"{name} = {exact(worth)}" for name, worth in settings.ends.items()]
    lines += ["", "[learning]  # chosen at each site by its own held-out patients"]
    lines += ['ridge = "auto"', 'sharing = "auto"  # how much is taken from the other sites; 0: nothing']
    lines.append('share = "auto"  # what the covariates do to values, as in the paper, or to rewards alone')
    if ragged or teaching:
        lines += ["", "[disclosure]"]
    if ragged:
        lines.append('small_step = "withhold"  # late steps have fewer patients')
    return [*lines, *(RELAXED if teaching else ())]


_NOTHING_SHARED = (
    "# NOTHING IS LEARNT TOGETHER: no covariate below has a shared effect, and every site is on its own. Set",
    '# effect = "shared" where a covariate does the same at every site.',
)

RELAXED = (
    "# RELAXED, because these patients are public teaching data. Never use these numbers for patients of your own:",
    "# delete the lines below, and the defaults hold again.",
    "min_patients = 2",
    "max_ratio = 1.0",
    "min_action = 1",
    "min_cell = 1",
    "max_leverage = 1.0",
    "min_effective_sample_size = 1.0",
)


def _covariate(covariate: StateCovariate, may_be_missing: bool) -> list[str]:
    low, high = covariate.range
    lines = [
        "[[covariates]]",
        f"name = {_quoted(covariate.name)}  # {covariate.meaning}, {covariate.unit}",
        f"effect = {_quoted(covariate.effect)}",
        f"range = [{exact(low)}, {exact(high)}]",
    ]
    if may_be_missing:
        lines.append(f'missing = "range-middle"  # {covariate.name}_missing tells where; it may be a covariate too')
    return lines


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a TOML basic string


TARGET_TRIAL = """# Target trial

A draft. Correct it, agree on it with all sites, and date it before anyone sees a result.

| element | trial | imitated here |
|---|---|---|
{elements}

## Assumptions

No data can show that these hold. Where one does not, values and rules are wrong by an unknown amount.

* **Exchangeability.** Given the unit and {names}, who got which dose depends on nothing that also moves the outcome.
  What clinicians saw and the table lacks breaks it: vasopressors, urine, ventilation, the look of a patient. Add what
  can be had as covariates.
* **Positivity.** Patients of every state got every dose that a rule may give. `fdtr check` counts them, the report
  shows effective sample sizes, and pessimism keeps rules near what was done; none of it replaces patients.
* **Consistency.** A dose is the same treatment however it was given: the levels put slow and fast infusions, and
  different fluids, into one.
* **No interference.** What one patient got does not change the outcome of another.
* **Measured as charted.** Values and times are those of the chart. A value counts until the next one, and who was
  measured often was often sicker.
* **Markov states.** The state holds what of the past matters for the next state and reward. Fluids of earlier steps are
  not in it unless you add them.
* **Worth of ends.** Death is worth {death} and discharge {discharge} for each missing step. That is a judgement,
  and rules follow it.

## Analysis plan

1. Question: is the value of the learnt rule larger than that of practice, in each unit?
2. Learn with the study file as agreed, on one part of each unit's patients: FDTR, and beside it LDTR, so that what
   sharing adds can be seen.
3. Value on the patients who were held out: doubly robust, with its interval; step-importance sampling beside it, with
   its effective sample size. Where that is small, say that nothing is known.
4. Primary: the whole table, with death and discharge worth what is agreed. Complete cases, as in the paper, hold for
   those who lived and stayed: they are a sensitivity analysis.
5. Sensitivity, each agreed before: other cuts than {cuts} ml; other worths of death and discharge; the outcome where
   nobody measured it; another look-back; further covariates; another time zero.
6. State how many stays each rule removed (flow.csv) and how much was missing (missing.csv).
7. No unit, covariate or cut is chosen after results were seen; where one was, say so.
"""


def draft_target_trial(extracted: ExtractedTable) -> str:
    """A page in Markdown that describes the randomised trial which an analysis of the table imitates.

    People must agree on it before any result means something. After M. A. Hernán and J. M. Robins, *Using Big Data to
    Emulate a Target Trial When a Randomized Trial Is Not Available*, American Journal of Epidemiology 183 (2016).
    """
    settings = extracted.settings
    return TARGET_TRIAL.format(
        elements="\n".join(f"| {' | '.join(row)} |" for row in _elements(extracted)),
        names=_names(settings),
        cuts=", ".join(map(exact, settings.dose.cuts)),
        **{end: exact(worth) for end, worth in settings.ends.items()},
    )


def _elements(extracted: ExtractedTable) -> list[tuple[str, str, str]]:
    settings, flow = extracted.settings, extracted.flow
    ends = {end: exact(worth) for end, worth in settings.ends.items()}
    levels = ", ".join(settings.dose.labels)
    return [
        ("Eligibility", "Met, and known, at time zero.", _eligibility(extracted)),
        ("Time zero", "Randomisation.", settings.zero),
        (
            "Strategies",
            f"At {settings.steps} times, every {settings.step_hours:g} hours, a dose by the patient's state.",
            f"Levels of the volume given in a step: {levels}. Drugs' carriers and void orders do not count.",
        ),
        (
            "Assignment",
            "At random, known to all.",
            f"As clinicians chose; taken for random given the unit and the state before the step: {_names(settings)}.",
        ),
        ("Outcome", "Mapped onto [0, 1] at every step.", _outcome(settings.outcome)),
        (
            "Follow-up",
            f"{settings.window_hours:g} hours, death or discharge.",
            f"The same; a missing step is worth {ends['death']} after death, {ends['discharge']} after discharge.",
        ),
        ("Contrast", "Value of a strategy against practice.", "The same, among patients like those of each unit."),
        ("Missing values", "None.", "The last value within the look-back; else missing, and marked in a column."),
        ("Size", "Planned.", f"{flow.left:,} of {flow.found:,} {flow.what}, as it happened."),
    ]


def _eligibility(extracted: ExtractedTable) -> str:
    flow, looks_ahead = extracted.flow, extracted.settings.looks_ahead
    rules = f"{flow.what}: {'; '.join(removal.rule for removal in flow.removals)}."
    return f"{rules} Looks ahead: {looks_ahead}" if looks_ahead else rules


def _names(settings: ExtractionSettings) -> str:
    return ", ".join(covariate.name for covariate in settings.covariates)


def _outcome(outcome: Outcome) -> str:
    kind = "its value at the step's end" if outcome.reward == "level" else "its change within the step"
    unknown = (
        "stays without one at time zero leave"
        if outcome.unmeasured is None
        else f"{exact(outcome.unmeasured)} where nobody measured it"
    )
    return (
        f"{outcome.meaning}, {kind}, the last value carried forward (`{outcome.name}{MEASURED}` is 0 there); "
        f"{unknown}; 0 in the step of a death."
    )
