-- One row per stay: from an event that begins one to the first that ends it.
--
-- Where none ends it before the next begins, it lasts until then; the last one may not be over. Two beginnings at the
-- same instant are one. A death on the day of time zero, at midnight, is a date without a time: it means the end of
-- that day, or of the stay if that is earlier.
WITH began AS (
    SELECT subject_id, time, min(coalesce(o.site, unit)) AS site
    FROM events
    CROSS JOIN meds_options AS o
    WHERE role = 'begin'
    GROUP BY subject_id, time
),

followed AS (
    SELECT
        *,
        lead(time) OVER (PARTITION BY subject_id ORDER BY time) AS next_time,
        row_number() OVER (PARTITION BY subject_id ORDER BY time) AS place
    FROM began
),

ended AS (
    SELECT b.subject_id, b.place, min(e.time) AS out_time
    FROM followed AS b
    INNER JOIN events AS e ON e.subject_id = b.subject_id AND e.role = 'leave' AND e.time > b.time
    WHERE b.next_time IS NULL OR e.time <= b.next_time
    GROUP BY b.subject_id, b.place
),

lives AS (
    SELECT
        subject_id,
        min(CASE WHEN role = 'birth' THEN time END) AS birth_time,
        min(CASE WHEN role = 'death' THEN time END) AS death_time
    FROM events
    WHERE role IN ('birth', 'death')
    GROUP BY subject_id
),

timed AS (
    SELECT
        b.*,
        coalesce(e.out_time, b.next_time) AS out_time,
        l.birth_time,
        l.death_time AS charted_death
    FROM followed AS b
    LEFT JOIN ended AS e ON e.subject_id = b.subject_id AND e.place = b.place
    LEFT JOIN lives AS l ON l.subject_id = b.subject_id
)

SELECT
    CAST(subject_id AS VARCHAR) || '-' || CAST(place AS VARCHAR) AS stay_id,
    subject_id,
    CAST(subject_id AS VARCHAR) AS patient_id,
    site,
    time AS time_zero,
    out_time,
    charted_death,
    CASE
        -- least() skips the NULL of a stay that is not over.
        WHEN charted_death = date_trunc('day', time) THEN least(charted_death + INTERVAL 1 DAY, out_time)
        ELSE charted_death
    END AS death_time,
    date_sub('year', birth_time, time) AS age,
    place
FROM timed
