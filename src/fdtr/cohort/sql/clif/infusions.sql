-- One row per entry of an infusion: its rate, and when that ended; NULL if no entry of the order follows.
--
-- CLIF charts when a rate was set, not what flowed: a rate holds until the next entry of the same order, and no longer
-- than the settings say. An entry that only confirms the infusion goes on with the rate. Where an order was stopped and
-- set again at the same instant, the stop came first.
WITH ordered AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY hospitalization_id, med_order, product, name ORDER BY time, confirms, amount
        ) AS number
    FROM entries
    WHERE kind = 'rate' AND NOT carrier
),

followed AS (
    SELECT
        *,
        lead(time) OVER (PARTITION BY hospitalization_id, med_order, product, name ORDER BY number) AS next_time,
        max(CASE WHEN confirms THEN NULL ELSE number END) OVER (
            PARTITION BY hospitalization_id, med_order, product, name ORDER BY number
        ) AS set_by
    FROM ordered
),

rated AS (
    SELECT
        *,
        first_value(amount) OVER (
            PARTITION BY hospitalization_id, med_order, product, name, set_by ORDER BY number
        ) AS rate
    FROM followed
)

SELECT
    r.hospitalization_id,
    r.name,
    r.rate,
    r.confirms,
    r.time AS start_time,
    -- least() alone would skip the NULL of a last entry.
    CASE
        WHEN r.next_time IS NOT NULL
            THEN r.time + to_microseconds(least({{microseconds(r.time, r.next_time)}}, o.longest))
    END AS end_time
FROM rated AS r
CROSS JOIN clif_options AS o
