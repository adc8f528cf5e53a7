-- One row per dose of a stay: a stretch of time at one rate, or a bolus.
SELECT
    s.stay_id,
    h.name,
    h.start_time,
    h.end_time,
    h.rate * {{microseconds(h.start_time, h.end_time)}} / 3600000000.0 AS amount
FROM infusions AS h
INNER JOIN stays AS s ON s.subject_id = h.subject_id
WHERE h.rate > 0 AND h.end_time > h.start_time AND h.end_time > s.time_zero AND h.start_time < s.read_until
UNION ALL
SELECT s.stay_id, e.name, e.time AS start_time, e.time AS end_time, e.value AS amount
FROM events AS e
INNER JOIN stays AS s ON s.subject_id = e.subject_id
WHERE e.role = 'bolus' AND e.value > 0 AND e.time >= s.time_zero AND e.time < s.read_until
