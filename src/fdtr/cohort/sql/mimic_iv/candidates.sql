-- One row per ICU stay of the database, with what the rules of the cohort ask of it.
--
-- Ages are as MIMIC-IV shifts them: the age in the anchor year, plus years since. Nobody is older than 91 there: that
-- stands for all above 89. The first stay is the first of the person in this database, septic or not.
SELECT
    i.stay_id,
    i.subject_id AS patient_id,
    i.first_careunit AS site,
    i.intime AS in_time,
    i.outtime AS out_time,
    a.deathtime AS death_time,
    s.onset,
    CASE WHEN p.subject_id IS NULL OR a.hadm_id IS NULL THEN 0 ELSE 1 END AS recorded,
    CASE WHEN s.stay_id IS NULL THEN 0 ELSE 1 END AS septic,
    CASE WHEN p.anchor_age + EXTRACT(YEAR FROM i.intime) - p.anchor_year >= 18 THEN 1 ELSE 0 END AS adult,
    least(91.0, CAST(p.anchor_age + EXTRACT(YEAR FROM i.intime) - p.anchor_year AS DOUBLE PRECISION)) AS age,
    row_number() OVER (PARTITION BY i.subject_id ORDER BY i.intime, i.stay_id) AS stay_number
FROM source_icustays AS i
LEFT JOIN source_patients AS p ON p.subject_id = i.subject_id
LEFT JOIN source_admissions AS a ON a.hadm_id = i.hadm_id
LEFT JOIN septic AS s ON s.stay_id = i.stay_id
