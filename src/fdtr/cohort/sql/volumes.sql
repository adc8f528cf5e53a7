-- One row per stay and step with a dose: the volume given in the step, in ml.
--
-- A dose is spread evenly over its interval, and each step gets the part that lies within it. A bolus, which takes no
-- time, belongs to the step that begins at its instant; so does a dose of which no end is charted. What would have flowed
-- after the patient left or died does not count. Parts are added in whole picolitres: sums of whole numbers do not
-- depend on their order, so that every engine gives the same volume to the last bit.
WITH placed AS (
    SELECT
        d.stay_id,
        CAST(d.amount AS DOUBLE PRECISION) AS amount,
        {{microseconds(s.time_zero, d.start_time)}} AS started,
        coalesce({{microseconds(s.time_zero, d.end_time)}}, {{microseconds(s.time_zero, d.start_time)}}) AS ended,
        o.seen_until
    FROM doses AS d
    INNER JOIN stays AS s ON s.stay_id = d.stay_id
    INNER JOIN observed AS o ON o.stay_id = d.stay_id
    INNER JOIN dose_names AS n ON n.name = d.name
    WHERE d.amount > 0
),

-- What a step's time can hold of a dose is asked for its size: a modest rate that is held for a day is no error.
plausible AS (
    SELECT p.*
    FROM placed AS p
    CROSS JOIN (SELECT max(ends - begins) AS step_length FROM grid) AS l
    WHERE
        p.amount
        * CASE
            WHEN p.ended - p.started > l.step_length
                THEN CAST(l.step_length AS DOUBLE PRECISION) / CAST(p.ended - p.started AS DOUBLE PRECISION)
            ELSE 1
        END
        <= (SELECT largest_dose FROM chosen)
),

parts AS (
    SELECT
        p.stay_id,
        g.step,
        CASE
            WHEN p.ended <= p.started THEN p.amount
            ELSE
                p.amount
                * CAST(least(p.ended, g.ends, p.seen_until) - greatest(p.started, g.begins) AS DOUBLE PRECISION)
                / CAST(p.ended - p.started AS DOUBLE PRECISION)
        END AS part
    FROM plausible AS p
    INNER JOIN grid AS g
        ON
            p.started < least(g.ends, p.seen_until)
            AND g.begins < p.seen_until
            AND (p.ended > g.begins OR (p.ended <= p.started AND p.started >= g.begins))
)

SELECT
    stay_id,
    step,
    CAST(sum(CAST(floor(part * 1000000000.0 + 0.5) AS BIGINT)) AS DOUBLE PRECISION) / 1000000000.0 AS volume
FROM parts
GROUP BY stay_id, step
