-- One row per crystalloid given, in ml. Saline, Ringer's, dextrose and their mixtures.
--
-- Rewritten rows are void: others stand in their place. A solution that a drug was mixed into is no treatment with fluid.
SELECT
    e.stay_id,
    'crystalloid' AS name,
    e.starttime AS start_time,
    e.endtime AS end_time,
    CASE lower(e.amountuom)
        WHEN 'ml' THEN CAST(e.amount AS DOUBLE PRECISION)
        WHEN 'l' THEN CAST(e.amount AS DOUBLE PRECISION) * 1000.0
    END AS amount
FROM source_inputevents AS e
INNER JOIN stays AS s ON s.stay_id = e.stay_id
WHERE
    e.itemid IN (
        225158, 225828, 225944, 225797, 225159, 225823, 225825, 225827, 225941, 226089
    )
    AND e.statusdescription IS DISTINCT FROM 'Rewritten'
    AND e.ordercomponenttypedescription IS DISTINCT FROM 'Mixed solution'
