-- What each device was in pieces, from one place in the log where something of it changed
-- until the next. Stretches of plain leases are one step here and have no pieces: a lease of
-- these says itself what its device was (`turn_parts`).

CREATE TABLE points AS
WITH at_holds AS (
    SELECT d, unnest([
               {'k': k0, 't': t0, 'what': 1},
               {'k': kstart, 't': tstart, 'what': 0},
               {'k': CASE WHEN kpart IS DISTINCT FROM kend THEN kpart END, 't': tpart, 'what': 0},
               {'k': kend, 't': tend, 'what': 0},
               {'k': kclean, 't': tclean, 'what': 2}
           ]) AS m, h AS ref, s
    FROM holds
),
raw AS (
    SELECT d, m.k, m.t, CASE WHEN s = 0 THEN m.what ELSE 0 END AS what, ref
    FROM at_holds WHERE m.k IS NOT NULL
    UNION ALL SELECT d, k0, b0, 8, 0 FROM turns WHERE leads
    UNION ALL SELECT d, i.k, i.t, 0, 0 FROM idles AS i JOIN holds USING (l)
    UNION ALL SELECT d, k0, t0, 3, s FROM slices
    UNION ALL SELECT d, k1, t1, 4, s FROM slices WHERE k1 IS NOT NULL
    UNION ALL SELECT d, k, t, 0, 0 FROM slice_changes
    UNION ALL SELECT d, k, t, 5, q FROM conditions
    UNION ALL SELECT d, k0, t0, CASE WHEN s = 0 THEN 6 ELSE 0 END, j FROM kept
    UNION ALL SELECT d, k1, t1, CASE WHEN s = 0 THEN 7 ELSE 0 END, j FROM kept WHERE k1 IS NOT NULL
)
SELECT d, k, t, CAST(what AS TINYINT) AS what, ref,
       CAST(dense_rank() OVER (PARTITION BY d ORDER BY k) AS INTEGER) AS i
FROM raw;

CREATE VIEW idle_times AS SELECT l, k, until_k FROM idles WHERE since_us IS NOT NULL;

-- One row a device and place; ``until_us`` is when the next comes, or until when all is known.
CREATE TABLE steps AS
WITH each AS (
    SELECT d, i, any_value(k) AS k, any_value(t) AS t, max(ref) FILTER (what = 5) AS q,
           CASE WHEN count(*) FILTER (what = 6) > 0 THEN max(ref) FILTER (what = 6)
                WHEN count(*) FILTER (what = 7) > 0 THEN 0 END AS j,
           bool_or(what = 8) AS plain
    FROM points GROUP BY d, i
),
carried AS (
    SELECT d, i, k, t, plain, coalesce(lead(t) OVER ordered, known_us) AS until_us,
           last_value(q IGNORE NULLS) OVER ordered AS q,
           last_value(j IGNORE NULLS) OVER ordered AS j
    FROM each JOIN devices USING (d) JOIN known USING (p)
    WINDOW ordered AS (PARTITION BY d ORDER BY i ROWS UNBOUNDED PRECEDING)
)
SELECT carried.* EXCLUDE (j), coalesce(kept.o, 0) AS kept_o
FROM carried LEFT JOIN kept ON kept.j = carried.j;

-- Until after the last place: ``ends`` of what has no end.
CREATE TABLE lengths AS SELECT d, max(i) + 1 AS after FROM steps GROUP BY d;

CREATE TABLE held_spans AS
SELECT ref AS h, d, min(i) FILTER (what = 1) AS i0,
       coalesce(min(i) FILTER (what = 2), any_value(after)) AS i1
FROM points JOIN lengths USING (d) WHERE what IN (1, 2) GROUP BY ref, d;

