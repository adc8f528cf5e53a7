-- One row per dose of a counted kind: when it was given, in microseconds from time zero, and whether it is plausible.
--
-- A dose of which no end is charted ends when it starts. Its size is judged by the part that a step's time can hold: a
-- modest rate that is held for a day is no error.
SELECT
    t.*,
    CASE
        WHEN
            t.amount > 0
            AND t.amount
            * CASE
                WHEN t.ended - t.started > l.step_length
                    THEN CAST(l.step_length AS DOUBLE PRECISION) / CAST(t.ended - t.started AS DOUBLE PRECISION)
                ELSE 1
            END
            <= l.largest_dose
            THEN 1
        ELSE 0
    END AS plausible
FROM (
    SELECT
        d.stay_id,
        d.name,
        CAST(d.amount AS DOUBLE PRECISION) AS amount,
        {{microseconds(s.time_zero, d.start_time)}} AS started,
        coalesce({{microseconds(s.time_zero, d.end_time)}}, {{microseconds(s.time_zero, d.start_time)}}) AS ended,
        o.seen_until
    FROM doses AS d
    INNER JOIN stays AS s ON s.stay_id = d.stay_id
    INNER JOIN observed AS o ON o.stay_id = d.stay_id
    INNER JOIN dose_names AS n ON n.name = d.name
) AS t
CROSS JOIN limits AS l
