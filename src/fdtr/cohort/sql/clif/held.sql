-- One row per entry that set a rate: until when it held, NULL where nothing of the order follows.
--
-- CLIF charts when a rate was set, not what flowed: a rate holds until the next entry of the same order, and no longer
-- than the settings say. Where an order was stopped and set again at the same instant, the stop came first.
WITH followed AS (
    SELECT
        *,
        lead(time) OVER (PARTITION BY hospitalization_id, med_order, product, name ORDER BY time, amount) AS next_time
    FROM entries
    WHERE kind = 'rate' AND NOT carrier
)

SELECT
    f.hospitalization_id,
    f.name,
    f.amount AS rate,
    f.time AS start_time,
    -- least() alone would skip the NULL of a last entry.
    CASE
        WHEN f.next_time IS NOT NULL
            THEN f.time + to_microseconds(least({{microseconds(f.time, f.next_time)}}, o.longest))
    END AS end_time
FROM followed AS f
CROSS JOIN clif_options AS o
