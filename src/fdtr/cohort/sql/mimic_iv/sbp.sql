-- One row per charted systolic blood pressure, in mmHg: by cuff (220179) or arterial line (220050, 225309).
SELECT e.stay_id, e.charttime AS time, 'sbp' AS name, CAST(e.valuenum AS DOUBLE PRECISION) AS value
FROM source_chartevents AS e
INNER JOIN stays AS s ON s.stay_id = e.stay_id
INNER JOIN charted AS q ON q.name = 'sbp'
WHERE
    e.itemid IN (220179, 220050, 225309)
    AND e.valuenum IS NOT NULL
    AND {{microseconds(s.time_zero, e.charttime)}} BETWEEN -q.look_back AND q.window_end
