-- One row per ICU stay with Sepsis-3: when infection was suspected. Source: mimic-code's derived table `sepsis3`.
SELECT stay_id, min(suspected_infection_time) AS onset
FROM source_sepsis3
WHERE sepsis3
GROUP BY stay_id
