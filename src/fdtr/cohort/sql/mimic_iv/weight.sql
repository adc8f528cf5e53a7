-- One row per charted body weight, in kg: on admission (226512) and daily (224639).
SELECT e.stay_id, e.charttime AS time, 'weight' AS name, CAST(e.valuenum AS DOUBLE PRECISION) AS value
FROM source_chartevents AS e
INNER JOIN stays AS s ON s.stay_id = e.stay_id
INNER JOIN charted AS q ON q.name = 'weight'
WHERE
    e.itemid IN (226512, 224639)
    AND e.valuenum IS NOT NULL
    AND {{microseconds(s.time_zero, e.charttime)}} BETWEEN -q.look_back AND q.window_end
