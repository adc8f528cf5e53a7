-- One row per stay and step that begins while the patient is there; `ending` on the last row of a stay that ends early.
--
-- A stay ends at death or when the patient leaves, whichever is first. It ended by death where that came no later than the
-- end of the last step, on a ward too, and otherwise by discharge. A stay that reaches its last step has no ending.
WITH present AS (
    SELECT
        o.*,
        g.step,
        g.ends,
        g.horizon,
        max(g.step) OVER (PARTITION BY o.stay_id) AS last_step
    FROM observed AS o
    INNER JOIN grid AS g ON g.step < g.horizon AND g.begins < o.seen_until
)

SELECT
    stay_id,
    patient_id,
    site,
    step,
    CASE WHEN step = last_step AND died_at <= ends THEN 1 ELSE 0 END AS died,
    CASE
        WHEN step < last_step OR step = horizon - 1 THEN NULL
        WHEN died_at <= window_end THEN 'death'
        ELSE 'discharge'
    END AS ending
FROM present
