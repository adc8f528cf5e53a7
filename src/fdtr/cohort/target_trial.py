"""The target trial: the randomised trial that an analysis of the table imitates, element by element.

After M. A. Hernán and J. M. Robins, *Using Big Data to Emulate a Target Trial When a Randomized Trial Is Not
Available*, American Journal of Epidemiology 183 (2016).
"""

from fdtr.cohort.settings import Outcome
from fdtr.cohort.steps import Extracted


def target_trial(extracted: Extracted) -> str:
    """A page with what is imitated and how; a person has to agree with it before any result means something."""
    settings, flow = extracted.settings, extracted.flow
    ends = settings.ends
    rules = "; ".join(removal.rule for removal in flow.removals)
    levels = ", ".join(settings.dose.labels)
    zero = "onset of sepsis, or admission where onset is earlier or not known"
    names = ", ".join(covariate.name for covariate in settings.covariates)
    rows = [
        ("Eligibility", "Met at time zero.", f"{flow.what}: {rules}. Rules on the outcome look ahead: read the flow."),
        ("Time zero", "Randomisation.", zero if settings.time_zero == "onset" else "admission to the unit"),
        (
            "Strategies",
            f"At {settings.steps} times, every {settings.step_hours:g} hours, a dose by the patient's state.",
            f"Levels of the volume given in a step: {levels}. Drugs' carriers and void orders do not count.",
        ),
        (
            "Assignment",
            "At random, known to all.",
            f"As clinicians chose; taken for random given the unit and the state before the step: {names}.",
        ),
        ("Outcome", "Mapped onto [0, 1] at every step.", _outcome(settings.outcome)),
        (
            "Follow-up",
            f"{settings.window_hours:g} hours, death or discharge.",
            f"The same; a missing step is worth {ends['death']:g} after death, {ends['discharge']:g} after discharge.",
        ),
        ("Contrast", "Value of a strategy against practice.", "The same, among patients like those of each unit."),
        ("Missing values", "None.", "The last value within the look-back; else missing, and marked in a column."),
    ]
    lines = ["# Target trial", "", "| element | trial | imitated here |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _outcome(outcome: Outcome) -> str:
    kind = "its value at the step's end" if outcome.reward == "level" else "its change within the step"
    unknown = (
        "stays without one leave" if outcome.unmeasured is None else f"{outcome.unmeasured:g} where nobody measured it"
    )
    return f"{outcome.meaning}, {kind}, the last value carried forward; {unknown}; 0 in the step of a death."
