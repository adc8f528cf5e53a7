-- One row per charted quantity: how many values there were in the cohort's stays, and how many were not plausible.
SELECT
    c.name,
    count(m.value) AS charted,
    count(CASE WHEN m.value BETWEEN c.lowest AND c.highest THEN NULL ELSE m.value END) AS dropped
FROM charted AS c
LEFT JOIN measurements AS m ON m.name = c.name
GROUP BY c.name
