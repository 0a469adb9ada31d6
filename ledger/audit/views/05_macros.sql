-- macro: held_at(ts)
-- Who held what at an instant: rows of holdings, with the quota as it was in force then.
-- column unit VARCHAR: device UUID, or the ledger's id of a slice
-- column device VARCHAR: device that the unit is, or is of
-- column node VARCHAR: node
-- column lease VARCHAR: lease
-- column who VARCHAR: on whose order
-- column tenant VARCHAR: tenant
-- column quota VARCHAR: quota that it counts against
-- column nominal_milli BIGINT: thousandths of a GPU that are the quota's own
-- column quota_author VARCHAR: who had set the quota so
-- column quota_position VARCHAR: place of the record that set it
-- column charge_milli BIGINT: thousandths that the unit counts
-- column granted TIMESTAMP: from when, UTC
-- column ended TIMESTAMP: until before; NULL: it is held
-- column position VARCHAR: place of the grant
SELECT h.unit, h.device, h.node, h.lease, h.who, h.tenant, h.quota, q.nominal_milli,
       q.author AS quota_author, q.position AS quota_position, h.charge_milli, h.granted, h.ended,
       h.position
FROM holdings h
LEFT JOIN quotas q
       ON q.cell = h.cell AND q.quota = h.quota AND q.since <= utc(ts)
          AND (q.until IS NULL OR q.until > utc(ts))
WHERE h.granted <= utc(ts) AND (h.ended IS NULL OR h.ended > utc(ts))

-- macro: as_of(ts)
-- Everything there was at an instant: one row a node, device, slice, request, lease, order or quota.
-- column kind VARCHAR: node, device, slice, request, lease, order or quota
-- column id VARCHAR: its id
-- column cell VARCHAR: cell
-- column state VARCHAR: of a node, request, lease or order its state; of a device its health
-- column tenant VARCHAR: whose it is, of what is somebody's
-- column node VARCHAR: where it is, of what is somewhere
-- column milli BIGINT: thousandths of a GPU: of a lease what it counts, of a quota what is nominal
-- column since TIMESTAMP: since when it is so, UTC
WITH t AS (SELECT utc(ts) AS instant),
asked AS (
    SELECT cell, request, arg_max(type, ("offset", n)) AS last, max(time_us) AS last_us,
           max("offset") FILTER (type = 'request.received') AS life
    FROM events, t
    WHERE make_timestamp(time_us) <= instant
          AND type IN ('request.received', 'request.queued', 'request.reserved',
                       'request.unreserved', 'request.ended', 'lease.granted')
    GROUP BY ALL
)
SELECT 'node' AS kind, node AS id, cell, state, NULL AS tenant, node, NULL AS milli, since
FROM nodes, t WHERE since <= instant AND (until IS NULL OR until > instant)
UNION ALL
SELECT 'device', device, cell, health, NULL, node, NULL, since
FROM devices, t WHERE since <= instant AND (until IS NULL OR until > instant)
UNION ALL
SELECT 'slice', slice, cell, CASE WHEN present <= instant THEN 'present' ELSE 'ordered' END,
       NULL, NULL, NULL, least(ordered, present)
FROM slices, t WHERE least(ordered, present) <= instant AND (gone IS NULL OR gone > instant)
UNION ALL
SELECT 'request', a.request, a.cell,
       CASE a.last WHEN 'lease.granted' THEN 'granted' WHEN 'request.reserved' THEN 'reserved'
                   ELSE 'queued' END,
       r.tenant, NULL, NULL, make_timestamp(a.last_us)
FROM asked a JOIN requests r
     ON r.cell = a.cell AND r.request = a.request AND r."offset" = a.life
WHERE a.last <> 'request.ended'
UNION ALL
SELECT 'lease', lease, cell,
       CASE WHEN stopping <= instant THEN 'stopping' WHEN started <= instant THEN 'running'
            ELSE 'granted' END,
       tenant, NULL, charge_milli, granted
FROM leases, t WHERE granted <= instant AND (ended IS NULL OR ended > instant)
UNION ALL
SELECT 'order', "order", cell, 'issued', NULL, node, NULL, issued
FROM orders, t WHERE issued <= instant AND (closed IS NULL OR closed > instant)
UNION ALL
SELECT 'quota', quota, cell, NULL, tenant, NULL, nominal_milli, since
FROM quotas, t WHERE since <= instant AND (until IS NULL OR until > instant)

-- macro: lease_timeline(id)
-- Everything that happened to a lease, in order: of its request, of itself, of its orders.
-- Of a name that was used again, once it was forgotten, it has all of them.
-- column position VARCHAR: place of the record
-- column time TIMESTAMP: when, UTC
-- column type VARCHAR: type of the event
-- column cause VARCHAR: who sent the input that led to it
-- column input_type VARCHAR: type of that input
-- column data JSON: the event
SELECT place(e.partition, e."offset") AS position, make_timestamp(e.time_us) AS time, e.type,
       r.input_source AS cause, r.input_type, e.data
FROM events e JOIN records r ON r.partition = e.partition AND r."offset" = e."offset"
WHERE e.lease = id
      OR (e.lease IS NULL AND e.request = regexp_extract(id, '^(.*)/[0-9]+$', 1))
      OR e."order" IN (SELECT i."order" FROM events i WHERE i.type = 'order.issued'
                       AND i.lease = id AND i.cell = e.cell)
ORDER BY e.partition, e."offset", e.n

-- macro: gpu_milli_us(tenant_, from_, to_)
-- GPU time that leases of a tenant count from an instant until before another, exactly: thousandths of a GPU x microseconds.
coalesce((SELECT sum(CAST(l.charge_milli AS HUGEINT)
                     * overlap_us(l.granted, coalesce(l.ended, e.last_time), from_, to_))
          FROM leases l JOIN log_end e ON e.partition = l.partition
          WHERE l.tenant = tenant_), 0)

-- macro: gpu_seconds(tenant_, from_, to_)
-- The same in GPU-seconds, exactly: nine digits after the point.
seconds(gpu_milli_us(tenant_, from_, to_))
