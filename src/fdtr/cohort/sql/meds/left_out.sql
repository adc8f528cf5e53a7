-- One row per reason and name: events of the cohort's patients that no relation holds, and how many.
SELECT 'event without a number' AS reason, name, count(*) AS entries
FROM events
WHERE
    role IN ('charted', 'rate', 'bolus')
    AND value IS NULL
    AND subject_id IN (SELECT subject_id FROM stays)
GROUP BY name
UNION ALL
SELECT 'rate with nothing charted after it' AS reason, name, count(*) AS entries
FROM held
WHERE rate > 0 AND end_time IS NULL AND subject_id IN (SELECT subject_id FROM stays)
GROUP BY name
ORDER BY reason, name
