-- One row per measured value of an item that the settings name, in their unit: value × factor + shift.
--
-- By person and time: a sample taken before the patient reached the unit belongs to no stay, and counts.
SELECT
    s.stay_id,
    e.charttime AS time,
    i.name,
    CAST(e.valuenum AS DOUBLE PRECISION) * i.factor + i.shift AS value
FROM source_labevents AS e
INNER JOIN stays AS s ON s.patient_id = e.subject_id
INNER JOIN charted_items AS i ON i.itemid = e.itemid AND i.source = 'labevents'
INNER JOIN charted AS q ON q.name = i.name
WHERE
    e.valuenum IS NOT NULL
    AND {{microseconds(s.time_zero, e.charttime)}} BETWEEN -q.look_back AND q.window_end
