"""Hub and sites as Flower's apps, over a grid in this process."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fdtr.errors import FdtrError, UnreadableFile
from fdtr.exchange.flower.hub_app import JOB, JOBS, _matched, app, job_path
from fdtr.exchange.flower.records import answer_record, read_answer, request_record
from fdtr.exchange.flower.site_worker import SiteApp, Worker
from fdtr.exchange.remote.jobs import Absence, Ending, Reason, Result
from fdtr.exchange.remote.requests import Answer, Outcome, Phase, Request
from fdtr.exchange.site_state import use_state_folder
from fdtr.signing import HUB
from folder_parties import Parties, study_of
from in_process_grid import HUB_NODE, InProcessGrid
from remote_parties import Network, handler, network


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Nobody waits for the disk, which survives a test."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def in_memory(tmp_path):
    """A folder without a disk, where there is one: a thousand ledgers would wait for theirs."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def grid_of(net: Network, **options) -> InProcessGrid:
    nodes = net.job().nodes
    return InProcessGrid({nodes[site]: SiteApp(one) for site, one in net.handlers.items()}, **options)


def federate(net: Network, grid: InProcessGrid, monkeypatch, **changes) -> Result:
    """One run of the ServerApp, as the hub starts it."""
    jobs, name = net.root / "jobs", secrets.token_hex(16)
    jobs.mkdir(exist_ok=True)
    job = net.job(**changes)
    job.save(jobs / f"{name}.json")
    monkeypatch.setenv(JOBS, str(jobs))
    context = Context(run_id=1, node_id=HUB_NODE, node_config={}, state=RecordDict(), run_config={JOB: name})
    with use_state_folder(net.root / "homes" / HUB):
        app(grid, context)
    return Result.from_json(job.result.read_bytes())


def refused(net: Network, monkeypatch) -> Result:
    """What a run tells that could not even begin."""
    with pytest.raises((FdtrError, IndexError)):
        federate(net, grid_of(net), monkeypatch)
    return Result.from_json(net.job().result.read_bytes())


def test_a_hub_that_cannot_run_tells_its_person_in_sentences(tmp_path, monkeypatch):
    net = network(tmp_path, "abc", masked=False)
    study = net.parties.folder / "study.toml"
    study.write_text(study.read_text().replace("horizon", "horizn"))
    told = refused(net, monkeypatch).next
    assert "horizn" in told
    assert "InvalidStudy" not in told
    monkeypatch.setattr("fdtr.exchange.flower.hub_app.run_federation", lambda *_: [][0])
    assert refused(net, monkeypatch).next.startswith("The hub's own program failed (IndexError): logs/superlink.log")


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
def test_a_federation_through_the_apps(tmp_path, monkeypatch, weights_of_the_seed, masked):
    net = network(tmp_path, "abcd", masked=masked)
    result = federate(net, grid_of(net), monkeypatch)
    assert (result.ending, result.members, result.absent) == (Ending.COMPLETE, tuple("abcd"), ())
    assert result.versions["flwr"].startswith("1.")
    plain = network(tmp_path / "plain", "abcd", masked=masked)
    plain.run()
    for site in "abcd":
        np.testing.assert_allclose(net.policy(site).theta, plain.policy(site).theta, rtol=1e-8 if masked else 0)


@pytest.mark.slow
def test_replies_are_known_by_the_message_they_answer(tmp_path, monkeypatch):
    net = network(tmp_path, "abcdef", masked=False)
    nodes = net.job().nodes
    lost = {nodes["d"]: 0, nodes["e"]: 3}  # silence, and an error that names the hub as its source

    def lose(message: Message) -> int | None:
        return lost.get(message.metadata.dst_node_id)

    grid = grid_of(net, lose=lose)
    grid.duplicates = True
    del grid.apps[nodes["f"]]
    result = federate(net, grid, monkeypatch)
    assert (result.ending, result.members) == (Ending.COMPLETE, ("a", "b", "c"))
    assert result.absent == (
        Absence("d", 1, "sums", Reason.NO_ANSWER),
        Absence("e", 1, "sums", Reason.NO_ANSWER),
        Absence("f", 1, "sums", Reason.NOT_CONNECTED),
    )


