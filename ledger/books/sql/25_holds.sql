-- Who held which unit, how it was with the task, and until when it was being cleaned.

-- State and cause of a piece, as `ledger.metering.rows` has them.
CREATE TYPE kind AS ENUM (
    'allocated running', 'allocated idle', 'allocated starting', 'allocated over',
    'allocated node-silent', 'allocated node-lost', 'allocated unhealthy',
    'allocated health-unknown', 'allocated quarantined', 'idle free', 'idle kept',
    'idle unpartitioned', 'unavailable cleaning', 'unavailable quarantined',
    'unavailable unhealthy', 'unavailable maintenance', 'unavailable draining',
    'unavailable node-silent', 'unavailable node-lost', 'unavailable registering',
    'unavailable settling', 'unavailable repartition', 'unknown unheard',
    'unknown health-unknown', 'absent missing', 'absent held'
);

CREATE TABLE idles AS
SELECT grants.l, k, t, since_us,
       coalesce(lead(k) OVER (PARTITION BY grants.l ORDER BY k, n), 9223372036854775807) AS until_k
FROM rare JOIN grants USING (c, lease) WHERE type = 'lease.idle';

-- Places kept for requests that are not granted yet. ``o`` names the request, below zero.
CREATE TABLE kept AS
WITH places AS (
    SELECT c, k, n, t, request, unnest(units) AS unit FROM rare WHERE type = 'request.reserved'
),
ends_of AS (
    SELECT c, k, n, t, request FROM rare WHERE type = 'request.unreserved'
    UNION ALL
    SELECT c, k, e.n, t, e.request
    FROM (
        SELECT c, k, t, unnest(finished) AS e FROM src
        WHERE finished IS NOT NULL AND (SELECT count(*) FROM places) > 0
        UNION ALL
        SELECT c, k, t, {'n': g.n, 'request': g.request} FROM (
            SELECT c, k, t, unnest(granted) AS g FROM src
            WHERE granted IS NOT NULL AND (SELECT count(*) FROM places) > 0
        )
    ) WHERE (c, e.request) IN (SELECT (c, request) FROM places)
)
SELECT CAST(row_number() OVER () AS INTEGER) AS j, u.d, u.s, p.c, p.request, p.k AS k0, p.t AS t0,
       min(ends_of.k) AS k1, min(ends_of.t) AS t1,
       -CAST(dense_rank() OVER (ORDER BY p.c, p.request) AS INTEGER) AS o
FROM places AS p JOIN units AS u USING (c, unit)
     LEFT JOIN ends_of ON ends_of.c = p.c AND ends_of.request = p.request
                    AND (ends_of.k, ends_of.n) > (p.k, p.n)
GROUP BY u.d, u.s, p.c, p.request, p.k, p.t
-- Kept and granted by one record: it has no time.
HAVING min(ends_of.k) IS DISTINCT FROM p.k;

CREATE TABLE marks AS
SELECT c, lease, node,
       min(k) FILTER (type = 'lease.started') AS kstart,
       min(t) FILTER (type = 'lease.started') AS tstart,
       min(k) FILTER (type = 'part.ended') AS kpart, min(t) FILTER (type = 'part.ended') AS tpart
FROM (
    SELECT c, k, t, x.type, x.lease, x.node
    FROM (SELECT c, k, t, unnest(stepped) AS x FROM src WHERE stepped IS NOT NULL)
)
GROUP BY c, lease, node;

-- A unit is clean with the first answer to an order to clean it, if it is still on that node.
CREATE TABLE cleaned AS
WITH issued AS (
    SELECT c, o.* FROM (SELECT c, unnest(to_clean) AS o FROM src WHERE to_clean IS NOT NULL)
),
closed AS (
    SELECT c, k, t, a."order"
    FROM (SELECT c, k, t, unnest(answered) AS a FROM src WHERE answered IS NOT NULL)
),
answered AS (SELECT issued.*, closed.k, closed.t FROM issued JOIN closed USING (c, "order")),
each AS (
    SELECT c, lease, node, unit, k, t FROM answered WHERE units IS NULL
    UNION ALL
    SELECT c, lease, node, unnest(units), k, t FROM answered WHERE units IS NOT NULL
)
SELECT each.c, lease, u.d, u.s, min(k) AS kclean, min(t) AS tclean
FROM each JOIN units AS u USING (c, unit)
     JOIN (SELECT d, node, k AS from_k, until_k FROM device_facts) AS f
     ON f.d = u.d AND f.node = each.node AND f.from_k <= each.k AND each.k < f.until_k
GROUP BY each.c, lease, u.d, u.s;

-- When nothing but leases changes a device: it is in use, in one piece, and no place is kept.
CREATE TABLE calms AS
WITH spans AS (
    SELECT *, coalesce(lead(k) OVER (PARTITION BY d ORDER BY k), 9223372036854775807) AS until_k
    FROM conditions
)
SELECT d, k AS from_k, until_k, ab FROM spans
WHERE out IS NULL AND NOT gone AND mig IS NOT TRUE
      AND d NOT IN (SELECT d FROM slices WHERE d IS NOT NULL UNION SELECT d FROM kept);

