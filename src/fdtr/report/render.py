"""The report: one HTML file that needs nothing else."""

from collections.abc import Callable

from fdtr.report.figures import scripts
from fdtr.report.page import Html, contents, document, markup, paragraph, section, tag
from fdtr.report.record import Record
from fdtr.report.sections.data import data
from fdtr.report.sections.effects import effects, sharing
from fdtr.report.sections.method import card, cite, method
from fdtr.report.sections.policy import policy
from fdtr.report.sections.study import study
from fdtr.report.sections.trust import trust
from fdtr.report.sections.values import values
from fdtr.report.texts import say
from fdtr.study import Study

SECTIONS: dict[str, Callable[[Record, Study], list[Html]]] = {
    "study": study,
    "data": data,
    "values": values,
    "effects": effects,
    "sharing": sharing,
    "policy": policy,
    "trust": trust,
    "method": method,
    "card": card,
    "cite": cite,
}


def render(found: Record) -> str:
    """The report of a study as HTML."""
    asked = found.load_study()
    titles = {name: say(f"{name}.heading") for name in SECTIONS}
    patients = sum(site.patients for site in found.sites.values())
    together = any(effect.identified for effect in found.shared_effects)
    lead = say(
        "study.lead" if together else "study.lead-alone",
        steps=asked.horizon,
        patients=f"{patients:,}",
        sites=len(found.sites),
    )
    header = markup(
        tag("h1", found.study),
        tag("p", lead, class_="lead"),
        tag("p", say("page.notice"), class_="notice"),
        contents(titles),
    )
    main = markup(*(section(name, titles[name], *build(found, asked)) for name, build in SECTIONS.items()))
    footer = paragraph(tag("strong", say("page.research")), " ", say("page.not-clinical"))
    return document(say("page.title", study=found.study), header, main, footer, scripts())
