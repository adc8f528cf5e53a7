-- One row: how many ICU stays there are, and how many meet the rules of the cohort, one rule after the other.
SELECT
    count(*) AS found,
    count(CASE WHEN adult = 1 THEN 1 END) AS adults,
    count(CASE WHEN adult = 1 AND septic = 1 THEN 1 END) AS with_sepsis,
    count(CASE WHEN adult = 1 AND septic = 1 AND stay_number = 1 THEN 1 END) AS first_stays
FROM candidates
