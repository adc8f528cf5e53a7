"""Method and settings, the model card, and how to cite."""

from fdtr.report.page import Html, enumerated, number, paragraph, table, tag
from fdtr.report.record import Record
from fdtr.report.texts import say
from fdtr.study import Study


def method(found: Record, asked: Study) -> list[Html]:
    """What was done, with which settings, by which software."""
    versions = [f"fdtr {found.fdtr}", *(f"{name} {version}" for name, version in found.versions.items())]
    return [
        paragraph(say("method.how")),
        _settings(asked),
        _chosen(found),
        paragraph(say("method.fingerprint"), tag("code", found.fingerprint)),
        paragraph(say("method.versions"), ", ".join(versions)),
    ]


def _settings(asked: Study) -> Html:
    learning, (low, high) = asked.learning, asked.reward.range
    named: list[tuple[str, str, float | str]] = [
        ("pessimism", "c", learning.pessimism),
        ("ridge", "λ", learning.ridge),
        ("sharing", "w", learning.sharing),
        ("share", "", learning.share),
        ("failure", "ξ", learning.failure_probability),
        ("misspecification", "η", learning.misspecification),
        ("reward", "r", say("method.range", low=number(low), high=number(high))),
    ]
    rows = [
        [say(f"method.{name}"), symbol, _shown(value), say(f"method.{name}-meaning")] for name, symbol, value in named
    ]
    rows += [
        [say("method.end", end=end), "", number(worth), say("method.end-meaning")] for end, worth in asked.ends.items()
    ]
    columns = [say(f"method.{name}") for name in ("setting", "symbol", "value", "meaning")]
    return table(say("method.settings-table"), columns, rows, text=(1, 3))


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)


def _chosen(found: Record) -> Html:
    rows = [
        [
            name,
            *(number(float(site.settings[key])) for key in ("pessimism", "ridge", "sharing")),
            str(site.settings["share"]) if site.settings["sharing"] else say("method.nothing"),
        ]
        for name, site in found.sites.items()
    ]
    columns = [say("data.site"), *(say(f"method.{key}") for key in ("pessimism", "ridge", "sharing", "share"))]
    return table(say("method.chosen-table"), columns, rows, text=(4,))


def card(found: Record, asked: Study) -> list[Html]:
    """The items of TRIPOD+AI that apply."""
    sites, (low, high) = found.sites.values(), asked.reward.range
    sizes = [site.patients for site in sites]
    filled = sum(n for site in sites for n in site.filled.values())
    clipped = sum(n for site in sites for n in site.clipped.values())
    answers: dict[str, dict[str, object]] = {
        "title": {"steps": asked.horizon, "study": found.study, "sites": len(sizes)},
        "use": {},
        "source": {"patients": f"{sum(sizes):,}", "rows": f"{sum(site.rows for site in sites):,}"},
        "outcome": {"steps": asked.horizon, "low": number(low), "high": number(high)},
        "predictors": {},
        "missing": {"filled": f"{filled:,}", "clipped": f"{clipped:,}"},
        "sample": {"least": f"{min(sizes):,}", "most": f"{max(sizes):,}"},
        "analysis": {},
        "performance": {},
        "fairness": {},
        "validation": {},
        "limits": {},
        "open": {"version": found.fdtr, "fingerprint": f"{found.fingerprint[:12]}…"},
    }
    rows = [[say(f"card.{item}"), _answer(item, values, found, asked)] for item, values in answers.items()]
    return [
        paragraph(say("card.how")),
        table(say("card.table"), [say("card.item"), say("card.answer")], rows, text=(1,)),
    ]


def _answer(item: str, values: dict[str, object], found: Record, asked: Study) -> str:
    if item == "source" and found.known_values:
        return say("card.simulated")
    if item == "predictors":
        return enumerated([covariate.name for covariate in asked.covariates])
    return say(f"card.{item}-answer", **values)


def cite(found: Record, _asked: Study) -> list[Html]:
    """The paper and the software."""
    return [
        paragraph(tag("strong", say("cite.method")), " ", say("cite.paper")),
        paragraph(tag("strong", say("cite.software")), " ", say("cite.software-text", version=found.fdtr)),
    ]
