"""Rounds of the secure sum for the tests: keyed signatures instead of Ed25519, and key material from a seed."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.masking import (
    Confirmation,
    History,
    MaskedMessage,
    Opening,
    Round,
    Sign,
    SiteRound,
    SurvivorList,
    accept_survivors,
    allow_opening,
    list_survivors,
    mask,
    start,
    unmask,
)

Words = NDArray[np.uint64]


def signer(site: str) -> Sign:
    return lambda content: hmac.digest(site.encode(), content, "sha256")


def verify(site: str, content: bytes, signature: bytes) -> bool:
    return hmac.compare_digest(hmac.digest(site.encode(), content, "sha256"), signature)


def entropy(*seed: object) -> Callable[[int], bytes]:
    """Bytes that depend on the seed alone."""
    counter = iter(range(10**6))
    return lambda n: hashlib.shake_256(repr((seed, next(counter))).encode()).digest(n)


def agree(sites: Iterable[str] | int, length: int, number: int = 1, **options: int) -> Round:
    names = [f"site-{i:03}" for i in range(sites)] if isinstance(sites, int) else sites
    return Round(hashlib.sha256(f"round {number}".encode()).digest(), tuple(names), length, **options)


@dataclass
class Played:
    """A round up to the masked messages: each site's numbers, secret state and message."""

    agreed: Round
    numbers: dict[str, Words]
    states: dict[str, SiteRound]
    messages: dict[str, MaskedMessage]

    def survivors(self, sites: Collection[str] | None = None) -> SurvivorList:
        left = self.agreed.sites if sites is None else sites
        return list_survivors(self.agreed, [self.messages[site] for site in left], verify)

    def accept(self, site: str, shown: SurvivorList) -> Confirmation:
        self.states[site] = accept_survivors(self.states[site], shown, History())
        return self.states[site].confirmation(signer(site))

    def open(self, site: str, confirmations: Iterable[Confirmation]) -> Opening:
        self.states[site] = allow_opening(self.states[site], confirmations, History(), verify)
        return self.states[site].opening(signer(site))

    def finish(self, survivors: SurvivorList) -> tuple[Words, list[Opening]]:
        signed = [self.accept(site, survivors) for site in survivors.sites]
        openings = [self.open(site, signed) for site in survivors.sites]
        return unmask(self.agreed, survivors, self.messages.values(), openings, verify), openings


def play(agreed: Round, numbers: dict[str, Words] | None = None, seed: int = 0) -> Played:
    """Everybody announces a key and masks a message; random numbers where none are given."""
    rng = np.random.default_rng(seed)
    if numbers is None:
        numbers = {site: rng.integers(0, 2**64, agreed.length, dtype=np.uint64) for site in agreed.sites}
    states = {site: start(agreed, site, History(), entropy(seed, site, agreed.context)) for site in agreed.sites}
    keys = [state.announcement(signer(site)) for site, state in states.items()]
    states = {site: mask(state, keys, numbers[site], verify) for site, state in states.items()}
    messages = {site: state.masked(numbers[site], signer(site)) for site, state in states.items()}
    return Played(agreed, numbers, states, messages)


def plain_sum(played: Played, sites: Collection[str]) -> Words:
    total = np.zeros(played.agreed.length, dtype=np.uint64)
    for site in sites:
        total += played.numbers[site]
    return total
