-- One row per charted value of a stay.
SELECT s.stay_id, e.time, e.name, e.value
FROM events AS e
INNER JOIN stays AS s ON s.subject_id = e.subject_id
WHERE e.role = 'charted' AND e.value IS NOT NULL AND e.time BETWEEN s.read_from AND s.read_until
