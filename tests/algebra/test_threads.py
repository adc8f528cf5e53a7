"""Chunks on threads: order, bounds, errors."""

import threading

import pytest

from fdtr.algebra.threads import map_chunks, thread_count


def test_results_keep_their_order(monkeypatch):
    monkeypatch.setenv("FDTR_THREADS", "4")
    assert list(map_chunks(lambda x: x * x, range(50))) == [x * x for x in range(50)]


def test_few_chunks_are_in_flight(monkeypatch):
    monkeypatch.setenv("FDTR_THREADS", "2")
    read = []

    def chunks():
        for i in range(100):
            read.append(i)
            yield i

    results = map_chunks(lambda x: x, chunks())
    next(results)
    assert len(read) <= 6


def test_the_number_of_threads_can_be_set(monkeypatch):
    monkeypatch.setenv("FDTR_THREADS", "3")
    assert thread_count() == 3
    names = set()
    barrier = threading.Barrier(3, timeout=10)

    def work(_):
        barrier.wait()  # passes only when three run at once
        names.add(threading.current_thread().name)

    list(map_chunks(work, range(3)))
    assert len(names) == 3


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_error_in_a_chunk_is_raised(monkeypatch, threads):
    monkeypatch.setenv("FDTR_THREADS", threads)
    with pytest.raises(ZeroDivisionError):
        list(map_chunks(lambda x: 1 // x, [1, 0, 2]))
