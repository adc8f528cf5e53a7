-- One row per stay of the cohort, with the unit's share of all patients' time, and the time that charts are read for.
WITH units AS (
    SELECT
        site,
        CAST(sum({{microseconds(in_time, out_time)}}) AS DOUBLE PRECISION)
        / CAST((SELECT sum({{microseconds(in_time, out_time)}}) FROM icu_stays WHERE timed = 1) AS DOUBLE PRECISION) AS flow
    FROM icu_stays
    WHERE timed = 1
    GROUP BY site
)

SELECT
    i.stay_id,
    i.hospitalization_id,
    i.patient_id,
    i.site,
    i.time_zero,
    i.out_time,
    i.death_time,
    i.charted_death,
    i.expired,
    i.discharge_time,
    i.no_icu,
    u.flow,
    i.time_zero - to_microseconds(o.look_back) AS read_from,
    i.time_zero + to_microseconds(o.window_end) AS read_until
FROM cohort AS i
INNER JOIN units AS u ON u.site = i.site
CROSS JOIN clif_options AS o
