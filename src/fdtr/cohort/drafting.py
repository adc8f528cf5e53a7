"""The study file that goes with an extracted table: a draft that loads, with what has to be decided beside it.

What a patient's state does is taken to be alike everywhere, and shared; the level of each site and of its treatments is
its own, by an intercept. Beside that intercept a covariate that is constant within a site cannot be told from it: such
covariates are named, and not drafted. How much is taken from the others is each site's held-out patients' choice.
"""

import json

from fdtr.cohort.printing import exact
from fdtr.cohort.settings import Extraction, StateCovariate


def draft_study(settings: Extraction, *, ragged: bool = True, cluster: bool = False, teaching: bool = False) -> str:
    """The text of a study file. `ragged`: stays may end early. `cluster`: some persons have several stays.

    `teaching`: the patients are public already, and the disclosure rules are relaxed.
    """
    dose = settings.dose
    levels = list(range(len(dose.labels)))
    lines = [
        "# Drafted by `fdtr extract`. Ranges, cuts and ends come from its settings, none from the patients. Decide,",
        "# together with all sites: which effects are shared, what death and discharge are worth, and the disclosure.",
        *([] if any(one.effect == "shared" for one in settings.covariates) else _NOTHING_SHARED),
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
        names = " and ".join(one.name for one in settings.site_covariates)
        lines.append(
            f"# The table has {names} too, constant within a site: an intercept of each site's own absorbs that."
        )
    lines.append('intercept = "specific"  # each site has a level of its own, for every action')
    lines += ["", "[reward]", "range = [0, 1]  # mapped by the extraction"]
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
    return "\n".join([*lines, *(RELAXED if teaching else ())]) + "\n"


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


def _covariate(covariate: StateCovariate, gaps: bool) -> list[str]:
    low, high = covariate.range
    lines = [
        "[[covariates]]",
        f"name = {_quoted(covariate.name)}  # {covariate.meaning}, {covariate.unit}",
        f"effect = {_quoted(covariate.effect)}",
        f"range = [{exact(low)}, {exact(high)}]",
    ]
    if gaps:
        lines.append(f'missing = "range-middle"  # {covariate.name}_missing tells where; it may be a covariate too')
    return lines


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a TOML basic string
