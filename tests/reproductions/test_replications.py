"""Replications whose results are kept in a file: what was interrupted goes on where it stopped."""

import json

import pytest

from experiments.replications import Kept, replicate

JOBS = [3, 1, 2, 5, 4]


class Work:
    """Squares numbers, and remembers which."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.done: list[int] = []
        self.fails_at = fails_at

    def __call__(self, job: int) -> float:
        if job == self.fails_at:
            raise KeyboardInterrupt
        self.done.append(job)
        return job**2 / 7


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path / "kept.jsonl", key=str, encode=lambda result: [result], decode=lambda plain: plain[0])


def run(work: Work, kept: Kept | None, jobs: list[int] = JOBS) -> list[float]:
    return replicate(work, jobs, "squares", processes=1, keep=kept)


def test_kept_results_are_those_of_the_jobs_in_their_order(kept):
    expected = run(Work(), None)
    assert run(Work(), kept) == expected
    assert run(Work(), kept) == expected
    assert run(Work(), kept, JOBS[::-1]) == expected[::-1]
    assert run(Work(), kept, JOBS[1:3]) == expected[1:3]


def test_a_job_is_not_done_twice(kept):
    first, again, more = Work(), Work(), Work()
    run(first, kept)
    run(again, kept)
    run(more, kept, [6, *JOBS, 7])
    assert (first.done, again.done, more.done) == (JOBS, [], [6, 7])
    assert len(kept.path.read_text().splitlines()) == 7


def test_an_interrupted_run_goes_on_where_it_stopped(kept):
    with pytest.raises(KeyboardInterrupt):
        run(Work(fails_at=5), kept)
    rest = Work()
    assert run(rest, kept) == run(Work(), None)
    assert rest.done == [5, 4]


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_last_line_that_was_cut_off_is_replaced(kept, cut):
    run(Work(), kept, JOBS[:3])
    kept.path.write_bytes(kept.path.read_bytes()[:-cut])
    cut_off = kept.path.read_bytes()
    assert list(kept.read()) == ["3", "1"]
    assert kept.path.read_bytes() == cut_off  # reading alone changes nothing: another run may be writing
    rest = Work()
    assert run(rest, kept) == run(Work(), None)
    assert rest.done == [2, 5, 4]
    assert [json.loads(line)["job"] for line in kept.path.read_text().splitlines()] == ["3", "1", "2", "5", "4"]


def test_a_first_line_that_was_cut_off_is_replaced(kept):
    kept.path.write_text('{"job": "3", "res')
    assert run(Work(), kept) == run(Work(), None)
    assert len(kept.path.read_text().splitlines()) == len(JOBS)
