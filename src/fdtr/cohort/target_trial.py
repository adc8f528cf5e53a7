"""The target trial: the randomised trial that an analysis of the table imitates, element by element.

After M. A. Hernán and J. M. Robins, *Using Big Data to Emulate a Target Trial When a Randomized Trial Is Not
Available*, American Journal of Epidemiology 183 (2016).
"""

from fdtr.cohort.printing import exact
from fdtr.cohort.settings import MEASURED, Extraction, Outcome
from fdtr.cohort.steps import Extracted

PAGE = """# Target trial

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


def target_trial(extracted: Extracted, looks_ahead: str = "") -> str:
    """A page with what is imitated and how; a person has to agree with it before any result means something.

    `looks_ahead` says how the source knows who is eligible only after time zero, where it does.
    """
    settings = extracted.settings
    return PAGE.format(
        elements="\n".join(f"| {' | '.join(row)} |" for row in _elements(extracted, looks_ahead)),
        names=_names(settings),
        cuts=", ".join(map(exact, settings.dose.cuts)),
        **{end: exact(worth) for end, worth in settings.ends.items()},
    )


def _elements(extracted: Extracted, looks_ahead: str) -> list[tuple[str, str, str]]:
    settings, flow = extracted.settings, extracted.flow
    ends = {end: exact(worth) for end, worth in settings.ends.items()}
    levels = ", ".join(settings.dose.labels)
    return [
        ("Eligibility", "Met, and known, at time zero.", _eligibility(extracted, looks_ahead)),
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


def _eligibility(extracted: Extracted, looks_ahead: str) -> str:
    flow = extracted.flow
    rules = f"{flow.what}: {'; '.join(removal.rule for removal in flow.removals)}."
    return f"{rules} Looks ahead: {looks_ahead}" if looks_ahead else rules


def _names(settings: Extraction) -> str:
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
