"""From a hospital's tables to trajectories: a source becomes three relations, and these become the long table.

A source (MIMIC-IV, CLIF, …) is mapped, inside a database, to

    stays         one row a stay: stay_id, patient_id, site, time_zero, out_time, death_time (NULL), site covariates
    measurements  one row a charted value: stay_id, time, name, value, in the units of the settings
    doses         one row a dose: stay_id, name, start_time, end_time, amount in ml; a bolus has start_time = end_time

and one set of SQL files turns these into one row a stay and step. The SQL is the same on DuckDB and on PostgreSQL.
Rows stay in the database until the table is complete. No message contains a patient's value.

Here two patients of a MEDS dataset become a table with its study file. `extract_clif` and `extract_mimic_iv` give the
same kind of table, and `fdtr extract` does all of this from the command line.

>>> import tempfile
>>> from pathlib import Path
>>> import pyarrow as pa, pyarrow.parquet
>>> import fdtr
>>> from fdtr import cohort
>>> temporary = tempfile.TemporaryDirectory()
>>> place = Path(temporary.name)
>>> times = [f"2030-05-01T0{hour}:00:00" for hour in (0, 0, 0, 1, 3, 9, 0, 0, 9)]
>>> events = pa.table({
...     "subject_id": [1, 1, 1, 1, 1, 1, 2, 2, 2],
...     "time": pa.array(times).cast(pa.timestamp("us")),
...     "code": ["ICU_IN", "SBP", "LACTATE", "SALINE", "LACTATE", "ICU_OUT", "ICU_IN", "LACTATE", "ICU_OUT"],
...     "numeric_value": [None, 95.0, 3.0, 500.0, 2.0, None, None, 1.5, None],
... })
>>> (place / "data").mkdir()
>>> pyarrow.parquet.write_table(events, place / "data/0.parquet")
>>> codes = {"begin": ["ICU_IN"], "leave": ["ICU_OUT"], "youngest": 0}
>>> codes["charted"] = [{"name": "sbp", "codes": ["SBP"]}, {"name": "lactate", "codes": ["LACTATE"]}]
>>> codes["doses"] = [{"name": "crystalloid", "codes": ["SALINE"]}]
>>> sbp = {"name": "sbp", "meaning": "systolic pressure", "unit": "mmHg", "plausible": [20, 300], "range": [60, 200]}
>>> settings = cohort.MedsSettings.model_validate(
...     {"steps": 2, "covariates": [sbp], "site_covariates": [], "may_be_absent": ["colloid"], "meds": codes}
... )
>>> extracted = cohort.extract_meds(place, settings, site="north")
>>> for row in extracted.table.select(["patient", "step", "sbp", "dose", "action", "reward"]).to_pylist():
...     print(*row.values())
1-1 0 95.0 500.0 2 0.8421052631578947
1-1 1 95.0 0.0 0 0.8421052631578947
2-1 0 None 0.0 0 0.8947368421052632
2-1 1 None 0.0 0 0.8947368421052632
>>> complete = cohort.complete_cases(extracted)
>>> complete.table.num_rows, complete.flow.removals[-1].rule
(2, 'every covariate known at every step')
>>> cohort.draft_target_trial(extracted).splitlines()[0]
'# Target trial'
>>> cohort.write_extraction(extracted, cohort.draft_study_from_settings(extracted.settings), place / "extracted")
>>> sorted(path.name for path in (place / "extracted").iterdir())
['dictionary.csv', 'dictionary.md', 'flow.csv', 'flow.svg', 'left-out.csv', 'missing.csv', 'settings.toml',
 'study.toml', 'table.parquet']

Episodes of a simulator, in the files that Minari writes, become a table too:

>>> import json
>>> spaces = {"observation_space": {"type": "Discrete", "n": 3}, "action_space": {"type": "Discrete", "n": 2}}
>>> metadata = {"total_episodes": 1, "data_format": "parquet"} | {name: json.dumps(s) for name, s in spaces.items()}
>>> (place / "maze/0").mkdir(parents=True)
>>> (place / "maze/metadata.json").write_bytes(json.dumps(metadata).encode()) > 0
True
>>> episode = {"observations": [0, 2, 1], "actions": [1, 0, 0], "rewards": [0.0, 1.0, 0.0]}
>>> episode["terminations"] = [False, True, False]
>>> pyarrow.parquet.write_table(pa.table(episode), place / "maze/0/part.parquet")
>>> episodes = cohort.read_episodes({"maze": place / "maze"})
>>> for row in episodes.table.select(["site", "step", "state", "action", "reward"]).to_pylist():
...     print(*row.values())
maze 0 0.0 1 0.0
maze 1 2.0 0 1.0
>>> cohort.write_episodes(episodes, name="mazes", folder=place / "mazes")
>>> fdtr.Study.load(place / "mazes/study.toml").name
'mazes'
>>> temporary.cleanup()
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
