-- One row per crystalloid given, in ml: saline 0.9% (225158) and 0.45% (225159), Ringer's lactate (225828), dextrose 5% in
-- saline or Ringer's (225823, 225825, 225827, 225941), sterile water (225944), free water (225797), piggyback (226089).
--
-- The choice is ours. Water resuscitates nobody, and piggyback bags carry drugs: the setting not_fluids leaves items out.
-- Dextrose 5% in water is not among them.
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
    AND e.itemid NOT IN (SELECT n.itemid FROM not_fluids AS n)
