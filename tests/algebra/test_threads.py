"""Chunks on threads: order, bounds, errors."""

import threading

import pytest

from fdtr.algebra.threads import for_chunks, thread_count


def collected(work, chunks):
    results = []
    for_chunks(work, results.append, chunks)
    return results


@pytest.mark.parametrize("threads", ["1", "2", "7"])
def test_results_keep_their_order(monkeypatch, threads):
    monkeypatch.setenv("FDTR_THREADS", threads)
    assert collected(lambda x: x * x, range(200)) == [x * x for x in range(200)]
    assert collected(abs, []) == []


def test_a_late_result_is_waited_for(monkeypatch):
    monkeypatch.setenv("FDTR_THREADS", "2")
    second_is_done = threading.Event()

    def work(number):
        if number == 0:
            assert second_is_done.wait(10)
        if number == 1:
            second_is_done.set()
        return number

    assert collected(work, range(5)) == [0, 1, 2, 3, 4]


def test_every_thread_holds_one_chunk(monkeypatch):
    monkeypatch.setenv("FDTR_THREADS", "2")
    read, done = [], []

    def chunks():
        for number in range(100):
            read.append(number)
            assert len(read) - len(done) <= 2
            yield number

    for_chunks(done.append, lambda _: None, chunks())
    assert len(done) == 100


def test_the_number_of_threads_can_be_set(monkeypatch):
    monkeypatch.setenv("FDTR_THREADS", "3")
    assert thread_count() == 3
    names = set()
    barrier = threading.Barrier(3, timeout=10)

    def work(_):
        barrier.wait()  # passes only when three run at once
        names.add(threading.current_thread().name)

    collected(work, range(3))
    assert len(names) == 3


@pytest.mark.parametrize("threads", ["1", "3"])
def test_an_error_is_raised_and_stops_the_rest(monkeypatch, threads):
    monkeypatch.setenv("FDTR_THREADS", threads)
    with pytest.raises(ZeroDivisionError):
        collected(lambda x: 1 // x, [1, 0, 2])

    def broken():
        yield 1
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        collected(abs, broken())
    with pytest.raises(KeyError):
        for_chunks(abs, lambda _: {}["x"], [1, 2])
