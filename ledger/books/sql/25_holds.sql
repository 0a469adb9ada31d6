-- Who held which unit, how it was with the task, and until when it was being cleaned.

CREATE TABLE marks AS
SELECT c, lease, node,
       min(k) FILTER (type = 'lease.started') AS kstart,
       min(t) FILTER (type = 'lease.started') AS tstart,
       min(k) FILTER (type = 'part.ended') AS kpart, min(t) FILTER (type = 'part.ended') AS tpart
FROM (
    SELECT c, k, t, unnest(event_type) AS type, unnest(event_lease) AS lease,
           unnest(event_node) AS node
    FROM src
) WHERE type IN ('lease.started', 'part.ended')
GROUP BY c, lease, node;

-- Answers to orders to clean: a unit is clean with the first, if it is still on that node.
CREATE TABLE cleaned AS
WITH issued AS (
    SELECT c, lease, "order", node, unit, units
    FROM (
        SELECT c, unnest(event_type) AS type, unnest(event_kind) AS kind,
               unnest(event_lease) AS lease, unnest(event_order) AS "order",
               unnest(event_node) AS node, unnest(event_unit) AS unit, unnest(event_units) AS units
        FROM src WHERE list_contains(event_type, 'order.issued')
    ) WHERE type = 'order.issued' AND kind = 'clean'
),
closed AS (
    SELECT c, k, t, "order"
    FROM (
        SELECT c, k, t, unnest(event_type) AS type, unnest(event_order) AS "order"
        FROM src
        WHERE list_contains(event_type, 'order.done') OR list_contains(event_type, 'order.failed')
              OR list_contains(event_type, 'order.timed-out')
    ) WHERE type IN ('order.done', 'order.failed', 'order.timed-out')
),
answered AS (SELECT issued.*, closed.k, closed.t FROM issued JOIN closed USING (c, "order"))
SELECT c, lease, node, unit, k, t FROM answered WHERE units IS NULL
UNION ALL
SELECT c, lease, node, unnest(units), k, t FROM answered WHERE units IS NOT NULL;

-- One row a unit of a lease. ``milli`` is of a whole device or share; a slice has its own.
CREATE TABLE held AS
SELECT g.l, g.c, g.lease, g.unit, u.d, u.s, g.k0, g.t0, m.kstart, m.tstart, m.kpart, m.tpart,
       e.kend, e.tend, e.held_us, g.milli
FROM (
    SELECT l, c, lease, milli, k0, t0, unit, node FROM grants WHERE units IS NULL
    UNION ALL
    SELECT l, c, lease, milli, k0, t0, unnest(units), unnest(nodes) FROM grants
    WHERE units IS NOT NULL
) AS g
JOIN units AS u USING (c, unit)
LEFT JOIN ends AS e USING (c, lease)
LEFT JOIN marks AS m USING (c, lease, node);

CREATE TABLE holds AS
WITH clean AS (
    SELECT held.rowid AS h, min(w.k) AS kclean, min(w.t) AS tclean
    FROM held JOIN cleaned AS w USING (c, lease, unit)
         JOIN device_facts AS f ON f.d = held.d AND f.node = w.node
                                AND f.k <= w.k AND w.k < f.until_k
    GROUP BY held.rowid
)
SELECT CAST(held.rowid + 1 AS INTEGER) AS h, held.* EXCLUDE (c, lease, unit), kclean, tclean
FROM held LEFT JOIN clean ON clean.h = held.rowid;

DROP TABLE held;

DROP TABLE cleaned;

DROP TABLE marks;

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
    SELECT c, k, n, t, request
    FROM (
        SELECT c, k, t, generate_subscripts(event_type, 1) AS n, unnest(event_type) AS type,
               unnest(event_request) AS request
        FROM src WHERE (SELECT count(*) FROM places) > 0
    ) WHERE type IN ('request.ended', 'lease.granted')
            AND (c, request) IN (SELECT (c, request) FROM places)
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
