-- What is wrong with a log: nothing, if the rules of the domain were kept.

CREATE VIEW found_duplicate AS
SELECT 'request ' || request || ' was received ' || count(*) || ' times' AS what
FROM requests GROUP BY c, request HAVING count(*) > 1
UNION ALL
SELECT 'lease ' || lease || ' was granted ' || count(DISTINCT k0) || ' times'
FROM grants GROUP BY c, lease HAVING count(DISTINCT k0) > 1
UNION ALL
SELECT 'lease ' || lease || ' ended ' || count(*) || ' times'
FROM ends GROUP BY c, lease HAVING count(*) > 1;

CREATE VIEW found_overlap AS
WITH shared AS (
    -- Where each lease follows on the end of all before it there is no more than one at a time.
    SELECT d, s, k0, kclean, l, CASE WHEN s = 0 THEN milli ELSE 1000 END AS more FROM held_units
    WHERE milli > 1000 OR d IN (SELECT d FROM held_units WHERE NOT follows)
),
turns AS (
    SELECT d, s, k0 AS k, 1 AS turn, l, more FROM shared
    UNION ALL
    SELECT d, s, kclean, 0, l, -more FROM shared WHERE kclean IS NOT NULL
),
sums AS (
    SELECT d, s, k, turn, l, sum(more) OVER (
               PARTITION BY d, s ORDER BY k, turn ROWS UNBOUNDED PRECEDING) AS milli
    FROM turns
)
SELECT 'lease ' || lease || ' brings ' || coalesce(slices.slice, devices.device) || ' to '
       || sums.milli || ' thousandths' AS what
FROM sums JOIN devices USING (d) LEFT JOIN slices USING (s) JOIN grants USING (l)
WHERE sums.milli > 1000 AND turn = 1;

CREATE VIEW found_held AS
SELECT DISTINCT 'lease ' || lease || ' lasted ' || (tend - h.t0) || ' us, its end says ' || held_us
       AS what
FROM held_units AS h JOIN grants USING (l) WHERE held_us IS DISTINCT FROM tend - h.t0 AND kend > 0
UNION ALL
SELECT 'lease ' || lease || ' ended and was never granted'
FROM ends ANTI JOIN grants USING (c, lease);

-- For each device: what its pieces sum to, and for how long it was there.
CREATE VIEW found_conservation AS
WITH parts AS (
    SELECT d, sum(CAST(milli AS HUGEINT) * (t1 - t0)) AS milli_us
    FROM tiles WHERE kind < CAST('absent missing' AS kind) GROUP BY d
),
spans AS (
    SELECT d, p, t, health, lead(t) OVER (PARTITION BY d ORDER BY k) AS until_us
    FROM device_facts JOIN devices USING (d)
),
there AS (
    SELECT d, sum(CAST(coalesce(until_us, known_us) - t AS HUGEINT)) * 1000 AS milli_us
    FROM spans JOIN known USING (p) WHERE health <> 'gone' GROUP BY d
)
SELECT 'device ' || device || ' was there for ' || coalesce(there.milli_us, 0)
       || ' thousandths x us, its parts sum to ' || coalesce(parts.milli_us, 0) AS what
FROM devices LEFT JOIN parts USING (d) LEFT JOIN there USING (d)
WHERE coalesce(parts.milli_us, 0) <> coalesce(there.milli_us, 0);
