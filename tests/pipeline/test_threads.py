"""Our own threads alone: the linear algebra library's would compete with them."""

import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
import scipy.linalg  # noqa: F401  # its own copy of the library
from threadpoolctl import ThreadpoolController

import fdtr
from fdtr.simulation import WorldSpec, make_world

pytestmark = pytest.mark.quick

LIBRARY_CALLS = ("cholesky", "eigh", "svd", "qr", "solve", "solve_triangular", "dot", "matmul")


def test_a_whole_run_holds_the_linear_algebra_library_to_one_thread():
    world = make_world(WorldSpec(n_sites=3, horizon=2, n_actions=2), np.random.default_rng(1))
    study = fdtr.Study.model_validate(world.study())
    data = fdtr.read_trajectories(pa.table(world.table(120, np.random.default_rng(2))), study)
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
            fdtr.run(study, data)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    assert {"cholesky", "eigh", "dot"} <= seen
    assert not on_several
