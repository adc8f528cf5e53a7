"""Job and result files of a federation."""

import pytest

from fdtr.errors import UnreadableFile
from fdtr.exchange.remote.jobs import Job, Result
from remote_parties import network


def test_jobs_and_results_are_read_as_they_were_written(tmp_path):
    net = network(tmp_path, masked=False)
    job = net.job(deadline=5.0)
    job.save(tmp_path / "job.json")
    assert Job.load(tmp_path / "job.json") == job
    (tmp_path / "job.json").write_text('{"folder": 3}')
    with pytest.raises(UnreadableFile, match="no job"):
        Job.load(tmp_path / "job.json")
    with pytest.raises(UnreadableFile, match="no result"):
        Result.from_json("{}")
