-- One row per event and what the map takes it for, with its number converted.
--
-- Codes are matched once each, not once an event. Where several lines of the map match a code for the same use, the
-- first one counts. A code that stops a rate sets none in the same line, though a prefix may match it. An event without
-- a time tells of no moment, and is left out.
WITH candidates AS (
    SELECT d.code, m.role, m.use, m.name, m.thread, m.factor, m.shift, m.line
    FROM meds_codes AS d
    INNER JOIN meds_map AS m ON d.code = m.code OR (m.prefix AND starts_with(d.code, m.code))
),

stops AS (
    SELECT DISTINCT code, thread
    FROM candidates
    WHERE role = 'stop'
),

matched AS (
    SELECT
        c.code,
        c.role,
        c.name,
        c.thread,
        c.factor,
        c.shift,
        row_number() OVER (PARTITION BY c.code, c.use ORDER BY c.line) AS place
    FROM candidates AS c
    LEFT JOIN stops AS s ON s.code = c.code AND s.thread = c.thread
    WHERE c.role <> 'rate' OR s.code IS NULL
)

SELECT
    e.subject_id,
    e.time,
    e.code,
    e.unit,
    k.role,
    k.name,
    k.thread,
    CAST(e.numeric_value AS DOUBLE PRECISION) * k.factor + k.shift AS value
FROM meds_events AS e
INNER JOIN matched AS k ON k.code = e.code
WHERE e.time IS NOT NULL AND k.place = 1
