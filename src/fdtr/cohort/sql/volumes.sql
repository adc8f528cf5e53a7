-- One row per stay and step with a dose: the volume given in the step, in ml.
--
-- A dose is spread evenly over its interval, and each step gets the part that lies within it. A bolus, which takes no
-- time, belongs to the step that begins at its instant; so does a dose of which no end is charted. What would have flowed
-- after the patient left or died does not count. Parts are added in whole picolitres: sums of whole numbers do not
-- depend on their order, so that every engine gives the same volume to the last bit.
WITH parts AS (
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
    FROM timed_doses AS p
    INNER JOIN grid AS g
        ON
            p.started < least(g.ends, p.seen_until)
            AND g.begins < p.seen_until
            AND (p.ended > g.begins OR (p.ended <= p.started AND p.started >= g.begins))
    WHERE p.plausible = 1
)

SELECT
    stay_id,
    step,
    CAST(sum(CAST(floor(part * 1000000000.0 + 0.5) AS BIGINT)) AS DOUBLE PRECISION) / 1000000000.0 AS volume
FROM parts
GROUP BY stay_id, step
