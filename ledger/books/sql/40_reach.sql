-- Two facts reach back: a node is silent since its last heartbeat, a task idle since it became
-- so. Both reach as far as the last change of the piece that they are about.

CREATE TABLE silences AS
SELECT DISTINCT q.d, p.i, p.t, least(r.heard_us, r.t) AS since_us
FROM rare AS r JOIN nodes AS n ON n.c = r.c AND n.node = r.node AND n.k = r.k
     JOIN conditions AS q ON q.k = r.k AND q.node = r.node
     JOIN devices ON devices.d = q.d AND devices.c = r.c
     JOIN steps AS p ON p.d = q.d AND p.k = r.k
WHERE r.type = 'node.changed' AND r.state = 'silent' AND r.input_type = 'node.silent'
      AND n.state = 'silent';

-- Only the pieces of leases that were reported idle or were held on a silent node can change,
-- and what was idle there: each in stretches in which it stayed the same.
CREATE TABLE stretches AS
WITH concerned AS (
    SELECT DISTINCT d, l AS o FROM idles JOIN holds USING (l) WHERE since_us IS NOT NULL
    UNION
    SELECT p.d, p.o FROM silences AS x JOIN pieces AS p ON p.d = x.d AND p.i = x.i - 1
    WHERE p.kind LIKE 'allocated %' OR p.kind LIKE 'idle %'
),
islands AS (
    SELECT p.*, p.i - row_number() OVER (
               PARTITION BY p.d, p.s, p.o, p.milli, p.ab, p.kind ORDER BY p.i) AS island
    FROM pieces AS p JOIN concerned AS x ON x.d = p.d AND x.o = p.o
)
SELECT d, s, o, milli, ab, kind, min(i) AS i0, max(i) + 1 AS i1, min(t0) AS t0, max(t1) AS t1
FROM islands GROUP BY d, s, o, milli, ab, kind, island;

-- A stretch that is what the one before it turned out to be begins earlier, in a chain.
CREATE TABLE reaching AS
WITH linked AS (
    SELECT b.d, b.s, b.o, b.milli, b.i0, b.kind, b.t0,
           CASE WHEN b.kind = 'allocated node-silent'
                     AND a.kind IN ('allocated running', 'allocated idle', 'allocated starting',
                                    'allocated over') THEN x.since_us
                WHEN b.kind = 'allocated idle' AND a.kind LIKE 'allocated %' AND a.ab = b.ab
                THEN r.since_us END AS since_us
    FROM stretches AS b
         LEFT JOIN stretches AS a ON a.d = b.d AND a.s = b.s AND a.o = b.o AND a.milli = b.milli
                                     AND a.i1 = b.i0 AND a.kind LIKE 'allocated %'
         LEFT JOIN silences AS x ON x.d = b.d AND x.i = b.i0
         LEFT JOIN steps AS p ON p.d = b.d AND p.i = b.i0 AND b.kind = 'allocated idle'
         LEFT JOIN idles AS r ON r.l = b.o AND r.k = p.k
    WHERE b.o > 0 AND b.kind NOT LIKE 'idle %'
),
chained AS (
    SELECT *, count(*) FILTER (since_us IS NULL) OVER (
               PARTITION BY d, s, o, milli ORDER BY i0 ROWS UNBOUNDED PRECEDING) AS chain
    FROM linked
)
SELECT d, s, o, i0, kind, since_us, t0 AS until_us,
       max(coalesce(since_us, t0)) OVER (
           PARTITION BY d, s, o, milli, chain ORDER BY i0 ROWS UNBOUNDED PRECEDING) AS from_us
FROM chained;

-- What is to be said of a piece from a time until another instead of what was said then.
CREATE TABLE corrections AS
SELECT d, s, o, i0 AS i, kind, from_us, until_us FROM reaching
WHERE since_us IS NOT NULL AND from_us < until_us
UNION ALL
SELECT b.d, b.s, b.o, x.i, CAST('unknown unheard' AS kind), greatest(x.since_us, b.t0), x.t
FROM stretches AS b JOIN silences AS x ON x.d = b.d AND x.i = b.i1
WHERE b.kind LIKE 'idle %' AND greatest(x.since_us, b.t0) < x.t;

-- The steps in which that is: cut where it begins.
CREATE TABLE corrected AS
WITH cut AS (
    SELECT p.d, p.i, p.t AS t0, p.until_us AS t1,
           list_sort(list_distinct(list_concat(
               [p.t, p.until_us], list(greatest(p.t, x.from_us)),
               list(least(p.until_us, x.until_us))))) AS bounds
    FROM steps AS p JOIN corrections AS x
         ON x.d = p.d AND p.t < x.until_us AND p.until_us > x.from_us
    WHERE p.t < p.until_us
    GROUP BY p.d, p.i, p.t, p.until_us
),
parts AS (
    SELECT d, i, unnest(bounds[:-2]) AS t0, unnest(bounds[2:]) AS t1 FROM cut
)
SELECT p.d, p.i, p.s, p.o, p.milli, p.ab, parts.t0, parts.t1,
       coalesce(arg_max(x.kind, x.i), any_value(p.kind)) AS kind
FROM parts JOIN pieces AS p ON p.d = parts.d AND p.i = parts.i
     LEFT JOIN corrections AS x ON x.d = p.d AND x.s = p.s AND x.o = p.o
                                   AND x.from_us <= parts.t0 AND x.until_us >= parts.t1
GROUP BY p.d, p.i, p.s, p.o, p.milli, p.ab, parts.t0, parts.t1;

-- What everything was: rows of time, those of a device tile it.
DELETE FROM pieces WHERE t0 >= t1 OR (d, i) IN (SELECT (d, i) FROM corrected);

INSERT INTO pieces BY NAME SELECT * FROM corrected WHERE t0 < t1;

CREATE TABLE tiles AS
SELECT d, s, o, CAST(milli AS BIGINT) AS milli, ab, t0, t1, kind FROM pieces
UNION ALL
SELECT d, 0, o, 1000, ab, t0, t1, kind FROM turn_parts;

-- Whose a piece is: of a lease, or kept for a request.
CREATE VIEW owners AS
SELECT l AS o, lease AS owner, tenant, priced_as AS delivery FROM grants
UNION ALL
SELECT DISTINCT o, request, CAST(requests.tenant AS tenant), CAST(requests.priced_as AS delivery)
FROM kept LEFT JOIN requests USING (c, request);

DROP TABLE steps;
