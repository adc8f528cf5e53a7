-- One row per dose of a stay: a stretch of time at one rate, or a bolus.
SELECT
    s.stay_id,
    h.name,
    h.start_time,
    h.end_time,
    h.rate * {{microseconds(h.start_time, h.end_time)}} / 3600000000.0 AS amount
FROM infusions AS h
INNER JOIN stays AS s ON s.hospitalization_id = h.hospitalization_id
WHERE h.rate > 0 AND h.end_time > h.start_time AND h.end_time > s.time_zero AND h.start_time < s.read_until
UNION ALL
SELECT s.stay_id, e.name, e.time AS start_time, e.time AS end_time, e.amount
FROM entries AS e
INNER JOIN stays AS s ON s.hospitalization_id = e.hospitalization_id
WHERE e.kind = 'bolus' AND NOT e.carrier AND e.amount > 0 AND e.time >= s.time_zero AND e.time < s.read_until
