-- One row per stay and step: who, where, the volume given, the outcome before and after, and the state before.
SELECT
    p.stay_id,
    p.step,
    CAST(p.stay_id AS VARCHAR) AS patient,
    CAST(p.patient_id AS VARCHAR) AS person,
    CAST(p.site AS VARCHAR) AS site,
    p.died,
    p.ending,
    v.volume,
    o.value AS outcome_before,
    n.value AS outcome_after,
    w.*
FROM presence AS p
LEFT JOIN volumes AS v ON v.stay_id = p.stay_id AND v.step = p.step
LEFT JOIN states AS w ON w.state_of = p.stay_id AND w.state_at = p.step
LEFT JOIN readings AS o ON o.stay_id = p.stay_id AND o.step = p.step AND o.name = (SELECT outcome FROM chosen)
LEFT JOIN readings AS n ON n.stay_id = p.stay_id AND n.step = p.step + 1 AND n.name = (SELECT outcome FROM chosen)
ORDER BY p.stay_id, p.step
