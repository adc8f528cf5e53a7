-- One row per event and what the map takes it for, with its number converted.
--
-- Codes are matched once each, not once an event. Where several lines of the map match a code for the same use, the first
-- one counts. An event without a time tells of no moment, and is left out.
WITH matched AS (
    SELECT
        d.code,
        m.role,
        m.name,
        m.thread,
        m.factor,
        m.shift,
        row_number() OVER (PARTITION BY d.code, m.use ORDER BY m.line) AS place
    FROM meds_codes AS d
    INNER JOIN meds_map AS m ON d.code = m.code OR (m.prefix AND starts_with(d.code, m.code))
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
