-- One row per entry of a fluid in the medication tables: a rate that was set, in ml an hour, or a volume that was given.
--
-- An entry may stand under several categories (5% dextrose under two); it is one entry. `amount` is NULL where the unit
-- is no volume. A stop sets the rate to 0; what was not given is no entry. A fluid that carries a drug is marked.
SELECT DISTINCT
    'rate' AS kind,
    m.hospitalization_id,
    coalesce(m.med_order_id, '') AS med_order,
    coalesce(m.med_name, m.med_category) AS product,
    f.name,
    m.admin_dttm AS time,
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
    coalesce(m.med_name, m.med_category) AS product,
    f.name,
    m.admin_dttm AS time,
    m.med_dose * u.ml AS amount,
    EXISTS (SELECT 1 FROM clif_carriers AS c WHERE position(c.words IN lower(m.med_route_name)) > 0) AS carrier
FROM clif_medication_admin_intermittent AS m
INNER JOIN clif_fluids AS f ON f.category = m.med_category
LEFT JOIN clif_volumes AS u ON u.kind = 'bolus' AND u.unit = m.med_dose_unit
WHERE
    m.admin_dttm IS NOT NULL
    AND m.mar_action_category <> 'not_given'
    AND m.hospitalization_id IN (SELECT hospitalization_id FROM stays)
