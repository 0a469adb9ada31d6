-- What each unit is of a device and when it is there, from supply alone: enough to say how much
-- GPU time each tenant was allocated, without what became of the rest.

CREATE TABLE rooms AS
WITH facts AS (
    SELECT d, k, t, health, compute, p,
           lead(t) OVER (PARTITION BY d ORDER BY k) AS until_us
    FROM device_facts JOIN devices USING (d)
),
points AS (
    SELECT d, k, t, lead(t) OVER (PARTITION BY d ORDER BY k) AS until_us
    FROM (
        SELECT d, k0 AS k, t0 AS t FROM slices
        UNION SELECT d, k1, t1 FROM slices WHERE k1 IS NOT NULL
        UNION SELECT d, k, t FROM slice_changes WHERE there IS NOT NULL
        UNION SELECT d, k, t FROM device_facts WHERE d IN (SELECT d FROM slices)
    )
),
alive AS (
    SELECT points.*, slices.s, slices.slice
    FROM points JOIN slices ON slices.d = points.d AND slices.k0 <= points.k
                               AND points.k < coalesce(slices.k1, 9223372036854775807)
),
made AS (SELECT s, k, there, start, compute FROM slice_changes WHERE there IS NOT NULL
         QUALIFY row_number() OVER (PARTITION BY s, k ORDER BY n DESC) = 1),
placed AS (
    SELECT alive.*, made.there, made.start, made.compute
    FROM alive ASOF JOIN made ON made.s = alive.s AND alive.k >= made.k
),
judged AS (
    SELECT placed.*, f.health, f.p,
           least(1000, (1000 * placed.compute + greatest(1, f.compute) - 1)
                       // greatest(1, f.compute)) AS milli
    FROM placed ASOF JOIN facts AS f ON f.d = placed.d AND placed.k >= f.k
),
capped AS (
    SELECT *, least(milli, 1000 - coalesce(sum(milli) OVER (
                  PARTITION BY d, k ORDER BY NOT there, start, slice
                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)) AS room
    FROM judged
)
SELECT d, 0 AS s, t AS t0, coalesce(until_us, known_us) AS t1, NULL AS milli
FROM facts JOIN known USING (p) WHERE health <> 'gone'
UNION ALL
SELECT d, s, t, coalesce(until_us, known_us), room
FROM capped JOIN known USING (p) WHERE health <> 'gone' AND room > 0;

CREATE TABLE tenants AS
WITH held AS (
    SELECT c, lease, tenant, milli, t0, unit FROM grants WHERE units IS NULL
    UNION ALL
    SELECT c, lease, tenant, milli, t0, unnest(units) FROM grants WHERE units IS NOT NULL
)
SELECT held.tenant,
       CAST(sum(CAST(coalesce(rooms.milli, held.milli) AS HUGEINT)
                * (least(coalesce(e.tend, known_us), rooms.t1) - greatest(held.t0, rooms.t0)))
            AS HUGEINT) AS milli_us
FROM held JOIN units USING (c, unit) JOIN devices USING (d) JOIN known USING (p)
     LEFT JOIN ends AS e ON e.c = held.c AND e.lease = held.lease
     JOIN rooms ON rooms.d = units.d AND rooms.s = units.s
                   AND rooms.t0 < coalesce(e.tend, known_us) AND rooms.t1 > held.t0
GROUP BY held.tenant;
