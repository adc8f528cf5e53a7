-- One row per charted value of an item that the settings name, in their unit: value × factor + shift.
SELECT
    e.stay_id,
    e.charttime AS time,
    i.name,
    CAST(e.valuenum AS DOUBLE PRECISION) * i.factor + i.shift AS value
FROM source_chartevents AS e
INNER JOIN stays AS s ON s.stay_id = e.stay_id
INNER JOIN charted_items AS i ON i.itemid = e.itemid AND i.source = 'chartevents'
INNER JOIN charted AS q ON q.name = i.name
WHERE
    e.valuenum IS NOT NULL
    AND {{microseconds(s.time_zero, e.charttime)}} BETWEEN -q.look_back AND q.window_end
