-- What is wrong with a bill: a device's seconds are its time, each second once, all at a price.

CREATE VIEW found_bill AS
WITH billed AS (
    SELECT d, sum(CAST(milli AS HUGEINT) * (end_s - start_s)) * 1000000 AS milli_us
    FROM lines WHERE kind < CAST('absent missing' AS kind) GROUP BY d
),
metered AS (
    SELECT d, sum(CAST(milli AS HUGEINT) * greatest(
               0, least(t1, end_s * 1000000) - greatest(t0, start_s * 1000000))) AS milli_us
    FROM tiles, period WHERE kind < CAST('absent missing' AS kind) GROUP BY d
)
SELECT 'device ' || device || ' is billed for ' || coalesce(billed.milli_us, 0)
       || ' thousandths x us, it was there for ' || coalesce(metered.milli_us, 0) AS what
FROM devices LEFT JOIN billed USING (d) LEFT JOIN metered USING (d)
     LEFT JOIN (SELECT d, count(*) AS told FROM device_facts GROUP BY d) USING (d)
WHERE abs(coalesce(billed.milli_us, 0) - coalesce(metered.milli_us, 0)) >= 1000000000 * (told + 1)
UNION ALL
SELECT 'no price for ' || count(*) || ' lines' FROM lines WHERE r IS NULL HAVING count(*) > 0;
