-- One row per use of a charted quantity and per kind of dose: values of the table's stays, and how many were not plausible.
--
-- Measurements count within the look-back and the window, doses if they reach into the steps.
SELECT
    q.role AS kind,
    q.name,
    count(*) AS charted,
    count(CASE WHEN m.value BETWEEN q.lowest AND q.highest THEN NULL ELSE 1 END) AS dropped
FROM quantities AS q
INNER JOIN measurements AS m ON m.name = q.name
INNER JOIN stays AS s ON s.stay_id = m.stay_id
INNER JOIN table_stays AS t ON t.stay_id = s.stay_id
WHERE m.value IS NOT NULL AND {{microseconds(s.time_zero, m.time)}} BETWEEN -q.look_back AND q.window_end
GROUP BY q.role, q.name
UNION ALL
SELECT
    'dose' AS kind,
    d.name,
    count(*) AS charted,
    count(CASE WHEN d.plausible = 1 THEN NULL ELSE 1 END) AS dropped
FROM timed_doses AS d
INNER JOIN table_stays AS t ON t.stay_id = d.stay_id
WHERE d.started < d.seen_until AND (d.ended > 0 OR (d.ended <= d.started AND d.started >= 0))
GROUP BY d.name
