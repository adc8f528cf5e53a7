-- One row per event that set a rate: the rate, and when it ended; NULL if no event of the line follows.
--
-- A rate holds until the next event of the same line of the map, or one that the line says stops it, and no longer than
-- the settings say. A stop at the same instant came first. MEDS has no orders: infusions that may run beside each other
-- need lines of their own.
WITH followed AS (
    SELECT
        *,
        CASE WHEN role = 'stop' THEN 0 ELSE value END AS rate,
        lead(time) OVER (
            PARTITION BY subject_id, thread ORDER BY time, CASE WHEN role = 'stop' THEN 0 ELSE 1 END, value
        ) AS next_time
    FROM events
    WHERE role IN ('rate', 'stop')
)

SELECT
    f.subject_id,
    f.name,
    f.rate,
    f.time AS start_time,
    CASE
        WHEN f.next_time IS NOT NULL
            THEN f.time + to_microseconds(least({{microseconds(f.time, f.next_time)}}, o.longest))
    END AS end_time
FROM followed AS f
CROSS JOIN meds_options AS o
WHERE f.role = 'rate'
