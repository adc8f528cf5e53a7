-- One row per charted body temperature, in °C: charted in °F (223761) or °C (223762).
SELECT
    e.stay_id,
    e.charttime AS time,
    'temperature' AS name,
    CASE e.itemid
        WHEN 223761 THEN (CAST(e.valuenum AS DOUBLE PRECISION) - 32.0) / 1.8
        ELSE CAST(e.valuenum AS DOUBLE PRECISION)
    END AS value
FROM source_chartevents AS e
INNER JOIN stays AS s ON s.stay_id = e.stay_id
INNER JOIN charted AS q ON q.name = 'temperature'
WHERE
    e.itemid IN (223761, 223762)
    AND e.valuenum IS NOT NULL
    AND {{microseconds(s.time_zero, e.charttime)}} BETWEEN -q.look_back AND q.window_end
