"""The data by site: counts, changed values, actions by step, and what disclosure would say."""

from collections.abc import Mapping, Sequence

from fdtr.report.page import Html, bullets, enumerated, grouped_table, paragraph, step_titles, table
from fdtr.report.record import Record, Refusal
from fdtr.report.texts import say
from fdtr.study import Study


def data(found: Record, asked: Study) -> list[Html]:
    """Patients, rows, changed values, actions, and disclosure."""
    columns = [say(f"data.{name}") for name in ("site", "patients", "rows", "clipped", "filled")]
    rows = [
        [name, f"{site.patients:,}", f"{site.rows:,}", _tally(site.clipped), _tally(site.filled)]
        for name, site in found.sites.items()
    ]
    actions = {
        name: [[label, *(f"{step[a]:,}" for step in site.actions)] for a, label in enumerate(asked.actions.labels)]
        for name, site in found.sites.items()
    }
    titles = [say("data.action"), *step_titles(range(asked.horizon))]
    return [
        table(say("data.counts"), columns, rows, text=(3, 4)),
        grouped_table(say("data.actions"), titles, actions),
        paragraph(say("data.disclosure", sites=asked.disclosure.min_sites)),
        _disclosure(found),
    ]


def _tally(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items() if n) or say("page.none")


def _disclosure(found: Record) -> Html:
    rows = []
    for name, site in found.sites.items():
        failing = bullets(_by_rule(site.disclosure)) if site.disclosure else say("page.none")
        rows.append([name, say("data.refused" if site.disclosure else "data.passes"), failing])
    columns = [say(f"data.{name}") for name in ("site", "result", "failing")]
    return table(say("data.rules"), columns, rows, text=(1, 2))


def _by_rule(broken: Sequence[Refusal]) -> list[str]:
    """One line for each rule: where it fails, and the first failure in full."""
    lines = []
    for rule in dict.fromkeys(refusal.rule for refusal in broken):
        failed = [refusal for refusal in broken if refusal.rule == rule]
        steps = enumerated([str(refusal.step) for refusal in failed])
        lines.append(say("data.rule", rule=rule, steps=steps, measured=failed[0].measured, asked=failed[0].asked))
    return lines
