-- One row per care unit: whether it is not an intensive care unit, and its share of all patients' time in all units.
--
-- Over every stay of the database, not the cohort's alone: it describes the unit. Time is added in whole microseconds. A
-- stay without a time of leaving adds none.
SELECT
    first_careunit AS site,
    CAST(
        CASE
            WHEN first_careunit LIKE '%ICU%' THEN 0
            WHEN first_careunit LIKE '%Intensive Care%' THEN 0
            WHEN first_careunit LIKE '%Coronary Care%' THEN 0
            ELSE 1
        END AS DOUBLE PRECISION
    ) AS no_icu,
    coalesce(
        CAST(sum(spent) AS DOUBLE PRECISION) / CAST(nullif(sum(sum(spent)) OVER (), 0) AS DOUBLE PRECISION), 0.0
    ) AS flow
FROM (
    SELECT
        first_careunit,
        CASE WHEN outtime > intime THEN {{microseconds(intime, outtime)}} ELSE 0 END AS spent
    FROM source_icustays
    WHERE first_careunit IS NOT NULL
) AS timed
GROUP BY first_careunit
