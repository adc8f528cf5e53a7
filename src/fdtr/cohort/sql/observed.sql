-- One row per stay: when the patient left and died, and until when the stay is seen; in microseconds from time zero.
--
-- What happens after death, after leaving or after the last step belongs to no step.
SELECT
    t.*,
    least(
        t.window_end, coalesce(t.left_at, t.window_end), coalesce(t.died_at, t.window_end)
    ) AS seen_until
FROM (
    SELECT
        s.stay_id,
        s.patient_id,
        s.site,
        {{microseconds(s.time_zero, s.out_time)}} AS left_at,
        {{microseconds(s.time_zero, s.death_time)}} AS died_at,
        c.window_end
    FROM stays AS s
    CROSS JOIN limits AS c
) AS t
