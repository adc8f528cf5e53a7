-- One row per use of a charted quantity, stay and step boundary: the last plausible value at or before the boundary.
--
-- Boundary h is where step h begins and step h − 1 ends. A value charted within a step is known from that step's end on,
-- so that no state has seen what the treatment of its own step did. `fresh` is 1 where the value is no older than its
-- look-back, and `measured` where it was charted, too, within the step that ends there. Of several at the same instant the
-- lowest is taken, so that every engine takes the same one.
WITH placed AS (
    SELECT
        m.stay_id,
        a.role,
        m.name,
        CAST(m.value AS DOUBLE PRECISION) AS value,
        {{microseconds(s.time_zero, m.time)}} AS moment,
        a.look_back,
        a.step_length,
        a.window_end
    FROM measurements AS m
    INNER JOIN stays AS s ON s.stay_id = m.stay_id
    INNER JOIN quantities AS a ON a.name = m.name
    WHERE m.value BETWEEN a.lowest AND a.highest
),

-- One row per use, stay and boundary from which on a value is known: the last of those of one step.
known AS (
    SELECT stay_id, role, name, value, moment, step, look_back
    FROM (
        SELECT
            p.*,
            row_number() OVER (
                PARTITION BY
                    p.stay_id,
                    p.role,
                    p.name,
                    greatest(0.0, ceil(CAST(p.moment AS DOUBLE PRECISION) / CAST(p.step_length AS DOUBLE PRECISION)))
                ORDER BY p.moment DESC, p.value ASC
            ) AS latest,
            CAST(
                greatest(0.0, ceil(CAST(p.moment AS DOUBLE PRECISION) / CAST(p.step_length AS DOUBLE PRECISION))) AS BIGINT
            ) AS step
        FROM placed AS p
        WHERE p.moment >= -p.look_back AND p.moment <= p.window_end
    ) AS ranked
    WHERE latest = 1
)

SELECT
    stay_id,
    step,
    role,
    name,
    value,
    CASE WHEN age <= look_back THEN 1 ELSE 0 END AS fresh,
    CASE WHEN age <= look_back AND known_from = step THEN 1 ELSE 0 END AS measured
FROM (
    SELECT
        k.stay_id,
        g.step,
        k.role,
        k.name,
        k.value,
        k.look_back,
        g.begins - k.moment AS age,
        k.step AS known_from,
        row_number() OVER (PARTITION BY k.stay_id, k.role, k.name, g.step ORDER BY k.step DESC) AS latest
    FROM known AS k
    INNER JOIN grid AS g ON g.step >= k.step
) AS carried
WHERE latest = 1