-- One row a unit of a lease. ``milli`` is of a whole device or share; a slice has its own.
-- ``plain`` is a lease of a whole device that takes its usual course: it is granted when the
-- one before it is cleaned, starts, ends and is cleaned before the next, and nothing else
-- happens to the device until then. What the device is meanwhile follows from the lease alone.
CREATE TABLE held_units AS
WITH each AS (
    SELECT l, c, lease, milli, priced_as, k0, t0, unit, node FROM grants WHERE units IS NULL
    UNION ALL
    SELECT l, c, lease, milli, priced_as, k0, t0, unnest(units), unnest(nodes) FROM grants
    WHERE units IS NOT NULL
),
held AS (
    SELECT g.l, u.d, u.s, g.k0, g.t0, m.kstart, m.tstart, m.kpart, m.tpart, e.kend, e.tend,
           e.held_us, w.kclean, w.tclean, g.milli, g.priced_as, q.ab, q.until_k, known_us,
           coalesce(
               u.s = 0 AND g.milli = 1000 AND y.l IS NULL AND kpart IS NOT DISTINCT FROM kend
               AND k0 <= coalesce(kstart, k0) AND k0 <= coalesce(kend, k0)
               AND (kstart IS NULL OR kend IS NULL OR kstart < kend)
               AND (kclean IS NULL OR kend < kclean), false) AS usual
    FROM each AS g JOIN units AS u USING (c, unit) JOIN devices USING (d) JOIN known USING (p)
         LEFT JOIN ends AS e ON e.c = g.c AND e.lease = g.lease
         LEFT JOIN marks AS m ON m.c = g.c AND m.lease = g.lease AND m.node = g.node
         LEFT JOIN cleaned AS w ON w.c = g.c AND w.lease = g.lease AND w.d = u.d AND w.s = u.s
         LEFT JOIN calms AS q ON q.d = u.d AND q.from_k <= g.k0 AND g.k0 < q.until_k
         LEFT JOIN (SELECT DISTINCT l FROM idles) AS y ON y.l = g.l
),
turns AS (
    SELECT *, lead(k0) OVER each AS next_k, lead(t0) OVER each AS next_t,
           coalesce(max(coalesce(kclean, 9223372036854775807)) OVER (
                        PARTITION BY d ORDER BY k0, l
                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) <= k0, true) AS follows
    FROM held WINDOW each AS (PARTITION BY d ORDER BY k0, l)
)
SELECT * EXCLUDE (usual, until_k, next_k, next_t, known_us),
       coalesce(next_t, known_us) AS until_us,
       usual AND follows
       AND coalesce(CASE WHEN next_k IS NULL THEN until_k = 9223372036854775807
                         ELSE kclean <= next_k AND next_k < until_k END, false)
       AND t0 <= coalesce(tstart, t0)
       AND coalesce(tstart, t0) <= coalesce(tend, known_us)
       AND coalesce(tend, known_us) <= coalesce(tclean, known_us)
       AND coalesce(tclean, known_us) <= coalesce(next_t, known_us) AS plain
FROM turns;

DROP TABLE marks;

DROP TABLE cleaned;

-- A hold's number is that of its row.
CREATE VIEW holds AS SELECT CAST(rowid + 1 AS INTEGER) AS h, * FROM held_units WHERE NOT plain;

-- Plain ones, by the times that part them: granted, started, ended, cleaned, and what is next.
-- ``calm`` is one of which every part lasts a second or longer, as those before and after it:
-- in whole seconds each of its parts is there, and no second is torn among three.
CREATE TABLE turns AS
WITH bounds AS (
    SELECT l, d, k0, ab, priced_as, plain, t0 AS b0, coalesce(tstart, tend, until_us) AS b1,
           coalesce(tend, until_us) AS b2, coalesce(tclean, until_us) AS b3, until_us AS b4
    FROM held_units
),
judged AS (
    SELECT *, plain AND b4 > b0 AND (b1 = b0 OR b1 - b0 >= 1000000)
              AND (b2 = b1 OR b2 - b1 >= 1000000) AND (b3 = b2 OR b3 - b2 >= 1000000)
              AND (b4 = b3 OR b4 - b3 >= 1000000) AS even
    FROM bounds
)
SELECT l, d, k0, ab, priced_as, b0, b1, b2, b3, b4,
       NOT coalesce(lag(plain) OVER each, false) AS leads,
       coalesce(even AND lag(even) OVER each AND lead(even) OVER each, false) AS calm
FROM judged
WINDOW each AS (PARTITION BY d ORDER BY k0, l)
QUALIFY plain;

-- What each part of such a lease is of its device.
CREATE VIEW turn_parts AS
SELECT l, d, ab, priced_as, calm, part.t0, part.t1, part.o, part.kind
FROM (
    SELECT l, d, ab, priced_as, calm, unnest([
               {'t0': b0, 't1': b1, 'o': l, 'kind': CAST('allocated starting' AS kind)},
               {'t0': b1, 't1': b2, 'o': l, 'kind': CAST('allocated running' AS kind)},
               {'t0': b2, 't1': b3, 'o': l, 'kind': CAST('unavailable cleaning' AS kind)},
               {'t0': b3, 't1': b4, 'o': 0, 'kind': CAST('idle free' AS kind)}]) AS part
    FROM turns
) WHERE part.t0 < part.t1;
