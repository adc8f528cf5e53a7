"""From a hospital's tables to trajectories: a source becomes three relations, and these become the long table.

A source (MIMIC-IV, CLIF, …) is mapped, inside a database, to

    stays         one row a stay: stay_id, patient_id, site, time_zero, out_time, death_time (NULL), site covariates
    measurements  one row a charted value: stay_id, time, name, value, in the units of the settings
    doses         one row a dose: stay_id, name, start_time, end_time, amount in ml; a bolus has start_time = end_time

and one set of SQL files turns these into one row a stay and step. The SQL is the same on DuckDB and on PostgreSQL.
Rows stay in the database until the table is complete. No message contains a patient's value.

    settings = ClifSettings.load("settings.toml")
    extracted = extract_clif(Path("clif"), settings, site="north")
    write_extraction(extracted, draft_study(extracted.settings), "data")
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
