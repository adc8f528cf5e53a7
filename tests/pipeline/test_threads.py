"""Our own threads alone: the linear algebra library's would compete with them."""

import sys
import threading
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
import scipy.linalg  # noqa: F401  # its own copy of the library
from threadpoolctl import ThreadpoolController

import fdtr
from fdtr.hub import combine_messages, pooled_coefficients
from fdtr.inference import heterogeneity, infer_effects
from fdtr.simulation import WorldSpec, make_world
from fdtr.site import evaluate_site, summarize

pytestmark = pytest.mark.quick

LIBRARY_CALLS = ("cholesky", "eigh", "svd", "qr", "solve", "solve_triangular", "dot", "matmul")


@contextmanager
def watched():
    """The calls of the linear algebra library in the body, on any thread, while it may use several of its own."""
    controller = ThreadpoolController()
    libraries = [library for library in controller.lib_controllers if library.user_api == "blas"]
    seen, on_several = set(), set()

    def watch(frame, event, argument):
        name = argument.__name__ if event == "c_call" else frame.f_code.co_name
        if name in LIBRARY_CALLS and event in ("call", "c_call"):
            seen.add(name)
            if max(library.num_threads for library in libraries) > 1:
                on_several.add((name, frame.f_back and frame.f_back.f_code.co_qualname))

    with controller.limit(limits=2, user_api="blas"):
        threading.setprofile(watch)
        sys.setprofile(watch)
        try:
            yield seen, on_several
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


@pytest.fixture(scope="module")
def study_and_data():
    world = make_world(WorldSpec(n_sites=3, horizon=2, n_actions=2), np.random.default_rng(1))
    study = fdtr.Study.model_validate(world.study())
    return study, fdtr.read_trajectories(pa.table(world.table(120, np.random.default_rng(2))), study)


def test_a_whole_run_holds_the_linear_algebra_library_to_one_thread(study_and_data):
    with watched() as (seen, on_several):
        fdtr.run(*study_and_data)
    assert {"cholesky", "eigh", "dot"} <= seen
    assert not on_several


def test_so_do_the_roles_one_by_one(study_and_data):
    study, data = study_and_data
    sites = data.by_site()
    with watched() as (seen, on_several):
        local = {site: fdtr.fit_local(study, rows) for site, rows in sites.items()}
        total = combine_messages(study, [fit.summary for fit in local.values()])
        rows, own = sites["site-1"], local["site-1"].summary
        fit = fdtr.fit_federated(study, rows, total, own)
        fdtr.verify(study, rows, fit)
        fdtr.check(study, rows)
        summarize(study, rows)
        fdtr.evaluate(study, rows, fit.policy)
        evaluation = evaluate_site(study, rows, total, own)
        evaluation.assess("FDTR", "Clinicians")
        evaluation.value("FDTR", "fqe")
        assert evaluation.sensitivity
        assert evaluation.markov
        pooled_coefficients(total)
        infer_effects(total.sums)
        heterogeneity(total.sums)
    assert {"cholesky", "eigh", "dot", "svd"} <= seen
    assert not on_several
