-- One row per reason and name: events of the table's stays, within their time, that no relation holds, and how many.
WITH mine AS (
    SELECT s.*
    FROM stays AS s
    INNER JOIN table_stays AS t ON t.stay_id = s.stay_id
)

SELECT 'event without a number' AS reason, e.name, count(*) AS entries
FROM events AS e
WHERE
    e.role IN ('charted', 'rate', 'bolus')
    AND e.value IS NULL
    AND EXISTS (
        SELECT 1
        FROM mine AS s
        WHERE
            s.subject_id = e.subject_id
            AND e.time <= s.read_until
            AND e.time >= CASE WHEN e.role = 'charted' THEN s.read_from ELSE s.time_zero END
    )
GROUP BY e.name
UNION ALL
SELECT 'rate with nothing charted after it' AS reason, h.name, count(*) AS entries
FROM infusions AS h
CROSS JOIN meds_options AS o
WHERE
    h.rate > 0
    AND h.end_time IS NULL
    AND EXISTS (
        SELECT 1
        FROM mine AS s
        WHERE
            s.subject_id = h.subject_id
            AND h.start_time < s.read_until
            AND h.start_time > s.time_zero - to_microseconds(o.longest)
    )
GROUP BY h.name
ORDER BY reason, name
