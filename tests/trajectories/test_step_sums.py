"""Sums of a step: the order of additions depends on the data alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdtr.learners.accumulate import accumulate_folds
from fdtr.trajectories import step_sums
from fdtr.trajectories.step_sums import TreeSum, chunks_in_block, sum_chunks
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick

STUDY = make_study(horizon=1)
ROWS = make_sites(STUDY, {"a": 3_000})["a"]


class Term:
    """What says how it was added up."""

    def __init__(self, text):
        self.text = text

    def __add__(self, other):
        return Term(f"({self.text}+{other.text})")


@pytest.mark.parametrize(
    ("n", "order"),
    [(1, "0"), (2, "(0+1)"), (3, "((0+1)+2)"), (5, "(((0+1)+(2+3))+4)"), (7, "(((0+1)+(2+3))+((4+5)+6))")],
)
def test_blocks_are_added_in_a_fixed_tree(n, order):
    tree = TreeSum(lambda: ())
    for number in range(n):
        tree.add((np.array([Term(str(number))], dtype=object),))
    assert tree.result()[0][0].text == order


def test_the_sum_of_no_blocks_is_zeros():
    assert TreeSum(lambda: (np.zeros(2),)).result()[0].tolist() == [0, 0]


class Labelled:
    """Rewards and rows by label; the rewards of a step of this study are no round numbers."""

    def zeros(self):
        return np.zeros(4), np.zeros(4, np.int64)

    def __call__(self, chunk, labels):
        assert len(labels) == len(chunk.rewards)
        return np.bincount(labels, weights=chunk.rewards, minlength=4), np.bincount(labels, minlength=4)


@given(size=st.integers(1, 4_000), block=st.integers(1, 4_000), seed=st.integers(0, 5))
def test_labels_go_with_their_rows_whatever_the_chunks_and_blocks(size, block, seed):
    labels = np.random.default_rng(seed).integers(0, 4, ROWS.n_patients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_sums, "BLOCK_ROWS", block)
        rewards, counts = sum_chunks(ROWS.step(0).chunks(size), Labelled(), size, labels)
    (whole,) = ROWS.step(0).chunks(10**6)
    assert counts.tolist() == np.bincount(labels, minlength=4).tolist()
    assert np.allclose(rewards, np.bincount(labels, weights=whole.rewards, minlength=4), rtol=1e-13)


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_a_step_is_the_tree_of_its_blocks_whatever_the_threads(monkeypatch, threads):
    monkeypatch.setenv("FDTR_THREADS", threads)
    size, in_block, labels = 64, 4, np.arange(ROWS.n_patients) % 4
    monkeypatch.setattr(step_sums, "BLOCK_ROWS", size * in_block + 3)
    assert chunks_in_block(size) == in_block
    tree, work, rows = TreeSum(Labelled().zeros), Labelled(), size * in_block
    for start in range(0, ROWS.n_patients, rows):
        block = ROWS.select((np.arange(ROWS.n_patients) // rows) == start // rows)
        tree.add(sum_chunks(block.step(0).chunks(size), work, size, labels[start : start + rows]))
    for found, expected in zip(ROWS.step(0).sums(work, size, labels), tree.result(), strict=True):
        assert np.array_equal(found, expected)


def test_a_step_of_one_block_is_added_chunk_by_chunk(monkeypatch):
    """As all steps were before there were blocks, so that tables up to half a million patients keep their numbers."""
    monkeypatch.setattr("fdtr.learners.accumulate.rows_in_cache", lambda _: 64)
    labels = np.arange(ROWS.n_patients) % 3
    found = accumulate_folds(ROWS.step(0), STUDY.feature_map, [None], labels)
    for fold, (sums,) in enumerate(found):
        outcomes = 0.0
        for start in range(0, ROWS.n_patients, 64):
            here = labels[start : start + 64]
            rewards = next(ROWS.select((np.arange(ROWS.n_patients) // 64) == start // 64).step(0).chunks(64)).rewards
            outcomes += np.bincount(here, weights=rewards, minlength=3)[fold]
        assert sums.target_sum == outcomes
