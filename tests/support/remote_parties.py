"""A small study over a network that is a function call: a hub, and for each site a request handler with its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fdtr.exchange.folder.round_snapshot import RoundSnapshot
from fdtr.exchange.remote.audit import Audit
from fdtr.exchange.remote.hub_rounds import run_federation
from fdtr.exchange.remote.jobs import Job, Reason, Result
from fdtr.exchange.remote.request_handler import RequestHandler, ServedStudy
from fdtr.exchange.remote.requests import Answer, Phase, Request
from fdtr.exchange.site_state import use_state_folder
from fdtr.policy import Policy
from fdtr.signing import HUB
from fdtr.study import Study
from folder_parties import Parties, key_of, study_of

Fault = Callable[[Phase, str, Request], Answer | Reason | None]
"""What becomes of a request instead of its way through the request handler; None lets it pass."""


@dataclass
class Network:
    """`faults` are asked before each request is answered; `answers` is all that crossed, in order."""

    parties: Parties
    study: Study
    handlers: dict[str, RequestHandler]
    faults: list[Fault] = field(default_factory=list)
    answers: list[tuple[Phase, str, Answer | Reason]] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.parties.root

    @property
    def snapshot(self) -> RoundSnapshot:
        return self.parties.snapshot

    def job(self, **changes) -> Job:
        nodes = {site: number for number, site in enumerate(self.parties.sites, 2)}
        fields = {"folder": self.parties.folder, "key": self.root / "hub.key", "result": self.root / "result.json"}
        return Job(**{**fields, "nodes": nodes, **changes})

    def ask(self, phase: Phase, requests: Mapping[str, Request]) -> dict[str, Answer | Reason]:
        answers = {}
        for site, request in requests.items():
            failures = [fault(phase, site, request) for fault in self.faults]
            failure = next((failure for failure in failures if failure is not None), None)
            answer = failure or self.handlers[site].answer(request)
            answers[site] = answer
            self.answers.append((phase, site, answer))
        return answers

    def run(self, **changes) -> Result:
        with use_state_folder(self.root / "homes" / HUB):
            result = run_federation(self.job(**changes), key_of(HUB), self.ask)
        assert Result.from_json((self.root / "result.json").read_bytes()) == result
        return result

    def policy(self, site: str) -> Policy:
        return Policy.load(self.root / f"{site}.policy")

    def log(self, site: str) -> Path:
        return self.root / f"{site}.audit"


def network(root: Path, sites: str = "abc", *, masked: bool, n: int = 120, **changes) -> Network:
    study = study_of(tuple(sites), masked=masked, **changes)
    parties = Parties(root, tuple(sites)).set_up(study, n)
    parties.open()
    return Network(parties, study, {site: handler(root, site, study) for site in sites})


def handler(root: Path, site: str, *studies: Study, receive_only: bool = False) -> RequestHandler:
    places = root / f"{site}.csv", root / f"{site}.policy"
    listed = [ServedStudy(study, *places, receive_only=receive_only) for study in studies]
    return RequestHandler(site, listed, key_of(site), Audit(root / f"{site}.audit"), root / "homes" / site)


def silent(site: str, *phases: Phase, times: int = 99) -> Fault:
    """A site that does not answer in some phases, the first few times."""
    left = [times]

    def fault(phase: Phase, name: str, _request: Request) -> Reason | None:
        if name != site or (phases and phase not in phases) or not left[0]:
            return None
        left[0] -= 1
        return Reason.NO_ANSWER

    return fault
