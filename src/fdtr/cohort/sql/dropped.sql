-- One row per use of a charted quantity and per kind of dose: values of the table's stays, and how many were not plausible.
--
-- Of measurements those within the look-back and the window, of doses those that reach into the steps.
SELECT
    c.role AS kind,
    c.name,
    count(*) AS charted,
    count(CASE WHEN m.value BETWEEN c.lowest AND c.highest THEN NULL ELSE 1 END) AS dropped
FROM asked AS c
INNER JOIN measurements AS m ON m.name = c.name
INNER JOIN stays AS s ON s.stay_id = m.stay_id
INNER JOIN table_stays AS t ON t.stay_id = s.stay_id
WHERE m.value IS NOT NULL AND {{microseconds(s.time_zero, m.time)}} BETWEEN -c.look_back AND c.window_end
GROUP BY c.role, c.name
UNION ALL
SELECT
    'dose' AS kind,
    d.name,
    count(*) AS charted,
    count(
        CASE
            WHEN
                d.amount > 0
                AND d.amount
                * CASE
                    WHEN {{microseconds(d.start_time, d.end_time)}} > l.step_length
                        THEN
                            CAST(l.step_length AS DOUBLE PRECISION)
                            / CAST({{microseconds(d.start_time, d.end_time)}} AS DOUBLE PRECISION)
                    ELSE 1
                END
                <= c.largest_dose
                THEN NULL
            ELSE 1
        END
    ) AS dropped
FROM doses AS d
INNER JOIN dose_names AS n ON n.name = d.name
INNER JOIN stays AS s ON s.stay_id = d.stay_id
INNER JOIN table_stays AS t ON t.stay_id = s.stay_id
INNER JOIN observed AS o ON o.stay_id = s.stay_id
CROSS JOIN chosen AS c
CROSS JOIN (SELECT max(ends - begins) AS step_length FROM grid) AS l
WHERE
    {{microseconds(s.time_zero, d.start_time)}} < o.seen_until
    AND (
        d.end_time > s.time_zero
        OR (coalesce(d.end_time, d.start_time) <= d.start_time AND d.start_time >= s.time_zero)
    )
GROUP BY d.name
