-- One row per reason and name: entries of the cohort's hospitalizations that no relation holds, and how many.
SELECT 'result in another unit' AS reason, c.name, count(*) AS entries
FROM clif_labs AS l
INNER JOIN clif_charted AS c ON c.category = l.lab_category AND c.source = 'labs'
LEFT JOIN clif_units AS u ON u.category = c.category AND u.unit = l.reference_unit
WHERE
    l.lab_value_numeric IS NOT NULL
    AND u.unit IS NULL
    AND coalesce(l.reference_unit, '') <> ''
    AND l.hospitalization_id IN (SELECT hospitalization_id FROM stays)
GROUP BY c.name
UNION ALL
SELECT 'fluid in a unit that is no volume' AS reason, name, count(*) AS entries
FROM entries
WHERE amount IS NULL AND NOT carrier
GROUP BY name
UNION ALL
SELECT 'fluid that carries a drug' AS reason, name, count(*) AS entries
FROM entries
WHERE carrier AND amount > 0
GROUP BY name
UNION ALL
SELECT 'rate with nothing charted after it' AS reason, name, count(*) AS entries
FROM held
WHERE rate > 0 AND end_time IS NULL
GROUP BY name
ORDER BY reason, name
