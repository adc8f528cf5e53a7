-- One row per stay of the cohort, with the site's share of all patients' time, and the time that events are read for.
WITH sites AS (
    SELECT
        site,
        CAST(sum({{microseconds(time_zero, out_time)}}) AS DOUBLE PRECISION)
        / CAST((SELECT sum({{microseconds(time_zero, out_time)}}) FROM all_stays) AS DOUBLE PRECISION) AS flow
    FROM all_stays
    GROUP BY site
)

SELECT
    c.stay_id,
    c.subject_id,
    c.patient_id,
    c.site,
    c.time_zero,
    c.out_time,
    c.charted_death,
    c.death_time,
    s.flow,
    c.time_zero - to_microseconds(o.look_back) AS read_from,
    c.time_zero + to_microseconds(o.window_end) AS read_until
FROM cohort AS c
INNER JOIN sites AS s ON s.site = c.site
CROSS JOIN meds_options AS o
