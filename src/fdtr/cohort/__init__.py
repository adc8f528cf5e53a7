"""From a hospital's tables to trajectories: a source becomes three relations, and these become the long table.

A source (MIMIC-IV, CLIF, …) is mapped, inside a database, to

    stays         one row a stay: stay_id, patient_id, site, time_zero, out_time, death_time (NULL), site covariates
    measurements  one row a charted value: stay_id, time, name, value, in the units of the settings
    doses         one row a dose: stay_id, name, start_time, end_time, amount in ml; a bolus has start_time = end_time

and one set of SQL files turns these into one row a stay and step. The SQL is the same on DuckDB and on PostgreSQL.
Rows stay in the database until the table is whole; what is logged or said never holds a patient's value.
"""
