-- What happened to nodes, devices, slices and kept places: few events, so few records are read.
-- A place in the log is k (partition and offset), and n within its record.

CREATE TABLE rare AS
SELECT p, k, t, c, input_type, heard_us, e.n, e.type, e.request, e.lease, e.node, e.device,
       e.slice, e.unit, e.pool, e.model, e.profile, e.kind, e.state, e.mode, e.health,
       e.compute_slices AS compute, e.start, e.size, e.since_us, e.mig_enabled AS mig, e.units,
       e.destroys
FROM (SELECT p, k, t, c, input_type, heard_us, unnest(unusual) AS e FROM src
      WHERE unusual IS NOT NULL);

-- Nodes: a state is told, or it is that from before the node was silent, lost or unknown.
CREATE TABLE nodes AS
WITH pools AS (
    SELECT c, pool, min(k) AS k FROM rare WHERE type = 'pool.applied' GROUP BY c, pool
),
told AS (
    SELECT r.*,
           CASE r.type
               WHEN 'node.changed' THEN r.state
               WHEN 'node.registered' THEN
                   CASE WHEN pools.k IS NULL OR pools.k > r.k THEN 'registering'
                        WHEN row_number() OVER (PARTITION BY r.c, r.node ORDER BY r.k, r.n) = 1
                        THEN 'online' END
           END AS fixed
    FROM rare AS r LEFT JOIN pools
         ON pools.c = r.c AND pools.pool = r.pool AND r.type = 'node.registered'
    WHERE r.type IN ('node.registered', 'node.changed', 'node.unsettled', 'node.settled')
),
carried AS (
    SELECT c, node, k, n, t, type, fixed,
           count(fixed) OVER sofar AS stretch,
           coalesce(last_value(mode IGNORE NULLS) OVER sofar, 'online') AS mode,
           last_value(pool IGNORE NULLS) OVER sofar AS pool,
           coalesce(last_value(CASE type WHEN 'node.unsettled' THEN true
                                         WHEN 'node.settled' THEN false END IGNORE NULLS)
                    OVER sofar, false) AS unsettled
    FROM told
    WINDOW sofar AS (PARTITION BY c, node ORDER BY k, n ROWS UNBOUNDED PRECEDING)
),
resumed AS (
    SELECT *, max(fixed) OVER (PARTITION BY c, node, stretch) AS base,
           bool_or(type = 'node.registered' AND fixed IS NULL)
               OVER (PARTITION BY c, node, stretch ORDER BY k, n ROWS UNBOUNDED PRECEDING) AS back
    FROM carried
)
SELECT c, node, k, t, pool, unsettled,
       CASE WHEN back AND base IN ('silent', 'lost', 'registering') THEN mode ELSE base END AS state
FROM resumed
QUALIFY row_number() OVER (PARTITION BY c, node, k ORDER BY n DESC) = 1;

CREATE TABLE devices AS
SELECT CAST(row_number() OVER (ORDER BY p, c, device) AS INTEGER) AS d, p, c, device
FROM (SELECT DISTINCT p, c, device FROM rare WHERE type = 'device.discovered');

-- Devices: what each is from a place in the log on.
CREATE TABLE device_facts AS
WITH told AS (
    SELECT d, k, n, t, type, node, model, compute, mig, health
    FROM rare JOIN devices USING (c, device)
    WHERE type IN ('device.discovered', 'device.health', 'device.cleared')
    UNION ALL BY NAME
    SELECT d, k, n, t, type
    FROM rare JOIN devices ON devices.c = rare.c AND devices.device = rare.unit
    WHERE type = 'device.quarantined'
),
fixed AS (
    SELECT *, CASE WHEN type = 'device.health' THEN health
                   WHEN row_number() OVER (PARTITION BY d ORDER BY k, n) = 1 THEN 'healthy'
              END AS fixed,
           type = 'device.discovered' AS seen
    FROM told
),
carried AS (
    SELECT d, k, n, t, seen AND fixed IS NULL AS again,
           fixed, count(fixed) OVER sofar AS stretch,
           last_value(CASE WHEN seen THEN node END IGNORE NULLS) OVER sofar AS node,
           last_value(CASE WHEN seen THEN model END IGNORE NULLS) OVER sofar AS model,
           last_value(CASE WHEN seen THEN compute END IGNORE NULLS) OVER sofar AS compute,
           last_value(CASE WHEN seen THEN mig END IGNORE NULLS) OVER sofar AS mig,
           coalesce(last_value(CASE type WHEN 'device.quarantined' THEN true
                                         WHEN 'device.cleared' THEN false END IGNORE NULLS)
                    OVER sofar, false) AS quarantined
    FROM fixed
    WINDOW sofar AS (PARTITION BY d ORDER BY k, n ROWS UNBOUNDED PRECEDING)
),
resumed AS (
    SELECT *, max(fixed) OVER (PARTITION BY d, stretch) AS base,
           bool_or(again)
               OVER (PARTITION BY d, stretch ORDER BY k, n ROWS UNBOUNDED PRECEDING) AS back
    FROM carried
)
SELECT d, k, t, node, model, compute, mig, quarantined,
       CASE WHEN back AND base = 'gone' THEN 'unknown' ELSE base END AS health,
       coalesce(lead(k) OVER (PARTITION BY d ORDER BY k, n), 9223372036854775807) AS until_k
