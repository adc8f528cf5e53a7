-- One row per ICU stay on the user's own list; its onset is as listed, or not known.
SELECT stay_id, min(onset) AS onset
FROM listed
GROUP BY stay_id
