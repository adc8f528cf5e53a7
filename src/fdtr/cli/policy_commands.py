"""The command that applies a policy to one state, and says why."""

from pathlib import Path
from typing import Annotated

import typer

from fdtr.cli import show
from fdtr.cli.options import Json
from fdtr.errors import InvalidStates
from fdtr.policy import Explanation, Policy
from fdtr.verified_policy import Advice, VerifiedPolicy


def recommend(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="A policy file.")],
    state: Annotated[list[str], typer.Argument(metavar="NAME=VALUE", help="The patient's state, in raw units.")],
    step: Annotated[int, typer.Option(help="Which decision, from 0.")] = 0,
    json: Json = False,
) -> None:
    """Show what a policy would do for one state, and why.

    For every action: the estimate, the penalty, and a cautious estimate, which is their difference. Beside it, whether
    the part of the policy that data can verify says the same, or leaves the choice to clinicians. Writes and sends
    nothing. Research software: not for bedside use.
    """
    loaded = Policy.load(policy)
    described = _parse_state(state, loaded.features.covariates)
    explanation = loaded.explain(described, step)
    advice = VerifiedPolicy.load(policy).explain(described, step) if VerifiedPolicy.is_in(policy) else None
    _show_recommendation(loaded, explanation, advice, json)


def _advice_json(advice: Advice) -> dict[str, object]:
    return {name: value for name, value in vars(advice).items() if name != "explanation"}


def _parse_state(pairs: list[str], known: tuple[str, ...]) -> dict[str, float]:
    state: dict[str, float] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidStates(f"Give the state as NAME=VALUE without spaces; {name!r} has no value.")
        if name in state:
            raise InvalidStates(f"{name!r} is given twice.")
        if name not in known:
            raise InvalidStates(f"The policy knows no {name!r}. It needs {', '.join(known)}.")
        try:
            state[name] = float(value)
        except ValueError:
            raise InvalidStates(f"The value of {name!r} is not a number. Write a decimal point, no comma.") from None
    return state


def _show_recommendation(policy: Policy, explanation: Explanation, advice: Advice | None, machine: bool) -> None:
    """Print what a policy recommends for one state, what its verified part says, and why."""
    if machine:
        show.as_json(
            {
                "site": policy.site,
                "method": policy.method,
                "step": explanation.step,
                "action": explanation.chosen.action,
                "actions": explanation.actions,
                "clipped": explanation.clipped,
                "verified": None if advice is None else _advice_json(advice),
            }
        )
        return
    if explanation.clipped:
        show.note(f"outside the study's range, taken as its end: {', '.join(explanation.clipped)}.")
    chosen = explanation.chosen
    show.line(f"{policy.method} of {policy.site}, step {explanation.step}: {chosen.label} (code {chosen.action:g})")
    if advice is not None:
        says = chosen.label if advice.advised else "nothing; clinicians decide"
        show.line(f"Its verified part: {says}. {advice.reason}")
    show.line()
    left = policy.horizon - explanation.step
    low, high = policy.study["reward"]["range"]
    raw = (low, high) != (0, 1)
    rows = []
    for a in explanation.actions:
        numbers = [a.estimate, a.shared, a.specific, a.penalty, a.bound]
        rows.append([a.label, *(f"{x:.3f}" for x in numbers)])
        if raw:
            rows[-1].append(f"{a.bound * (high - low) + left * low:.4g}")
    columns = ["action", "estimate", "of it shared", "of it this site's own", "penalty", "cautious estimate"]
    title = f"Expected sum of rewards from here on, each mapped onto [0, 1]: at most {left}"
    show.table(title, [*columns, *(["in raw units"] if raw else [])], rows)
    show.line("The action with the largest cautious estimate is taken. Research software: not for bedside use.")