CREATE TABLE pieces AS
SELECT x.d, x.i, p.t AS t0, p.until_us AS t1, 0 AS s, h.l AS o, h.milli, q.ab,
       CAST(CASE WHEN q.gone THEN CASE WHEN h.kend <= p.k THEN NULL ELSE 'absent held' END
            WHEN h.kend <= p.k THEN coalesce(q.out, 'unavailable cleaning')
            WHEN q.out IN ('unavailable node-lost', 'unavailable node-silent',
                           'unavailable quarantined', 'unavailable unhealthy')
                THEN 'allocated' || q.out[12:]
            WHEN q.out = 'unknown health-unknown' THEN 'allocated health-unknown'
            WHEN y.l IS NOT NULL THEN 'allocated idle'
            WHEN h.kpart <= p.k THEN 'allocated over'
            WHEN h.kstart <= p.k THEN 'allocated running'
            ELSE 'allocated starting' END AS kind) AS kind
FROM (SELECT d, h, unnest(range(i0, i1)) AS i FROM held_spans) AS x
     JOIN holds AS h USING (h) JOIN steps AS p ON p.d = x.d AND p.i = x.i
     JOIN conditions AS q ON q.q = p.q
     LEFT JOIN idle_times AS y ON y.l = h.l AND y.k <= p.k AND p.k < y.until_k;

DELETE FROM pieces WHERE kind IS NULL;

DROP TABLE held_spans;

-- Slices: what each is from a step at which something of it changes, until the next such.
CREATE TABLE slice_spans AS
WITH spans AS (
    SELECT ref AS s, d, min(i) FILTER (what = 3) AS i0,
           coalesce(min(i) FILTER (what = 4), any_value(after)) AS i1
    FROM points JOIN lengths USING (d) WHERE what IN (3, 4) GROUP BY ref, d
),
changes AS (
    SELECT s, k, 4294967296 + n AS turn, there, start, compute, ordered, quarantined,
           CASE WHEN made THEN 0 END AS h, NULL::INTEGER AS o
    FROM slice_changes
    UNION ALL BY NAME SELECT s, kclean AS k, 2 * 4294967296 AS turn, 0 AS h FROM holds
    WHERE s > 0 AND kclean IS NOT NULL
    UNION ALL BY NAME SELECT s, k0 AS k, 3 * 4294967296 AS turn, h FROM holds
    WHERE s > 0 AND k0 IS DISTINCT FROM kclean
    UNION ALL BY NAME SELECT s, k1 AS k, 2 * 4294967296 AS turn, 0 AS o FROM kept
    WHERE s > 0 AND k1 IS NOT NULL
    UNION ALL BY NAME SELECT s, k0 AS k, 3 * 4294967296 AS turn, o FROM kept WHERE s > 0
),
each AS (
    SELECT s, k, arg_max(there, turn) FILTER (there IS NOT NULL) AS there,
           arg_max(start, turn) FILTER (start IS NOT NULL) AS start,
           arg_max(compute, turn) FILTER (compute IS NOT NULL) AS compute,
           arg_max(ordered, turn) FILTER (ordered IS NOT NULL) AS ordered,
           arg_max(quarantined, turn) FILTER (quarantined IS NOT NULL) AS quarantined,
           arg_max(h, turn) FILTER (h IS NOT NULL) AS h,
           arg_max(o, turn) FILTER (o IS NOT NULL) AS o
    FROM changes GROUP BY s, k
),
carried AS (
    SELECT s, x.d, p.i, least(coalesce(lead(p.i) OVER sofar, i1), i1) AS until_i,
           last_value(there IGNORE NULLS) OVER sofar AS there,
           last_value(start IGNORE NULLS) OVER sofar AS start,
           last_value(compute IGNORE NULLS) OVER sofar AS compute,
           last_value(ordered IGNORE NULLS) OVER sofar AS ordered,
           last_value(quarantined IGNORE NULLS) OVER sofar AS quarantined,
           last_value(each.h IGNORE NULLS) OVER sofar AS h,
           coalesce(last_value(each.o IGNORE NULLS) OVER sofar, 0) AS o
    FROM spans AS x JOIN each USING (s) JOIN steps AS p ON p.d = x.d AND p.k = each.k
    WINDOW sofar AS (PARTITION BY s ORDER BY p.i ROWS UNBOUNDED PRECEDING)
),
named AS (SELECT s, row_number() OVER (ORDER BY slice) AS name FROM slices)
SELECT carried.*, named.name FROM carried JOIN named USING (s) WHERE i < until_i;

