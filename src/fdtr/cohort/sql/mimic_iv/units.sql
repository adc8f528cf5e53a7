-- One row per care unit: whether it is not an intensive care unit, and its share of all patients' time in all units.
--
-- Over every stay of the database, not the cohort's alone: it describes the unit. Time is added in whole microseconds. A
-- stay without a time of leaving adds none; the share of a unit in which no stay has one is not known.
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
    CAST(sum(spent) AS DOUBLE PRECISION) / CAST(sum(sum(spent)) OVER () AS DOUBLE PRECISION) AS flow
FROM (
    SELECT
        first_careunit,
        CASE WHEN outtime > intime THEN {{microseconds(intime, outtime)}} END AS spent
    FROM source_icustays
    WHERE first_careunit IS NOT NULL
) AS timed
GROUP BY first_careunit
