-- One row per measured hemoglobin, in g/dL: blood count (51222) or blood gas (50811).
--
-- By person and time: a sample taken before the patient reached the unit belongs to no stay, and counts.
SELECT s.stay_id, e.charttime AS time, 'hemoglobin' AS name, CAST(e.valuenum AS DOUBLE PRECISION) AS value
FROM source_labevents AS e
INNER JOIN stays AS s ON s.patient_id = e.subject_id
INNER JOIN charted AS q ON q.name = 'hemoglobin'
WHERE
    e.itemid IN (51222, 50811)
    AND e.valuenum IS NOT NULL
    AND {{microseconds(s.time_zero, e.charttime)}} BETWEEN -q.look_back AND q.window_end
