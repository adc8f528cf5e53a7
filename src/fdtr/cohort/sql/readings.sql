-- One row per stay, step boundary and charted quantity: the last plausible value at or before the boundary.
--
-- Boundary h is where step h begins and step h − 1 ends. A value charted within a step is known from that step's end on,
-- so that no state has seen what the treatment of its own step did. A value older than its look-back counts as missing.
-- Of several at the same instant the lowest is taken, so that every engine takes the same one.
WITH placed AS (
    SELECT
        m.stay_id,
        m.name,
        CAST(m.value AS DOUBLE PRECISION) AS value,
        {{microseconds(s.time_zero, m.time)}} AS moment
    FROM measurements AS m
    INNER JOIN stays AS s ON s.stay_id = m.stay_id
    INNER JOIN charted AS c ON c.name = m.name
    WHERE m.value BETWEEN c.lowest AND c.highest
),

-- One row per stay, quantity and boundary from which on a value is known: the last of those of one step.
known AS (
    SELECT stay_id, name, value, moment, step, look_back
    FROM (
        SELECT
            p.*,
            c.look_back,
            row_number() OVER (
                PARTITION BY
                    p.stay_id,
                    p.name,
                    greatest(0.0, ceil(CAST(p.moment AS DOUBLE PRECISION) / CAST(c.step_length AS DOUBLE PRECISION)))
                ORDER BY p.moment DESC, p.value ASC
            ) AS latest,
            CAST(
                greatest(0.0, ceil(CAST(p.moment AS DOUBLE PRECISION) / CAST(c.step_length AS DOUBLE PRECISION))) AS BIGINT
            ) AS step
        FROM placed AS p
        INNER JOIN charted AS c ON c.name = p.name
        WHERE p.moment >= -c.look_back AND p.moment <= c.window_end
    ) AS ranked
    WHERE latest = 1
)

SELECT stay_id, step, name, value
FROM (
    SELECT
        k.stay_id,
        g.step,
        k.name,
        k.value,
        row_number() OVER (PARTITION BY k.stay_id, g.step, k.name ORDER BY k.step DESC) AS latest
    FROM known AS k
    INNER JOIN grid AS g ON g.step >= k.step AND g.begins - k.moment <= k.look_back
) AS carried
WHERE latest = 1
