-- One row per stay of the cohort: age at admission to the unit, in years, from time zero on.
SELECT s.stay_id, s.time_zero AS time, 'age' AS name, CAST(c.age AS DOUBLE PRECISION) AS value
FROM stays AS s
INNER JOIN cohort AS c ON c.stay_id = s.stay_id
