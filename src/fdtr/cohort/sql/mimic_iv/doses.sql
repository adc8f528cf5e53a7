-- One row per crystalloid or colloid given, in ml: the items of fluid_items, which are those of FLUIDS in
-- mimic_iv_settings.py without those that the setting not_fluids leaves out.
--
-- Rewritten rows are void: others stand in their place. A solution that a drug was mixed into is no treatment with fluid.
SELECT
    e.stay_id,
    f.name,
    e.starttime AS start_time,
    e.endtime AS end_time,
    CASE lower(e.amountuom)
        WHEN 'ml' THEN CAST(e.amount AS DOUBLE PRECISION)
        WHEN 'l' THEN CAST(e.amount AS DOUBLE PRECISION) * 1000.0
    END AS amount
FROM source_inputevents AS e
INNER JOIN stays AS s ON s.stay_id = e.stay_id
INNER JOIN fluid_items AS f ON f.itemid = e.itemid
WHERE
    e.statusdescription IS DISTINCT FROM 'Rewritten'
    AND e.ordercomponenttypedescription IS DISTINCT FROM 'Mixed solution'
