-- One row per stay and step: who, where, the volume given, the outcome before and after, and the state before.
--
-- Of the outcome there is the last value, however old, and the value within its look-back, which may be missing.
SELECT
    p.stay_id,
    p.step,
    CAST(p.stay_id AS VARCHAR) AS patient,
    CAST(p.patient_id AS VARCHAR) AS person,
    CAST(p.site AS VARCHAR) AS site,
    p.died,
    p.ending,
    v.volume,
    o.value AS last_before,
    n.value AS last_after,
    CASE WHEN o.fresh = 1 THEN o.value END AS outcome_before,
    CASE WHEN n.fresh = 1 THEN n.value END AS outcome_after,
    coalesce(n.measured, 0) AS measured,
    w.*
FROM presence AS p
LEFT JOIN volumes AS v ON v.stay_id = p.stay_id AND v.step = p.step
LEFT JOIN states AS w ON w.stay_of_state = p.stay_id AND w.step_of_state = p.step
LEFT JOIN readings AS o ON o.stay_id = p.stay_id AND o.step = p.step AND o.role = 'outcome'
LEFT JOIN readings AS n ON n.stay_id = p.stay_id AND n.step = p.step + 1 AND n.role = 'outcome'
ORDER BY p.stay_id, p.step