def test_the_first_of_two_replies_counts(tmp_path):
    net = network(tmp_path, masked=False)
    nodes = net.job().nodes
    grid = grid_of(net)
    asked = Message(request_record(Request("f" * 64, 1, Phase.SUMS)), dst_node_id=nodes["a"], message_type="query.sums")
    [first] = grid.send_and_receive([asked])
    second = Message(answer_record(Answer("a", Outcome.DONE)), reply_to=asked)
    assert _matched({"a": asked}, [first, second]) == {"a": read_answer(first)}
    assert _matched({"a": asked}, [second, first]) == {"a": Answer("a", Outcome.DONE)}


def test_no_site_is_waited_for_longer_than_the_deadline(tmp_path, monkeypatch):
    net = network(tmp_path, masked=False)
    grid = grid_of(net)
    federate(net, grid, monkeypatch, deadline=7.0)
    assert grid.timeouts == [(7.0, 7.0)] * 6  # sums and finish, of three


def test_a_run_names_a_job_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.delenv(JOBS, raising=False)
    with pytest.raises(UnreadableFile, match=JOBS):
        job_path("0" * 32)
    monkeypatch.setenv(JOBS, str(tmp_path))
    for name in ("../job", "", None, 3, "0" * 31, "/etc/passwd"):
        with pytest.raises(UnreadableFile, match="names no job"):
            job_path(name)
    assert job_path("0" * 32) == tmp_path / f"{'0' * 32}.json"


def test_a_hub_that_fails_says_so_in_its_result(tmp_path, monkeypatch):
    net = network(tmp_path, masked=False)
    with pytest.raises(UnreadableFile):
        federate(net, grid_of(net), monkeypatch, key=tmp_path / "no.key")
    result = Result.from_json((tmp_path / "result.json").read_bytes())
    assert result.ending is Ending.REFUSED
    assert "no.key" in result.next


def message_of(content: RecordDict, kind: str = "query.sums") -> Message:
    InProcessGrid({})
    return Message(content, 2, kind)


def test_a_message_that_cannot_be_read_is_refused_in_one_word_and_logged(tmp_path):
    net = network(tmp_path, masked=False)
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
    reply = SiteApp(net.handlers["a"])(message_of(RecordDict()), context)
    assert read_answer(reply) == Answer("a", Outcome.REFUSED)
    for kind in ("train", "evaluate", "query", "query.nothing", "train.sums"):
        reply = SiteApp(net.handlers["a"])(message_of(RecordDict(), kind), context)
        assert read_answer(reply) == Answer("a", Outcome.REFUSED)
    assert net.log("a").read_text().count('"outcome":"refused"') == 6


def test_nothing_of_an_error_in_an_app_crosses(caplog):
    app = ClientApp()

    @app.query("sums")
    def fails(_message: Message, _context: Context) -> Message:
        raise ValueError("patient 4711 in /data/table.csv")

    worker = Worker("127.0.0.1:1", b"", app, lambda: None)
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
    reply = worker._reply(message_of(RecordDict()), context)
    assert not reply.has_content()
    assert reply.error.reason == "failed"
    assert "4711" not in repr(reply) + caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("number_of_sites", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_a_thousand_sites(in_memory, monkeypatch, number_of_sites):
    sites = tuple(f"site-{number:04}" for number in range(number_of_sites))
    study = study_of(sites, masked=False, horizon=1)
    root = in_memory / "many"
    parties = Parties(root, sites).set_up(study, n=100)
    parties.open()
    net = Network(parties, study, {site: handler(root, site, study) for site in sites})
    result = federate(net, grid_of(net), monkeypatch)
    assert (result.ending, result.absent) == (Ending.COMPLETE, ())
    assert result.members == result.finished == sites
    assert len(list(root.glob("*.policy"))) == len(sites)
