"""The commands of a policy."""

from pathlib import Path
from typing import Annotated

import typer

from fdtr.cli import message_output
from fdtr.cli.options import Json
from fdtr.errors import InvalidStates

policy_app = typer.Typer(help="Use a policy.", no_args_is_help=True)


@policy_app.command()
def recommend(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="A policy file.")],
    state: Annotated[list[str], typer.Argument(metavar="NAME=VALUE", help="The patient's state, in raw units.")],
    step: Annotated[int, typer.Option(help="Which decision, from 0.")] = 0,
    json: Json = False,
) -> None:
    """Show what a policy would do for one state, and why: for every action the estimate, the penalty, the bound.

    Writes and sends nothing. Research software: not for bedside use.
    """
    from fdtr.policy import Policy

    loaded = Policy.load(policy)
    message_output.show_recommendation(
        loaded, loaded.explain(_parse_state(state, loaded.features.covariates), step), json
    )


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
