-- One row per entry of a fluid in the medication tables: a rate that was set, in ml an hour, or a volume that was
-- given.
--
-- An entry may stand under several categories (5% dextrose under two); it is one entry. An order gives a bolus once at
-- an instant. Without an order, rows of one category that are alike are as many boluses: `copy` numbers them. `amount`
-- is NULL where the dose is not charted or its unit is no volume. A stop sets the rate to 0, and an entry that only
-- confirms an infusion sets none; what was not given is no entry. A fluid that carries a drug is marked.
SELECT DISTINCT
    'rate' AS kind,
    m.hospitalization_id,
    coalesce(m.med_order_id, '') AS med_order,
    coalesce(m.med_name, f.product) AS product,
    f.name,
    m.admin_dttm AS time,
    1 AS copy,
    m.med_dose IS NULL AS unstated,
    m.med_dose IS NULL AND m.mar_action_category IN ('verify', 'going') AS confirms,
    CASE WHEN m.mar_action_category = 'stop' THEN 0 ELSE m.med_dose * u.ml END AS amount,
    EXISTS (SELECT 1 FROM clif_carriers AS c WHERE position(c.words IN lower(m.med_route_name)) > 0) AS carrier
FROM clif_medication_admin_continuous AS m
INNER JOIN clif_fluids AS f ON f.category = m.med_category
LEFT JOIN clif_volumes AS u ON u.kind = 'rate' AND u.unit = m.med_dose_unit
WHERE m.admin_dttm IS NOT NULL AND m.hospitalization_id IN (SELECT hospitalization_id FROM stays)
UNION ALL
SELECT DISTINCT
    'bolus' AS kind,
    m.hospitalization_id,
    coalesce(m.med_order_id, '') AS med_order,
    coalesce(m.med_name, f.product) AS product,
    f.name,
    m.admin_dttm AS time,
    CASE
        WHEN m.med_order_id IS NULL
            THEN row_number() OVER (
                PARTITION BY
                    m.hospitalization_id, m.med_category, m.med_name, m.admin_dttm, m.med_dose * u.ml, m.med_route_name
            )
        ELSE 1
    END AS copy,
    m.med_dose IS NULL AS unstated,
    false AS confirms,
    m.med_dose * u.ml AS amount,
    EXISTS (SELECT 1 FROM clif_carriers AS c WHERE position(c.words IN lower(m.med_route_name)) > 0) AS carrier
FROM clif_medication_admin_intermittent AS m
INNER JOIN clif_fluids AS f ON f.category = m.med_category
LEFT JOIN clif_volumes AS u ON u.kind = 'bolus' AND u.unit = m.med_dose_unit
WHERE
    m.admin_dttm IS NOT NULL
    AND m.mar_action_category IS DISTINCT FROM 'not_given'
    AND m.hospitalization_id IN (SELECT hospitalization_id FROM stays)
