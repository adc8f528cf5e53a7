-- One row per stay: locations of one hospitalization that the settings count, one right after the other.
--
-- A transfer from one unit to the next begins no new stay unless more than the settings' gap lies between them; a trip
-- to a ward does. The site is the first unit. A location that ends when it begins is none, unless there is no other. Where
-- a beginning or an end is not charted, `timed` is 0: how long the stay was is not known.
WITH placed AS (
    SELECT
        a.hospitalization_id,
        a.location_category,
        a.in_dttm,
        a.out_dttm,
        CASE
            WHEN o.site IS NOT NULL THEN o.site
            WHEN o.unit = 'location_name' THEN a.location_name
            WHEN o.unit = 'location_type' THEN a.location_type
            WHEN o.unit = 'location_category' THEN a.location_category
            WHEN o.unit = 'hospital_id' THEN a.hospital_id
        END AS unit,
        CASE WHEN a.out_dttm > a.in_dttm THEN 1 ELSE 0 END AS timed,
        max(CASE WHEN a.out_dttm <= a.in_dttm THEN 0 ELSE 1 END) OVER (PARTITION BY a.hospitalization_id) AS others
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
    WHERE others = 0 OR out_dttm > in_dttm OR out_dttm IS NULL OR in_dttm IS NULL
),

numbered AS (
    SELECT
        f.*,
        sum(CASE WHEN {{microseconds(f.there_until, f.in_dttm)}} <= o.gap THEN 0 ELSE 1 END) OVER (
            PARTITION BY f.hospitalization_id ORDER BY f.in_dttm, f.out_dttm, f.unit
        ) AS number
    FROM followed AS f
    CROSS JOIN clif_options AS o
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
)

SELECT
    r.hospitalization_id || '-' || CAST(r.number AS VARCHAR) AS stay_id,
    r.hospitalization_id,
    h.patient_id,
    max(CASE WHEN r.place = 1 THEN r.unit END) AS site,
    max(CASE WHEN r.place = 1 AND r.location_category <> 'icu' THEN 1 ELSE 0 END) AS no_icu,
    min(r.timed) AS timed,
    min(r.in_dttm) AS time_zero,
    max(r.out_dttm) AS out_time,
    -- A death long after the hospitalization is none of the stay's.
    max(CASE WHEN h.discharge_category = 'expired' THEN p.death_dttm END) AS death_time,
    max(h.age_at_admission) AS age,
    max(CASE WHEN l.hospitalization_id IS NULL THEN 0 ELSE 1 END) AS listed,
    row_number() OVER (PARTITION BY h.patient_id ORDER BY min(r.in_dttm), r.hospitalization_id, r.number) AS place
FROM ranked AS r
LEFT JOIN clif_hospitalization AS h ON h.hospitalization_id = r.hospitalization_id
LEFT JOIN clif_patient AS p ON p.patient_id = h.patient_id
LEFT JOIN listed AS l ON l.hospitalization_id = r.hospitalization_id
GROUP BY r.hospitalization_id, r.number, h.patient_id