FROM resumed
QUALIFY row_number() OVER (PARTITION BY d, k ORDER BY n DESC) = 1;

-- Where a device is, and what nobody holds of it is: of the node first, then of the device.
CREATE TABLE conditions AS
WITH points AS (
    SELECT d, c, k, t FROM device_facts JOIN devices USING (d)
    UNION
    SELECT f.d, n.c, n.k, n.t
    FROM device_facts AS f JOIN devices USING (d)
         JOIN nodes AS n ON n.c = devices.c AND n.node = f.node
                         AND n.k >= f.k AND n.k < f.until_k
),
known AS (
    SELECT points.*, f.* EXCLUDE (d, k, t, until_k)
    FROM points ASOF JOIN device_facts AS f ON f.d = points.d AND points.k >= f.k
),
judged AS (
    SELECT known.*, n.pool, n.state, n.unsettled
    FROM known ASOF JOIN nodes AS n
         ON n.c = known.c AND n.node = known.node AND known.k >= n.k
)
SELECT CAST(row_number() OVER (ORDER BY d, k) AS INTEGER) AS q,
       d, k, t, node, pool, model, compute, mig,
       CAST(dense_rank() OVER (ORDER BY node, pool, model) AS INTEGER) AS ab,
       health = 'gone' AS gone,
       CASE WHEN state IN ('lost', 'silent') THEN 'unavailable node-' || state
            WHEN state = 'registering' THEN 'unavailable registering'
            WHEN quarantined THEN 'unavailable quarantined'
            WHEN health = 'unhealthy' THEN 'unavailable unhealthy'
            WHEN health = 'unknown' THEN 'unknown health-unknown'
            WHEN unsettled THEN 'unavailable settling'
            WHEN state IN ('maintenance', 'draining') THEN 'unavailable ' || state
       END AS out
FROM judged;

-- Slices: each has one life, and is on one device.
CREATE TABLE slices AS
SELECT CAST(row_number() OVER (ORDER BY k0, slice) AS INTEGER) AS s, *
FROM (
    SELECT r.c, r.slice, any_value(devices.d) AS d, min(r.k) AS k0, min(r.t) AS t0,
           any_value(r.profile) AS profile,
           min(r.k) FILTER (r.type = 'slice.gone') AS k1,
           min(r.t) FILTER (r.type = 'slice.gone') AS t1
    FROM rare AS r LEFT JOIN devices ON devices.c = r.c AND devices.device = r.device
    WHERE r.type IN ('slice.ordered', 'slice.present', 'slice.gone')
    GROUP BY r.c, r.slice
);

CREATE TABLE slice_changes AS
WITH told AS (
    SELECT s, d, k, n, t, type = 'slice.present' AS there, start, compute,
           lead(k, 1, 9223372036854775807) OVER after AS until_k,
           lead(n, 1, 0) OVER after AS until_n, type
    FROM rare JOIN slices USING (c, slice)
    WHERE type IN ('slice.ordered', 'slice.present', 'slice.gone')
    WINDOW after AS (PARTITION BY s ORDER BY k, n)
)
SELECT s, d, k, n, t, there, start, compute, NOT there AS ordered, false AS quarantined,
       true AS made
FROM told WHERE type <> 'slice.gone'
UNION ALL BY NAME
SELECT told.s, told.d, r.k, r.n, r.t, true AS ordered
FROM rare AS r JOIN devices ON devices.c = r.c AND devices.device = r.units[1]
     JOIN told ON told.d = devices.d
WHERE r.type = 'order.issued' AND r.kind = 'partition' AND told.there
      AND list_contains(r.destroys, told.start)
      AND (told.k, told.n) < (r.k, r.n) AND (r.k, r.n) < (told.until_k, told.until_n)
UNION ALL BY NAME
SELECT s, d, k, n, t, true AS quarantined
FROM rare JOIN slices ON slices.c = rare.c AND slices.slice = rare.unit
WHERE type = 'slice.quarantined'
UNION ALL BY NAME
SELECT s, d, k, n, t, false AS quarantined
FROM rare JOIN devices USING (c, device) JOIN slices USING (d)
WHERE type = 'device.cleared' AND slices.k0 <= k AND k < coalesce(slices.k1, 9223372036854775807);

CREATE VIEW units AS
SELECT c, device AS unit, d, 0 AS s, '' AS profile FROM devices
UNION ALL SELECT c, slice, d, s, profile FROM slices;
