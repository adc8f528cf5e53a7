-- One row per stay: locations of one hospitalization that the settings count, one right after the other.
--
-- A transfer from one unit to the next begins no new stay unless more than the settings' gap lies between them, nor
-- does a trip to a theatre and back, however long; time on a ward does. The site is the first unit. A location that
-- ends when it begins is none, unless there is no other. Where a beginning or an end is not charted, `timed` is 0: how
-- long the stay was is not known.
WITH placed AS (
    SELECT
        a.hospitalization_id,
        a.location_category,
        a.in_dttm,
        a.out_dttm,
        c.counted,
        CASE
            WHEN o.site IS NOT NULL THEN o.site
            WHEN o.unit = 'location_name' THEN a.location_name
            WHEN o.unit = 'location_type' THEN a.location_type
            WHEN o.unit = 'location_category' THEN a.location_category
            WHEN o.unit = 'hospital_id' THEN a.hospital_id
        END AS unit,
        CASE WHEN a.out_dttm > a.in_dttm THEN 1 ELSE 0 END AS timed,
        max(CASE WHEN a.out_dttm <= a.in_dttm THEN 0 ELSE c.counted END) OVER (
            PARTITION BY a.hospitalization_id
        ) AS others
    FROM clif_adt AS a
    INNER JOIN clif_locations AS c ON c.category = a.location_category
    CROSS JOIN clif_options AS o
),

-- Locations may overlap: what counts is the latest end so far.
followed AS (
    SELECT
        *,
        max(coalesce(out_dttm, in_dttm)) OVER (
            PARTITION BY hospitalization_id ORDER BY in_dttm, out_dttm, unit
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS there_until
    FROM placed
    WHERE timed = 1 OR (counted = 1 AND (others = 0 OR out_dttm IS NULL OR in_dttm IS NULL))
),

chained AS (
    SELECT
        f.*,
        sum(CASE WHEN {{microseconds(f.there_until, f.in_dttm)}} <= o.gap THEN 0 ELSE 1 END) OVER (
            PARTITION BY f.hospitalization_id ORDER BY f.in_dttm, f.out_dttm, f.unit
        ) AS chain
    FROM followed AS f
    CROSS JOIN clif_options AS o
),

-- Trips only join what lies before and after them: they begin no stay and end none.
numbered AS (
    SELECT *, dense_rank() OVER (PARTITION BY hospitalization_id ORDER BY chain) AS number
    FROM chained
    WHERE counted = 1
),

ranked AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY hospitalization_id, number ORDER BY in_dttm, out_dttm, unit) AS place
    FROM numbered
),

listed AS (
    SELECT DISTINCT d.hospitalization_id
    FROM clif_hospital_diagnosis AS d
    INNER JOIN clif_codes AS l ON starts_with(replace(upper(d.diagnosis_code), '.', ''), l.code)
),

-- Everywhere in the hospital.
gone AS (
    SELECT hospitalization_id, max(out_dttm) AS gone_time
    FROM clif_adt
    GROUP BY hospitalization_id
),

timed AS (
    SELECT
        r.hospitalization_id,
        r.number,
        h.patient_id,
        max(CASE WHEN r.place = 1 THEN r.unit END) AS site,
        max(CASE WHEN r.place = 1 AND r.location_category <> 'icu' THEN 1 ELSE 0 END) AS no_icu,
        min(r.timed) AS timed,
        min(r.in_dttm) AS in_time,
        max(r.out_dttm) AS out_time,
        min(h.admission_dttm) AS admission_time,
        min(t.onset) AS onset,
        min(p.death_dttm) AS charted_death,
        max(CASE WHEN h.discharge_category = 'expired' THEN 1 ELSE 0 END) AS expired,
        max(coalesce(h.discharge_dttm, g.gone_time)) AS discharge_time,
        max(h.age_at_admission) AS age,
        max(CASE WHEN l.hospitalization_id IS NULL THEN 0 ELSE 1 END) AS listed
    FROM ranked AS r
    LEFT JOIN clif_hospitalization AS h ON h.hospitalization_id = r.hospitalization_id
    LEFT JOIN clif_patient AS p ON p.patient_id = h.patient_id
    LEFT JOIN listed AS l ON l.hospitalization_id = r.hospitalization_id
    LEFT JOIN gone AS g ON g.hospitalization_id = r.hospitalization_id
    LEFT JOIN clif_onsets AS t ON t.hospitalization_id = r.hospitalization_id
    GROUP BY r.hospitalization_id, r.number, h.patient_id
),

-- Step 0 begins with the unit, with the hospital, or with an onset that the user lists if that is later than the unit;
-- and later by the settings' delay. Hospital admission begins only the first stay in the hospital, an onset the first
-- one that is not over by then: `begins` is 1.
begun AS (
    SELECT
        t.*,
        CASE o.begin
            WHEN 'unit' THEN t.in_time
            WHEN 'hospital' THEN CASE WHEN t.admission_time IS NOT NULL THEN least(t.admission_time, t.in_time) END
            WHEN 'onset' THEN CASE WHEN t.onset IS NOT NULL THEN greatest(t.onset, t.in_time) END
        END + to_microseconds(o.delay) AS time_zero,
        CASE o.begin
            WHEN 'unit' THEN 1
            WHEN 'hospital' THEN CASE WHEN t.number = 1 AND t.admission_time IS NOT NULL THEN 1 ELSE 0 END
            WHEN 'onset'
                THEN CASE
                    WHEN
                        t.out_time > t.onset
                        AND row_number() OVER (
                            PARTITION BY t.hospitalization_id, t.out_time > t.onset ORDER BY t.number
                        ) = 1
                        THEN 1
                    ELSE 0
                END
        END AS begins
    FROM timed AS t
    CROSS JOIN clif_options AS o
),

-- Who expired without a time of death died when the hospitalization ended, and not before the stay did: some sites chart
-- only the date of a discharge. A death on the day of time zero, at midnight, is a date without a time: it means the
-- end of that day, or of the stay if that is earlier. The day is a local one, of the session's time zone. Deaths after
-- the last step are none of the stay's: no later rule looks at them.
ended AS (
    SELECT
        *,
        CASE
            WHEN date_trunc('day', time_zero AT TIME ZONE 'UTC') = charted_death AT TIME ZONE 'UTC'
                THEN least(charted_death + INTERVAL 1 DAY, out_time)
            WHEN charted_death IS NOT NULL THEN charted_death
            WHEN expired = 1 THEN greatest(discharge_time, out_time)
        END AS death_time
    FROM begun
)

SELECT
    hospitalization_id || '-' || CAST(number AS VARCHAR) AS stay_id,
    hospitalization_id,
    patient_id,
    site,
    no_icu,
    timed,
    in_time,
    out_time,
    time_zero,
    charted_death,
    death_time,
    expired,
    discharge_time,
    age,
    listed,
    begins,
    row_number() OVER (PARTITION BY patient_id ORDER BY begins DESC, in_time, hospitalization_id, number) AS place
FROM ended
