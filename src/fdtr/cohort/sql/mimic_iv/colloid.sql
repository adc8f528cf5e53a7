-- One row per colloid given, in ml: albumin 5% (220864) and 25% (220862), hetastarch 6% (225174), dextran (225795, 225796).
--
-- The choice is ours; the setting not_fluids leaves items out.
-- Rewritten rows are void: others stand in their place. A solution that a drug was mixed into is no treatment with fluid.
SELECT
    e.stay_id,
    'colloid' AS name,
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
        220864, 220862, 225174, 225795, 225796
    )
    AND e.statusdescription IS DISTINCT FROM 'Rewritten'
    AND e.ordercomponenttypedescription IS DISTINCT FROM 'Mixed solution'
    AND e.itemid NOT IN (SELECT n.itemid FROM not_fluids AS n)
