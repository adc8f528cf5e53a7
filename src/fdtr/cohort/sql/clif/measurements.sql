-- One row per charted value of a stay: a vital sign or a laboratory result, in the unit of the settings.
--
-- CLIF fixes the units of vital signs. Results state theirs: known ones are converted, a result without one is taken as
-- CLIF's standard, and one in any other unit is left out. A result counts from when the sample was taken.
SELECT s.stay_id, v.recorded_dttm AS time, c.name, CAST(v.vital_value AS DOUBLE PRECISION) AS value
FROM clif_vitals AS v
INNER JOIN clif_charted AS c ON c.category = v.vital_category AND c.source = 'vitals'
INNER JOIN stays AS s ON s.hospitalization_id = v.hospitalization_id
WHERE v.vital_value IS NOT NULL AND v.recorded_dttm BETWEEN s.read_from AND s.read_until
UNION ALL
SELECT s.stay_id, l.lab_collect_dttm AS time, c.name, l.lab_value_numeric * coalesce(u.factor, 1) AS value
FROM clif_labs AS l
INNER JOIN clif_charted AS c ON c.category = l.lab_category AND c.source = 'labs'
INNER JOIN stays AS s ON s.hospitalization_id = l.hospitalization_id
LEFT JOIN clif_units AS u ON u.category = c.category AND u.unit = l.reference_unit
WHERE
    l.lab_value_numeric IS NOT NULL
    AND l.lab_collect_dttm BETWEEN s.read_from AND s.read_until
    AND (u.unit IS NOT NULL OR coalesce(l.reference_unit, '') = '')
