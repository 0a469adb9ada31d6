-- What a device was as a whole (all its pieces, a layout) and for which whole seconds.
-- A layout is a number ``g``: of one piece that is a whole device it holds what that piece is,
-- else it is below zero and made of what the pieces are; ``t0`` is then when it was so.

-- Parts of calm leases are none of them: in whole seconds they are what they are.

CREATE VIEW laid AS
SELECT d, t0, t1, s, o, milli, ab, kind FROM pieces
UNION ALL
SELECT d, t0, t1, 0, o, 1000, ab, kind FROM turn_parts WHERE NOT calm;

CREATE TABLE split_devices AS SELECT DISTINCT d FROM pieces WHERE milli <> 1000 OR s > 0;

CREATE TABLE whole_layouts AS
SELECT d, t0, t1, (CAST(o AS BIGINT) + 2147483648) << 31 | (CAST(ab AS BIGINT) << 6)
                  | enum_code(CAST(kind AS kind)) AS g
FROM laid WHERE d NOT IN (FROM split_devices)
UNION ALL
SELECT d, t0, any_value(t1),
       -1 - CAST(bit_xor(hash(hash(s, o, milli, ab, kind))) >> 1 AS BIGINT)
FROM laid WHERE d IN (FROM split_devices) GROUP BY d, t0;

-- A layout that is not the first of its device has one before it, here or a calm one.
CREATE TABLE runs AS
WITH within AS (
    SELECT d, t0, greatest(t0, start_s * 1000000) AS a,
           least(t1, end_s * 1000000) AS b, g
    FROM whole_layouts, period WHERE t0 < end_s * 1000000 AND t1 > start_s * 1000000
),
flagged AS (
    SELECT d, t0, a, b, g, lag(b) OVER each AS before_us, lag(g) OVER each AS before_g
    FROM within WINDOW each AS (PARTITION BY d ORDER BY a)
),
last AS (SELECT d, max(b) AS b FROM within GROUP BY d),
first AS (
    SELECT d, greatest(min(t0), any_value(start_s) * 1000000) AS a FROM tiles, period GROUP BY d
)
SELECT f.d, f.g, f.t0, f.a, f.a > first.a AS joined, f.before_us,
       coalesce(lead(f.before_us) OVER (PARTITION BY f.d ORDER BY f.a), last.b) AS b
FROM flagged AS f JOIN last USING (d) JOIN first USING (d)
WHERE f.before_us IS NULL OR f.before_us <> f.a OR f.before_g <> f.g;

-- A second goes to whatever had most of it, the earlier of two. Where only one bound lies in
-- it that is rounding; where there are more, all that had a part of it are weighed.
CREATE TABLE rounded AS
WITH bounds AS (
    SELECT d, g, t0, a, b, coalesce(joined, false) AS joined,
           CASE WHEN joined THEN lag(a) OVER each ELSE before_us END AS earlier,
           CASE WHEN lead(joined) OVER each THEN lead(b) OVER each ELSE lead(a) OVER each END
               AS later
    FROM runs WINDOW each AS (PARTITION BY d ORDER BY a)
)
SELECT d, g, t0, a, b, joined,
       coalesce(a % 1000000 > 0 AND (
           (b // 1000000 = a // 1000000 AND b % 1000000 > 0)
           OR (earlier // 1000000 = a // 1000000 AND earlier % 1000000 > 0)), false) AS torn_a,
       coalesce(b % 1000000 > 0 AND (
           (a // 1000000 = b // 1000000 AND a % 1000000 > 0)
           OR (later // 1000000 = b // 1000000 AND later % 1000000 > 0)), false) AS torn_b
FROM bounds;

CREATE TABLE seconds AS
WITH weighed AS (
    SELECT d, a // 1000000 AS second, g, t0, a, least(b, (a // 1000000 + 1) * 1000000) - a AS us
    FROM rounded WHERE torn_a
    UNION ALL
    SELECT d, b // 1000000, g, t0, a, b - greatest(a, b // 1000000 * 1000000)
    FROM rounded WHERE torn_b AND NOT (torn_a AND a // 1000000 = b // 1000000)
),
shares AS (
    SELECT d, second, g, any_value(t0) AS t0, CAST(sum(us) AS BIGINT) AS us, min(a) AS a
    FROM weighed GROUP BY d, second, g
),
won AS (
    SELECT d, second, g, t0, us, sum(us) OVER (PARTITION BY d, second) AS of_all
    FROM shares
    QUALIFY row_number() OVER (PARTITION BY d, second ORDER BY us DESC, a) = 1
),
found AS (
    SELECT d, g, t0,
           CASE WHEN torn_a THEN a // 1000000 + 1
                WHEN joined THEN (a + 500000) // 1000000
                ELSE (a + 499999) // 1000000 END AS start_s,
           CASE WHEN torn_b THEN b // 1000000 ELSE (b + 500000) // 1000000 END AS end_s
    FROM rounded
    UNION ALL
    SELECT d, g, t0, second, second + 1 FROM won WHERE us >= 1000000 - of_all
),
flagged AS (
    SELECT d, g, t0, start_s, end_s, lag(end_s) OVER each AS before_s, lag(g) OVER each AS before_g
    FROM found WHERE start_s < end_s WINDOW each AS (PARTITION BY d ORDER BY start_s)
),
last AS (SELECT d, max(end_s) AS end_s FROM flagged GROUP BY d)
SELECT f.d, f.g, f.t0, f.start_s,
       coalesce(lead(f.before_s) OVER (PARTITION BY f.d ORDER BY f.start_s), last.end_s) AS end_s
FROM flagged AS f JOIN last USING (d)
WHERE f.before_s IS NULL OR f.before_s <> f.start_s OR f.before_g <> f.g;

DROP TABLE whole_layouts;

DROP TABLE runs;

DROP TABLE rounded;
