-- One row per stay of the cohort, whose rules stand in mimic_iv.py.
--
-- Time zero is the onset of sepsis if the settings say so, the onset is known and it came after admission to the unit:
-- what is given before admission is not charted here. Otherwise time zero is admission.
SELECT
    c.stay_id,
    c.patient_id,
    c.site,
    CASE
        WHEN z.time_zero = 'onset' AND c.onset > c.in_time THEN CAST(c.onset AS TIMESTAMP)
        ELSE CAST(c.in_time AS TIMESTAMP)
    END AS time_zero,
    c.out_time,
    c.death_time,
    u.no_icu,
    u.flow
FROM cohort AS c
CROSS JOIN time_zero_rule AS z
LEFT JOIN units AS u ON u.site = c.site
