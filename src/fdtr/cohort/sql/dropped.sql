-- One row per charted quantity, and one for doses: how many values the cohort's stays had, and how many were not plausible.
SELECT
    c.name,
    count(m.value) AS charted,
    count(CASE WHEN m.value BETWEEN c.lowest AND c.highest THEN NULL ELSE m.value END) AS dropped
FROM charted AS c
LEFT JOIN measurements AS m ON m.name = c.name
GROUP BY c.name
UNION ALL
SELECT
    'dose' AS name,
    count(*) AS charted,
    count(CASE WHEN d.amount > 0 AND d.amount <= c.largest_dose THEN NULL ELSE 1 END) AS dropped
FROM doses AS d
INNER JOIN dose_names AS n ON n.name = d.name
CROSS JOIN chosen AS c
