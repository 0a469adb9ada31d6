-- report: policy-diff
-- What changed in the policy between two instants, by whom, and why?
-- parameter from: the earlier instant, UTC
-- parameter to: the later one, UTC
-- column cell VARCHAR: cell
-- column type VARCHAR: what kind of policy
-- column about VARCHAR: pool, queue, quota ... of that name
-- column field VARCHAR: what of it
-- column before JSON: at the earlier instant; NULL: it was not set
-- column after JSON: at the later one; NULL: it is not set
-- column author VARCHAR: who changed the thing last
-- column reason VARCHAR: why
-- column position VARCHAR: place of that record
WITH versions AS (
    SELECT cell, type, about, time, "offset", data, author, reason, position FROM policy_changes
    WHERE type NOT LIKE 'quota.%'
    UNION ALL
    SELECT cell, 'quota.applied', quota, since, "offset",
           to_json({'nominal_gpu_milli': nominal_milli, 'borrowing_gpu_milli': borrowing_milli,
                    'lending_gpu_milli': lending_milli, 'parent': parent,
                    'budget_milli_us': budget_milli_us, 'period_us': period_us,
                    'limits': limits}),
           coalesce(approver, author), reason, position
    FROM quotas
),
fields AS (
    SELECT v.*, f.key AS field, f.value FROM (
        SELECT 'before' AS side, cell, type, about, arg_max(data, "offset") AS data,
               NULL AS author, NULL AS reason, NULL AS position
        FROM versions WHERE time <= utc($from) GROUP BY ALL
        UNION ALL
        SELECT 'after', cell, type, about, arg_max(data, "offset"), arg_max(author, "offset"),
               arg_max(reason, "offset"), arg_max(position, "offset")
        FROM versions WHERE time <= utc($to) GROUP BY cell, type, about
    ) v, json_each(v.data) AS f
    WHERE f.key NOT IN ('type', 'author', 'reason') AND (f.value->>'$') IS NOT NULL
)
SELECT coalesce(a.cell, b.cell) AS cell, coalesce(a.type, b.type) AS type,
       coalesce(a.about, b.about) AS about, coalesce(a.field, b.field) AS field,
       b.value AS before, a.value AS after, l.author, l.reason, l.position
FROM (FROM fields WHERE side = 'after') a
FULL JOIN (FROM fields WHERE side = 'before') b
       ON a.cell = b.cell AND a.type = b.type AND a.about = b.about AND a.field = b.field
LEFT JOIN (SELECT DISTINCT cell, type, about, author, reason, position
           FROM fields WHERE side = 'after') l
       ON l.cell = coalesce(a.cell, b.cell) AND l.type = coalesce(a.type, b.type)
          AND l.about = coalesce(a.about, b.about)
WHERE CAST(a.value AS VARCHAR) IS DISTINCT FROM CAST(b.value AS VARCHAR)
ORDER BY 1, 2, 3, 4

-- report: operator-acts
-- What did operators do, and why?
-- parameter from = : from when, UTC
-- parameter to = : until before, UTC
-- parameter who = : only this author
-- column time TIMESTAMP: when, UTC
-- column author VARCHAR: who
-- column source VARCHAR: from where it was sent
-- column type VARCHAR: what kind of act
-- column about VARCHAR: what it is about
-- column reason VARCHAR: why
-- column position VARCHAR: place of the record
SELECT time, author, source, type, about, reason, position
FROM policy_changes
WHERE (CAST($who AS VARCHAR) IS NULL OR author = $who)
  AND (utc($from) IS NULL OR time >= utc($from)) AND (utc($to) IS NULL OR time < utc($to))
ORDER BY time, partition, "offset", type, about

-- report: writers
-- Who wrote the ledger, one after the other, and what of it had no effect?
-- column partition INTEGER: partition
-- column claimed_at VARCHAR: place of the claim
-- column time TIMESTAMP: when, UTC
-- column worker VARCHAR: who
-- column host VARCHAR: where
-- column decisions BIGINT: decisions of it that count
-- column void BIGINT: records of it without effect
-- column void_late BIGINT: of them, written after another had claimed
SELECT c.partition, c.position AS claimed_at, c.time, c.worker, c.host,
       count(*) FILTER (r.verdict = 'effective') AS decisions,
       count(*) FILTER (r.verdict = 'void') AS void,
       count(*) FILTER (r.verdict = 'void' AND r.why_void = 'token') AS void_late
FROM claims c
LEFT JOIN records r
       ON r.partition = c.partition AND r.token = c.token AND r.kind = 'decision'
GROUP BY c.partition, c."offset", c.position, c.time, c.worker, c.host
ORDER BY c.partition, c."offset"
