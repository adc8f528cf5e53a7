"""The study in words, and what came of it in short."""

from fdtr.report.page import Html, bullets, enumerated, number, paragraph, percent, tag
from fdtr.report.record import MAIN, MODEL, Pooled, Record
from fdtr.report.texts import say
from fdtr.study import Study

FDTR, CLINICIANS = "FDTR", "Clinicians"


def study(found: Record, asked: Study) -> list[Html]:
    """What is decided, for what, with what in common; then the findings."""
    low, high = asked.reward.range
    shared = [c.name for c in asked.covariates if c.effect == "shared"]
    own = [c.name for c in asked.covariates if c.effect != "shared"]
    common = say("study.shared", covariates=enumerated(shared)) if shared else say("study.nothing-shared")
    if own:
        common += " " + say("study.own", covariates=enumerated(own))
    elif asked.features.intercept == "specific":
        common += " " + say("study.own-level")
    aim = say(
        "study.aim", actions=enumerated(asked.actions.labels), steps=asked.horizon, low=number(low), high=number(high)
    )
    return [
        paragraph(aim),
        paragraph(common),
        paragraph(say("study.exchange")),
        tag("h3", say("study.short")),
        bullets(_short(found)),
    ]


def _short(found: Record) -> list[str]:
    sites = found.sites.values()
    rows = sum(site.rows for site in sites)
    agreement = sum(site.agreement_with_practice * site.rows for site in sites) / max(rows, 1)
    passing = sum(not site.disclosure for site in sites)
    return [
        *_known(found),
        *_valued(found),
        say("study.agreement", share=percent(agreement)),
        say("study.disclosure", passing=passing, sites=len(found.sites)),
    ]


def _valued(found: Record) -> list[str]:
    """FDTR beside clinicians: doubly robust where that can be believed, else as far as the linear model goes."""
    ours, theirs = (_pooled(found, method, MAIN) for method in (FDTR, CLINICIANS))
    if ours is None or theirs is None:
        return [say("study.no-value")]
    if ours.believable:
        return [say("study.value", ours=_span(ours), theirs=_span(theirs))]
    model, gain = _pooled(found, FDTR, MODEL), _pooled(found, FDTR, MODEL, over=CLINICIANS)
    if model is None or gain is None or not (model.believable and gain.believable):
        return [say("study.doubt-all", theirs=_span(theirs))]
    return [say("study.model", ours=_span(model), gain=_span(gain)), say("study.doubt")]


def _pooled(found: Record, method: str, estimator: str, over: str = "") -> Pooled | None:
    """The mean over sites, of a method or of its difference from another, where there is one."""
    return next((p for p in found.pooled if (p.method, p.over, p.estimator) == (method, over, estimator)), None)


def _span(one: Pooled) -> str:
    value, low, high = (number(x, 2) for x in (one.plain.value, one.plain.low, one.plain.high))
    return say("values.span", value=value, low=low, high=high)


def _known(found: Record) -> list[str]:
    known = {value.method: value for value in found.known_values}
    if FDTR not in known or CLINICIANS not in known:
        return []
    ours = known[FDTR]
    value, low, high, practice = (number(x, 2) for x in (ours.value, ours.low, ours.high, known[CLINICIANS].value))
    return [say("study.known", value=value, low=low, high=high, practice=practice)]
