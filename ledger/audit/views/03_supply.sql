-- view: nodes
-- one row a node in one state: from a change until the next
-- column cell VARCHAR: cell
-- column node VARCHAR: node
-- column state VARCHAR: registering, online, draining, maintenance, silent or lost
-- column pool VARCHAR: pool that it belongs to
-- column incarnation VARCHAR: which start of it this is
-- column driver VARCHAR: driver version that it reports
-- column agent VARCHAR: who speaks for it
-- column event VARCHAR: type of the event that made it so
-- column reason VARCHAR: why
-- column author VARCHAR: who ordered it; NULL: nobody did
-- column since TIMESTAMP: from when, UTC
-- column until TIMESTAMP: until before; NULL: it still is
-- column position VARCHAR: place of the record that made it so
WITH steps AS (
    SELECT e.*, row_number() OVER w AS nth,
           e.type = 'node.registered' AS registered,
           e.type = 'node.registered' AND (p.first IS NULL OR (p.first > (e."offset", e.n)))
               AS unknown_pool,
           sum(CASE WHEN e.type = 'node.changed' THEN 1 ELSE 0 END) OVER w AS part
    FROM events e
    LEFT JOIN (SELECT cell, data->>'pool' AS pool, min(("offset", n)) AS first
               FROM events WHERE type = 'pool.applied' GROUP BY ALL) p
           ON p.cell = e.cell AND p.pool = e.data->>'pool'
    WHERE e.type IN ('node.registered', 'node.changed')
    WINDOW w AS (PARTITION BY e.cell, e.node ORDER BY e."offset", e.n)
),
facts AS (
    SELECT *,
           last_value(CASE WHEN registered THEN data END IGNORE NULLS) OVER w AS told,
           coalesce(last_value(data->>'mode' IGNORE NULLS) OVER w, 'online') AS mode,
           last_value(CASE WHEN NOT registered THEN data->>'state' END IGNORE NULLS) OVER w
               AS changed,
           sum(CASE WHEN unknown_pool THEN 1 ELSE 0 END) OVER (
               PARTITION BY cell, node, part ORDER BY nth
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS unknown_before
    FROM steps WINDOW w AS (PARTITION BY cell, node ORDER BY nth)
)
SELECT cell, node,
       -- A node that registers again is as its operator wants it, if it was away.
       CASE WHEN NOT registered THEN changed
            WHEN unknown_pool THEN 'registering'
            WHEN changed IS NULL OR changed IN ('silent', 'lost', 'registering')
                 OR unknown_before > 0 THEN mode
            ELSE changed END AS state,
       told->>'pool' AS pool, told->>'incarnation' AS incarnation, told->>'driver' AS driver,
       told->>'agent' AS agent, type AS event, data->>'reason' AS reason,
       data->>'author' AS author, make_timestamp(time_us) AS since,
       make_timestamp(lead(time_us) OVER (PARTITION BY cell, node ORDER BY nth)) AS until,
       place(partition, "offset") AS position
FROM facts

-- view: devices
-- one row a device as it was for a time: from a change of where or what it is until the next
-- column cell VARCHAR: cell
-- column device VARCHAR: its UUID
-- column node VARCHAR: where it is
-- column model VARCHAR: model
-- column memory_mib BIGINT: its memory
-- column compute_slices BIGINT: compute slices that it can be cut into
-- column mig_enabled BOOLEAN: it is in MIG mode
-- column health VARCHAR: healthy, unhealthy, unknown, or gone
-- column quarantine VARCHAR: why nobody may use it; NULL: it is not in quarantine
-- column event VARCHAR: type of the event that made it so
-- column reason VARCHAR: why
-- column evidence JSON: what its node saw
-- column since TIMESTAMP: from when, UTC
-- column until TIMESTAMP: until before; NULL: it still is
-- column position VARCHAR: place of the record that made it so
WITH steps AS (
    SELECT *, coalesce(device, data->>'unit') AS uuid
    FROM events
    WHERE type IN ('device.discovered', 'device.health', 'device.quarantined', 'device.cleared')
),
facts AS (
    SELECT *,
           last_value(CASE WHEN type = 'device.discovered' THEN data END IGNORE NULLS) OVER w
               AS told,
           last_value(data->>'health' IGNORE NULLS) OVER w AS health,
           last_value(CASE WHEN type = 'device.health' THEN ("offset", n) END IGNORE NULLS) OVER w
               AS heard,
           last_value(CASE WHEN type = 'device.discovered' THEN ("offset", n) END IGNORE NULLS)
               OVER w AS found,
           last_value(CASE type WHEN 'device.quarantined' THEN data->>'reason'
                                WHEN 'device.cleared' THEN chr(0) END IGNORE NULLS) OVER w AS kept,
           make_timestamp(lead(time_us) OVER w) AS until
    FROM steps WINDOW w AS (PARTITION BY cell, uuid ORDER BY "offset", n)
)
SELECT cell, uuid AS device, told->>'node' AS node, told->>'model' AS model,
       CAST(told->>'memory_mib' AS BIGINT) AS memory_mib,
       CAST(told->>'compute_slices' AS BIGINT) AS compute_slices,
       CAST(told->>'mig_enabled' AS BOOLEAN) AS mig_enabled,
       -- What comes back after it was gone is of unknown health until its node says more.
       CASE WHEN health = 'gone' AND found > heard THEN 'unknown'
            ELSE coalesce(health, 'healthy') END AS health,
       nullif(kept, chr(0)) AS quarantine, type AS event, data->>'reason' AS reason,
       data->'evidence' AS evidence, make_timestamp(time_us) AS since, until,
       place(partition, "offset") AS position
FROM facts

-- view: slices
-- one row a MIG slice in one lifetime: what it is, when it was made and when it went
-- column cell VARCHAR: cell
-- column slice VARCHAR: its id, the ledger's own: MIG UUIDs come back
-- column device VARCHAR: device that it is of
-- column profile VARCHAR: profile
-- column start BIGINT: first memory slice that it takes
-- column size BIGINT: how many it takes
-- column compute_slices BIGINT: its compute slices
-- column memory_mib BIGINT: its memory
-- column mig_uuid VARCHAR: MIG UUID; NULL: it never was there
-- column ordered TIMESTAMP: when its place was promised, UTC; NULL: it was there already
-- column present TIMESTAMP: when it was seen first, UTC
-- column gone TIMESTAMP: when it was no more; NULL: it is there
-- column why_gone VARCHAR: why
-- column position VARCHAR: place of the first record about it
SELECT e.cell, e.data->>'slice' AS slice, any_value(device) AS device,
       any_value(data->>'profile') AS profile, CAST(any_value(data->>'start') AS BIGINT) AS start,
       CAST(any_value(data->>'size') AS BIGINT) AS size,
       CAST(any_value(data->>'compute_slices') AS BIGINT) AS compute_slices,
       CAST(any_value(data->>'memory_mib') AS BIGINT) AS memory_mib,
       max(data->>'mig_uuid') FILTER (type = 'slice.present') AS mig_uuid,
       make_timestamp(min(time_us) FILTER (type = 'slice.ordered')) AS ordered,
       make_timestamp(min(time_us) FILTER (type = 'slice.present')) AS present,
       make_timestamp(max(time_us) FILTER (type = 'slice.gone')) AS gone,
       max(data->>'reason') FILTER (type = 'slice.gone') AS why_gone,
       place(any_value(partition), min("offset")) AS position
FROM events e WHERE type IN ('slice.ordered', 'slice.present', 'slice.gone')
GROUP BY e.cell, slice

-- view: orders
-- one row an order to a node: what, when, and what became of it
-- column cell VARCHAR: cell
-- column order VARCHAR: its id
-- column kind VARCHAR: clean, stop or partition
-- column node VARCHAR: node
-- column lease VARCHAR: lease that it is about
-- column request VARCHAR: request that a partition is made for
-- column units JSON: devices or slices that it is about
-- column steps JSON: of a partition, what to create and destroy
-- column cause VARCHAR: who sent the input that led to it
-- column issued TIMESTAMP: when, UTC
-- column due TIMESTAMP: when it is given up, UTC
-- column closed TIMESTAMP: when it was answered or given up; NULL: it is open
-- column outcome VARCHAR: done, failed, timed-out or superseded
-- column reason VARCHAR: why it failed
-- column took_us BIGINT: how long the node says that it took
-- column evidence JSON: what the node saw
-- column position VARCHAR: place of the record that issued it
SELECT i.cell, i."order", i.data->>'kind' AS kind, i.node, nullif(i.lease, '') AS lease, i.request,
       i.data->'units' AS units, i.data->'steps' AS steps, r.input_source AS cause,
       make_timestamp(i.time_us) AS issued,
       make_timestamp(CAST(i.data->>'due_us' AS BIGINT)) AS due,
       make_timestamp(c.time_us) AS closed, replace(c.type, 'order.', '') AS outcome,
       nullif(c.data->>'reason', '') AS reason,
       CAST(coalesce(c.data->>'took_us', c.data->>'clean_us') AS BIGINT) AS took_us,
       c.data->'evidence' AS evidence, place(i.partition, i."offset") AS position
FROM events i
JOIN records r ON r.partition = i.partition AND r."offset" = i."offset"
LEFT JOIN events c
       ON c.cell = i.cell AND c."order" = i."order"
          AND c.type IN ('order.done', 'order.failed', 'order.timed-out', 'order.superseded')
WHERE i.type = 'order.issued'

-- view: failures
-- one row a thing that broke: a node that was lost, a device or slice that broke or went
-- column cell VARCHAR: cell
-- column time TIMESTAMP: when the ledger learnt of it, UTC
-- column kind VARCHAR: node silent, node lost, node restarted, device unhealthy, device gone, device fault, slice gone, device quarantined or slice quarantined
-- column about VARCHAR: node, device or slice
-- column node VARCHAR: node that it is on
-- column reason VARCHAR: why
-- column evidence JSON: what its node saw
-- column partition INTEGER: partition of the events topic
-- column offset BIGINT: place of the record
-- column position VARCHAR: the same as events/PARTITION@OFFSET
WITH restarts AS (
    SELECT *, lag(data->>'incarnation') OVER (PARTITION BY cell, node ORDER BY "offset", n) AS old
    FROM events WHERE type = 'node.registered'
),
broken AS (
    SELECT cell, partition, "offset", time_us, 'node ' || (data->>'state') AS kind, node AS about,
           node, data->>'reason' AS reason, NULL AS evidence
    FROM events WHERE type = 'node.changed' AND (data->>'state') IN ('silent', 'lost')
    UNION ALL
    SELECT cell, partition, "offset", time_us, 'node restarted', node, node,
           'incarnation ' || (data->>'incarnation') || ' after ' || old, NULL
    FROM restarts WHERE old <> data->>'incarnation'
    UNION ALL
    SELECT cell, partition, "offset", time_us, 'device ' || (data->>'health'), device, NULL,
           data->>'reason', data->'evidence'
    FROM events WHERE type = 'device.health' AND (data->>'health') IN ('unhealthy', 'gone')
    UNION ALL
    SELECT cell, partition, "offset", time_us, 'device fault', device, NULL,
           (data->>'code') || ': ' || (data->>'reason'), data->'evidence'
    FROM events WHERE type = 'device.fault'
    UNION ALL
    SELECT cell, partition, "offset", time_us, 'slice gone', data->>'slice', NULL,
           data->>'reason', NULL
    FROM events WHERE type = 'slice.gone'
    UNION ALL
    SELECT cell, partition, "offset", time_us, replace(type, '.', ' '), data->>'unit', NULL,
           data->>'reason', data->'evidence'
    FROM events WHERE type IN ('device.quarantined', 'slice.quarantined')
)
SELECT b.cell, make_timestamp(b.time_us) AS time, b.kind, b.about, coalesce(b.node, d.node) AS node,
       b.reason, b.evidence, b.partition, b."offset", place(b.partition, b."offset") AS position
FROM broken b
LEFT JOIN slices s ON s.cell = b.cell AND s.slice = b.about
LEFT JOIN devices d
       ON d.cell = b.cell AND d.device = coalesce(s.device, b.about)
          AND d.since <= make_timestamp(b.time_us)
          AND (d.until IS NULL OR d.until > make_timestamp(b.time_us))