CREATE TABLE slice_steps AS
SELECT x.* EXCLUDE (i, until_i, step), p.i, p.k, p.t, p.until_us, p.q
FROM (SELECT *, unnest(range(i, until_i)) AS step FROM slice_spans) AS x
     JOIN steps AS p ON p.d = x.d AND p.i = x.step;

DROP TABLE slice_spans;

-- What is there comes first, in its order on the device; the last counts as what is left.
INSERT INTO pieces
WITH judged AS (
    SELECT x.d, x.i, x.t AS t0, x.until_us AS t1, x.s, q.ab,
           coalesce(h.l, nullif(x.o, 0), 0) AS o,
           least(1000, (1000 * x.compute + greatest(1, q.compute) - 1) // greatest(1, q.compute)) AS milli,
           CASE WHEN h.l IS NOT NULL AND (h.kend IS NULL OR h.kend > x.k) THEN
                CASE WHEN q.out IN ('unavailable node-lost', 'unavailable node-silent',
                                    'unavailable quarantined', 'unavailable unhealthy')
                         THEN 'allocated' || q.out[12:]
                     WHEN q.out = 'unknown health-unknown' THEN 'allocated health-unknown'
                     WHEN y.l IS NOT NULL THEN 'allocated idle'
                     WHEN h.kpart <= x.k THEN 'allocated over'
                     WHEN h.kstart <= x.k THEN 'allocated running'
                     ELSE 'allocated starting' END
                WHEN q.out IS NOT NULL THEN q.out
                WHEN x.quarantined THEN 'unavailable quarantined'
                WHEN h.l IS NOT NULL THEN 'unavailable cleaning'
                WHEN x.ordered THEN 'unavailable repartition'
                WHEN x.o <> 0 THEN 'idle kept'
                ELSE 'idle free' END AS kind,
           NOT x.there AS absent, x.start, x.name
    FROM slice_steps AS x JOIN conditions AS q ON q.q = x.q
         LEFT JOIN holds AS h ON h.h = x.h
         LEFT JOIN idle_times AS y ON y.l = h.l AND y.k <= x.k AND x.k < y.until_k
    WHERE NOT q.gone
),
held AS (
    SELECT d, i, sum(milli) AS milli FROM pieces
    WHERE d IN (SELECT DISTINCT d FROM slices) GROUP BY d, i
),
left_over AS (
    SELECT judged.*, 1000 - coalesce(held.milli, 0)
           - coalesce(sum(judged.milli) OVER (
                 PARTITION BY judged.d, judged.i ORDER BY absent, start, name
                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS room
    FROM judged LEFT JOIN held ON held.d = judged.d AND held.i = judged.i
)
SELECT d, i, t0, t1, s, o, least(milli, room) AS milli, ab, kind
FROM left_over WHERE room > 0;

-- The rest of a device is nobody's.
INSERT INTO pieces
WITH taken AS (
    SELECT d, i, sum(milli) AS milli, bool_or(s > 0) AS sliced FROM pieces GROUP BY d, i
),
parted AS (SELECT DISTINCT d, i FROM slice_steps)
SELECT p.d, p.i, p.t, p.until_us, 0, CASE WHEN q.gone THEN 0 ELSE p.kept_o END,
       1000 - coalesce(taken.milli, 0), q.ab,
       CASE WHEN q.gone THEN 'absent missing'
            WHEN q.out IS NOT NULL THEN q.out
            WHEN p.kept_o <> 0 THEN 'idle kept'
            WHEN q.mig OR parted.d IS NOT NULL THEN 'idle unpartitioned'
            ELSE 'idle free' END
FROM steps AS p JOIN conditions AS q ON q.q = p.q
     LEFT JOIN taken ON taken.d = p.d AND taken.i = p.i
     LEFT JOIN parted ON parted.d = p.d AND parted.i = p.i
WHERE coalesce(taken.milli, 0) < 1000 AND NOT p.plain;

DROP TABLE points;

DROP TABLE slice_steps;
