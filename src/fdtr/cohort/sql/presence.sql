-- One row per stay and step that begins while the patient is there; `ending` on the last row of a stay that ends early.
--
-- A stay ends at death or when the patient leaves, whichever is first. It ended by death where that came before the last
-- step would have been over, on a ward too, and otherwise by discharge. A stay that reaches its last step has no ending.
WITH timed AS (
    SELECT
        stay_id,
        patient_id,
        site,
        {{microseconds(time_zero, out_time)}} AS left_at,
        {{microseconds(time_zero, death_time)}} AS died_at
    FROM stays
),

present AS (
    SELECT
        t.*,
        g.step,
        g.ends,
        g.horizon,
        g.window_end,
        max(g.step) OVER (PARTITION BY t.stay_id) AS last_step
    FROM timed AS t
    INNER JOIN grid AS g
        ON
            g.step < g.horizon
            AND (t.left_at IS NULL OR g.begins < t.left_at)
            AND (t.died_at IS NULL OR g.begins < t.died_at)
)

SELECT
    stay_id,
    patient_id,
    site,
    step,
    CASE WHEN step = last_step AND died_at <= ends THEN 1 ELSE 0 END AS died,
    CASE
        WHEN step < last_step OR step = horizon - 1 THEN NULL
        WHEN died_at < window_end THEN 'death'
        ELSE 'discharge'
    END AS ending
FROM present
