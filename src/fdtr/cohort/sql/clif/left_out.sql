-- One row per reason and name: entries of the table's stays, within their time, that no relation holds, and how many.
--
-- A rate may have been set before a stay and still have flowed in it: as long before as the settings let a rate hold.
WITH mine AS (
    SELECT s.hospitalization_id, s.read_from, s.read_until, s.time_zero, s.time_zero - to_microseconds(o.longest) AS set_from
    FROM stays AS s
    INNER JOIN table_stays AS t ON t.stay_id = s.stay_id
    CROSS JOIN clif_options AS o
),

timely AS (
    SELECT e.*
    FROM entries AS e
    WHERE
        EXISTS (
            SELECT 1
            FROM mine AS s
            WHERE
                s.hospitalization_id = e.hospitalization_id
                AND e.time < s.read_until
                AND e.time >= CASE WHEN e.kind = 'rate' THEN s.set_from ELSE s.time_zero END
        )
)

SELECT 'result in another unit' AS reason, c.name, count(*) AS entries
FROM clif_labs AS l
INNER JOIN clif_charted AS c ON c.category = l.lab_category AND c.source = 'labs'
LEFT JOIN clif_units AS u ON u.category = c.category AND u.unit = l.reference_unit
WHERE
    l.lab_value_numeric IS NOT NULL
    AND u.unit IS NULL
    AND coalesce(l.reference_unit, '') <> ''
    AND EXISTS (
        SELECT 1
        FROM mine AS s
        WHERE s.hospitalization_id = l.hospitalization_id AND l.lab_collect_dttm BETWEEN s.read_from AND s.read_until
    )
GROUP BY c.name
UNION ALL
SELECT 'fluid in a unit that is no volume' AS reason, name, count(*) AS entries
FROM timely
WHERE amount IS NULL AND NOT unstated AND NOT carrier
GROUP BY name
UNION ALL
SELECT 'fluid without a dose' AS reason, name, count(*) AS entries
FROM timely
WHERE amount IS NULL AND unstated AND NOT confirms AND NOT carrier
GROUP BY name
UNION ALL
SELECT 'confirmation of a rate that is not known' AS reason, h.name, count(*) AS entries
FROM infusions AS h
WHERE
    h.confirms
    AND h.rate IS NULL
    AND EXISTS (
        SELECT 1
        FROM mine AS s
        WHERE s.hospitalization_id = h.hospitalization_id AND h.start_time < s.read_until AND h.start_time >= s.set_from
    )
GROUP BY h.name
UNION ALL
SELECT 'fluid that carries a drug' AS reason, name, count(*) AS entries
FROM timely
WHERE carrier AND amount > 0
GROUP BY name
UNION ALL
SELECT 'rate with nothing charted after it' AS reason, h.name, count(*) AS entries
FROM infusions AS h
WHERE
    h.rate > 0
    AND h.end_time IS NULL
    AND EXISTS (
        SELECT 1
        FROM mine AS s
        WHERE s.hospitalization_id = h.hospitalization_id AND h.start_time < s.read_until AND h.start_time >= s.set_from
    )
GROUP BY h.name
ORDER BY reason, name
