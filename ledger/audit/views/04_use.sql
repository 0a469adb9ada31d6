-- view: requests
-- one row a request: who asked for what, its answer, how it ended; times UTC
-- column request VARCHAR: its id, SOURCE#ID
-- column who VARCHAR: the source that sent it: on whose order everything of it is
-- column cell VARCHAR: cell
-- column tenant VARCHAR: tenant
-- column project VARCHAR: project
-- column queue VARCHAR: queue
-- column task VARCHAR: the requester's own id of what runs
-- column task_type VARCHAR: training, online-inference ...
-- column need JSON: what it asks, normalised; NULL: it was rejected before
-- column mode VARCHAR: whole, mig or share
-- column priority BIGINT: priority
-- column preemptible BOOLEAN: it may be evicted
-- column received TIMESTAMP: when, UTC
-- column first_granted TIMESTAMP: when it was first granted, UTC
-- column ended TIMESTAMP: when it was over, UTC; NULL: it is not
-- column state VARCHAR: rejected, queued, reserved, granted, or how it ended
-- column last_no VARCHAR: why it last had to wait, or was rejected
-- column leases BIGINT: how many leases it had
-- column partition INTEGER: partition of the events topic
-- column offset BIGINT: place of the record that took it in or rejected it
-- column position VARCHAR: the same as events/PARTITION@OFFSET
-- A source that uses an id again, once it is forgotten, has requests of the same name.
WITH lives AS (
    SELECT cell, request, "offset" AS life,
           lead("offset") OVER (PARTITION BY cell, request ORDER BY "offset") AS next_life
    FROM events WHERE type = 'request.received'
),
told AS (
    SELECT cell, request, life,
           min(time_us) FILTER (type = 'lease.granted') AS granted_us,
           max(time_us) FILTER (type = 'request.ended') AS ended_us,
           any_value(data->>'how') FILTER (type = 'request.ended') AS how,
           arg_max(type, ("offset", n)) FILTER (type <> 'request.ended') AS last,
           arg_max(data->>'code', ("offset", n)) FILTER (type = 'request.queued') AS last_no,
           count(*) FILTER (type = 'lease.granted') AS leases
    FROM events JOIN lives USING (cell, request)
    WHERE type IN ('request.queued', 'request.reserved', 'request.unreserved', 'request.ended',
                   'lease.granted')
          AND "offset" >= life AND (next_life IS NULL OR "offset" < next_life)
    GROUP BY ALL
)
SELECT r.request, split_part(r.request, '#', 1) AS who, r.cell, r.tenant,
       r.data->>'project' AS project, r.data->>'queue' AS queue, r.data->>'task' AS task,
       r.data->>'task_type' AS task_type, r.data->'need' AS need, r.data->'need'->>'mode' AS mode,
       CAST(coalesce(r.data->>'priority', '0') AS BIGINT) AS priority,
       CAST(coalesce(r.data->>'preemptible', 'false') AS BOOLEAN) AS preemptible,
       make_timestamp(r.time_us) AS received, make_timestamp(t.granted_us) AS first_granted,
       make_timestamp(t.ended_us) AS ended,
       coalesce(t.how, CASE t.last WHEN 'lease.granted' THEN 'granted'
                                   WHEN 'request.reserved' THEN 'reserved'
                                   ELSE 'queued' END) AS state,
       t.last_no, coalesce(t.leases, 0) AS leases, r.partition, r."offset",
       place(r.partition, r."offset") AS position
FROM events r
LEFT JOIN told t ON t.cell = r.cell AND t.request = r.request AND t.life = r."offset"
WHERE r.type = 'request.received'
UNION ALL
SELECT e.request, split_part(e.request, '#', 1), e.cell, e.tenant, i.input->>'project',
       i.input->>'queue', i.input->'task'->>'id', i.input->'task'->>'type', NULL,
       i.input->'ask'->>'mode', CAST(coalesce(i.input->>'priority', '0') AS BIGINT),
       CAST(coalesce(i.input->>'preemptible', 'false') AS BOOLEAN), make_timestamp(e.time_us),
       NULL, make_timestamp(e.time_us), 'rejected', e.data->>'code', 0, e.partition, e."offset",
       place(e.partition, e."offset")
FROM events e JOIN records i ON i.partition = e.partition AND i."offset" = e."offset"
WHERE e.type = 'request.rejected'

-- view: waits
-- one row a stretch of waiting for one reason
-- column cell VARCHAR: cell
-- column request VARCHAR: who waits
-- column request_offset BIGINT: offset of its row in requests
-- column tenant VARCHAR: tenant
-- column queue VARCHAR: queue
-- column code VARCHAR: why; reserved: a place is kept and not all of it is free and clean
-- column numbers JSON: the numbers that were compared
-- column again BOOLEAN: it had a lease that was interrupted
-- column since TIMESTAMP: from when, UTC
-- column until TIMESTAMP: until before; NULL: it still waits for it
-- column waited_us BIGINT: how long, up to the last record of the partition if it still waits
-- column then VARCHAR: type of the event that ended it
-- column position VARCHAR: place of the record that says so
WITH steps AS (
    SELECT *, lead(time_us) OVER w AS next_us, lead(type) OVER w AS next
    FROM events
    WHERE type IN ('request.queued', 'request.reserved', 'request.unreserved', 'request.ended',
                   'lease.granted')
    WINDOW w AS (PARTITION BY cell, request ORDER BY "offset", n)
),
ends AS (SELECT partition, epoch_us(last_time) AS end_us FROM log_end)
SELECT s.cell, s.request, r."offset" AS request_offset, r.tenant, r.data->>'queue' AS queue,
       CASE s.type WHEN 'request.reserved' THEN 'reserved' WHEN 'request.unreserved'
                   THEN 'place_lost' ELSE s.data->>'code' END AS code,
       coalesce(s.data->'numbers', s.data->'why') AS numbers,
       coalesce(CAST(s.data->>'again' AS BOOLEAN), false) AS again,
       make_timestamp(s.time_us) AS since, make_timestamp(s.next_us) AS until,
       coalesce(s.next_us, e.end_us) - s.time_us AS waited_us, s.next AS "then",
       place(s.partition, s."offset") AS position
FROM steps s
JOIN ends e ON e.partition = s.partition
ASOF LEFT JOIN (FROM events WHERE type = 'request.received') r
     ON r.cell = s.cell AND r.request = s.request AND r."offset" <= s."offset"
WHERE s.type IN ('request.queued', 'request.reserved', 'request.unreserved')

-- view: leases
-- one row a lease: what it holds, for whom, under which quota, from when to when, why it ended
-- column lease VARCHAR: its id, SOURCE#ID/ATTEMPT
-- column request VARCHAR: request that it answers
-- column request_offset BIGINT: offset of its row in requests
-- column who VARCHAR: the source that sent the request: on whose order
-- column cell VARCHAR: cell
-- column tenant VARCHAR: tenant
-- column project VARCHAR: project
-- column queue VARCHAR: queue
-- column task_type VARCHAR: training, online-inference ...
-- column mode VARCHAR: whole, mig or share
-- column quota VARCHAR: name of the quota that it counts against
-- column attempt BIGINT: which lease of the request it is
-- column charge_milli BIGINT: thousandths of a GPU that it counts
-- column granted TIMESTAMP: from when, UTC
-- column started TIMESTAMP: when its task was first seen running, UTC
-- column due TIMESTAMP: when it ends at the latest, UTC; NULL: no limit
-- column stopping TIMESTAMP: when it was told to end, UTC
-- column stopped_by VARCHAR: operator who ended it, or request that it was evicted for
-- column ended TIMESTAMP: until before; NULL: it lasts
-- column held_us BIGINT: how long it was held
-- column reason VARCHAR: why it ended
-- column outcome VARCHAR: completed, failed, stopped or interrupted
-- column parts JSON: nodes and units
-- column why JSON: by which rule and numbers it was placed
-- column partition INTEGER: partition of the events topic
-- column offset BIGINT: place of the record that granted it
-- column ended_offset BIGINT: place of the record that ended it
-- column position VARCHAR: place of the grant as events/PARTITION@OFFSET
-- A source that uses an id again, once it is forgotten, has leases of the same name.
WITH lives AS (
    SELECT cell, lease, "offset" AS life,
           lead("offset") OVER (PARTITION BY cell, lease ORDER BY "offset") AS next_life
    FROM events WHERE type = 'lease.granted'
),
told AS (
    SELECT cell, lease, life,
           min(time_us) FILTER (type = 'lease.started') AS started_us,
           min(time_us) FILTER (type = 'lease.stopping') AS stopping_us,
           arg_max(coalesce(data->>'author', data->>'by'), ("offset", n))
               FILTER (type = 'lease.stopping') AS stopped_by,
           arg_max(CAST(data->>'due_us' AS BIGINT), ("offset", n))
               FILTER (type = 'lease.extended') AS due_us,
           any_value(time_us) FILTER (type = 'lease.ended') AS ended_us,
           any_value("offset") FILTER (type = 'lease.ended') AS ended_offset,
           any_value(data->>'reason') FILTER (type = 'lease.ended') AS reason,
           any_value(CAST(data->>'held_us' AS BIGINT)) FILTER (type = 'lease.ended') AS held_us
    FROM events JOIN lives USING (cell, lease)
    WHERE type IN ('lease.started', 'lease.stopping', 'lease.extended', 'lease.ended')
          AND "offset" >= life AND (next_life IS NULL OR "offset" < next_life)
    GROUP BY ALL
)
SELECT g.lease, g.request, r."offset" AS request_offset,
       split_part(g.request, '#', 1) AS who, g.cell, r.tenant,
       r.data->>'project' AS project, r.data->>'queue' AS queue,
       r.data->>'task_type' AS task_type, r.data->'need'->>'mode' AS mode,
       -- A project without a quota of its own counts against its tenant's.
       CASE WHEN q.first_us <= g.time_us THEN q.quota ELSE r.tenant END AS quota,
       CAST(g.data->>'attempt' AS BIGINT) AS attempt,
       CAST(g.data->>'charge_milli' AS BIGINT) AS charge_milli,
       make_timestamp(g.time_us) AS granted, make_timestamp(t.started_us) AS started,
       make_timestamp(coalesce(t.due_us, CAST(g.data->>'due_us' AS BIGINT))) AS due,
       make_timestamp(t.stopping_us) AS stopping, t.stopped_by,
       make_timestamp(t.ended_us) AS ended, t.held_us, t.reason, o.outcome,
       g.data->'parts' AS parts, g.data->'why' AS why, g.partition, g."offset", t.ended_offset,
       place(g.partition, g."offset") AS position
FROM events g
LEFT JOIN told t ON t.cell = g.cell AND t.lease = g.lease AND t.life = g."offset"
LEFT JOIN endings o ON o.reason = t.reason
ASOF LEFT JOIN (FROM events WHERE type = 'request.received') r
     ON r.cell = g.cell AND r.request = g.request AND r."offset" <= g."offset"
LEFT JOIN (SELECT cell, tenant, data->>'project' AS project,
                  tenant || '/' || (data->>'project') AS quota, min(time_us) AS first_us
           FROM events WHERE type = 'quota.applied' AND (data->>'project') IS NOT NULL
           GROUP BY ALL) q
       ON q.cell = g.cell AND q.tenant = r.tenant AND q.project = r.data->>'project'
WHERE g.type = 'lease.granted'

-- view: holdings
-- one row a device or slice of a lease: where, whose, how much of it, times UTC
-- column unit VARCHAR: device UUID, or the ledger's id of a slice
-- column device VARCHAR: device that the unit is, or is of
-- column mig_uuid VARCHAR: MIG UUID of a slice
-- column profile VARCHAR: profile of a slice
-- column node VARCHAR: node on which it was leased
-- column lease VARCHAR: lease
-- column request VARCHAR: request
-- column who VARCHAR: on whose order
-- column cell VARCHAR: cell
-- column tenant VARCHAR: tenant
-- column project VARCHAR: project
-- column quota VARCHAR: quota that it counts against
-- column mode VARCHAR: whole, mig or share
-- column charge_milli BIGINT: thousandths that the unit counts
-- column granted TIMESTAMP: from when, UTC
-- column ended TIMESTAMP: until before; NULL: it is held
-- column reason VARCHAR: why it ended
-- column cleaned TIMESTAMP: when it was proved clean, UTC; NULL: it was not
-- column partition INTEGER: partition of the events topic
-- column position VARCHAR: place of the grant
WITH units AS (
    SELECT l.*, part.value->>'node' AS node, unit.value->>'$' AS unit,
           row_number() OVER (PARTITION BY l.cell, l.lease, l."offset"
                              ORDER BY CAST(part.key AS BIGINT), CAST(unit.key AS BIGINT)) - 1
               AS nth,
           count(*) OVER (PARTITION BY l.cell, l.lease, l."offset") AS units
    FROM leases l, json_each(l.parts) AS part, json_each(part.value, '$.units') AS unit
),
cleaned AS (
    SELECT cell, lease, unit.value->>'$' AS unit, list(closed) AS closed
    FROM orders, json_each(units) AS unit
    WHERE kind = 'clean' AND outcome = 'done' GROUP BY ALL
)
SELECT u.unit, coalesce(s.device, u.unit) AS device, s.mig_uuid, s.profile, u.node, u.lease,
       u.request, u.who, u.cell, u.tenant, u.project, u.quota, u.mode,
       -- What cannot be shared evenly falls on the first.
       u.charge_milli // u.units + CASE WHEN u.nth < u.charge_milli % u.units THEN 1 ELSE 0 END
           AS charge_milli,
       u.granted, u.ended, u.reason,
       list_min(list_filter(c.closed, lambda one: one >= u.granted)) AS cleaned, u.partition,
       u.position
FROM units u
LEFT JOIN slices s ON s.cell = u.cell AND s.slice = u.unit
LEFT JOIN cleaned c ON c.cell = u.cell AND c.lease = u.lease AND c.unit = u.unit

-- view: interruptions
-- one row a lease that was taken away or broke: what did it, and what came after
-- column cell VARCHAR: cell
-- column lease VARCHAR: lease
-- column request VARCHAR: request
-- column tenant VARCHAR: tenant
-- column queue VARCHAR: queue
-- column reason VARCHAR: why it ended
-- column by VARCHAR: operator, or request that it was evicted for
-- column cause VARCHAR: what sent the input that ended it
-- column granted TIMESTAMP: from when, UTC
-- column ended TIMESTAMP: when it ended, UTC
-- column held_us BIGINT: how long it had been held
-- column lost_milli_us HUGEINT: thousandths x microseconds of work that this was
-- column request_state VARCHAR: what became of the request: queued, granted ... or how it ended
-- column again TIMESTAMP: when it was granted again, UTC; NULL: it was not
-- column position VARCHAR: place of the record that ended it
SELECT l.cell, l.lease, l.request, l.tenant, l.queue, l.reason, l.stopped_by AS by,
       r.input_source AS cause, l.granted, l.ended, l.held_us,
       CAST(l.held_us AS HUGEINT) * l.charge_milli AS lost_milli_us, q.state AS request_state,
       n.granted AS again, place(l.partition, l.ended_offset) AS position
FROM leases l
JOIN records r ON r.partition = l.partition AND r."offset" = l.ended_offset
LEFT JOIN requests q
       ON q.cell = l.cell AND q.request = l.request AND q."offset" = l.request_offset
LEFT JOIN leases n ON n.cell = l.cell AND n.request = l.request
                      AND n.request_offset = l.request_offset AND n.attempt = l.attempt + 1
WHERE l.outcome = 'interrupted'

-- view: preemptions
-- one row an eviction: whose lease was told to stop for whose request
-- column cell VARCHAR: cell
-- column time TIMESTAMP: when, UTC
-- column lease VARCHAR: lease that had to stop
-- column tenant VARCHAR: whose it was
-- column queue VARCHAR: queue of the evicted
-- column priority BIGINT: priority of the evicted
-- column by_request VARCHAR: request that it was evicted for
-- column by_tenant VARCHAR: whose that is
-- column by_priority BIGINT: priority of that
-- column rule VARCHAR: entitlement under which it was evicted
-- column ended TIMESTAMP: when the lease was over, UTC; NULL: it still stops
-- column position VARCHAR: place of the record
SELECT e.cell, make_timestamp(e.time_us) AS time, e.lease, l.tenant, l.queue, v.priority,
       e.data->>'by' AS by_request, b.tenant AS by_tenant, b.priority AS by_priority,
       e.data->>'rule' AS rule, l.ended, place(e.partition, e."offset") AS position
FROM events e
ASOF LEFT JOIN leases l ON l.cell = e.cell AND l.lease = e.lease AND l."offset" <= e."offset"
LEFT JOIN requests v
       ON v.cell = e.cell AND v.request = l.request AND v."offset" = l.request_offset
ASOF LEFT JOIN requests b
     ON b.cell = e.cell AND b.request = e.data->>'by' AND b."offset" <= e."offset"
WHERE e.type = 'lease.stopping' AND (e.data->>'reason') = 'preempted'

-- view: idles
-- one row a stretch in which a lease was held and its task used nothing, as its node says
-- column cell VARCHAR: cell
-- column lease VARCHAR: lease
-- column tenant VARCHAR: tenant
-- column queue VARCHAR: queue
-- column charge_milli BIGINT: thousandths of a GPU that it counts
-- column since TIMESTAMP: from when, UTC
-- column until TIMESTAMP: until before; NULL: it still is
-- column idle_us BIGINT: how long, up to the last record of the partition if it still is
-- column then VARCHAR: what ended it: busy, or why the lease ended
-- column position VARCHAR: place of the record that says so
WITH steps AS (
    SELECT *, lead(time_us) OVER w AS next_us, lead(type) OVER w AS next
    FROM events WHERE type IN ('lease.idle', 'lease.ended')
    WINDOW w AS (PARTITION BY cell, lease ORDER BY "offset", n)
),
ends AS (SELECT partition, epoch_us(last_time) AS end_us FROM log_end)
SELECT s.cell, s.lease, l.tenant, l.queue, l.charge_milli,
       make_timestamp(CAST(s.data->>'since_us' AS BIGINT)) AS since,
       make_timestamp(s.next_us) AS until,
       coalesce(s.next_us, e.end_us) - CAST(s.data->>'since_us' AS BIGINT) AS idle_us,
       CASE s.next WHEN 'lease.idle' THEN 'busy' WHEN 'lease.ended' THEN l.reason END AS "then",
       place(s.partition, s."offset") AS position
FROM steps s
JOIN ends e ON e.partition = s.partition
ASOF LEFT JOIN leases l ON l.cell = s.cell AND l.lease = s.lease AND l."offset" <= s."offset"
WHERE s.type = 'lease.idle' AND (s.data->>'since_us') IS NOT NULL

-- view: quota_use
-- one row a stretch in which a quota and what is leased under it stay the same
-- column cell VARCHAR: cell
-- column quota VARCHAR: TENANT (with all its projects) or TENANT/PROJECT
-- column held_milli BIGINT: thousandths of a GPU that its leases count
-- column nominal_milli BIGINT: thousandths that are its own; NULL: it has no quota
-- column over_milli BIGINT: held beyond nominal (borrowed, or the quota was lowered under it)
-- column since TIMESTAMP: from when, UTC
-- column until TIMESTAMP: until before; NULL: it still is
WITH counted AS (
    SELECT cell, tenant AS quota, granted, ended, charge_milli FROM leases
    UNION ALL
    SELECT cell, quota, granted, ended, charge_milli FROM leases WHERE quota <> tenant
),
steps AS (
    SELECT cell, quota, granted AS moment, charge_milli AS milli, NULL AS nominal FROM counted
    UNION ALL SELECT cell, quota, ended, -charge_milli, NULL FROM counted WHERE ended IS NOT NULL
    UNION ALL SELECT cell, quota, since, 0, nominal_milli FROM quotas
              WHERE until IS NULL OR until > since
),
moments AS (
    SELECT cell, quota, moment, sum(milli) AS milli, max(nominal) AS nominal FROM steps GROUP BY ALL
)
SELECT cell, quota, CAST(sum(milli) OVER w AS BIGINT) AS held_milli,
       last_value(nominal IGNORE NULLS) OVER w AS nominal_milli,
       greatest(CAST(sum(milli) OVER w AS BIGINT)
                - coalesce(last_value(nominal IGNORE NULLS) OVER w, 0), 0) AS over_milli,
       moment AS since, lead(moment) OVER w AS until
FROM moments WINDOW w AS (PARTITION BY cell, quota ORDER BY moment)

-- view: alarms
-- one row an alarm: something that a person should look at
-- column cell VARCHAR: cell
-- column time TIMESTAMP: when, UTC
-- column code VARCHAR: which
-- column about VARCHAR: what it is about
-- column numbers JSON: what was found
-- column position VARCHAR: place of the record
SELECT cell, make_timestamp(time_us) AS time, data->>'code' AS code, data->>'about' AS about,
       data->'numbers' AS numbers, place(partition, "offset") AS position
FROM events WHERE type = 'alarm.raised'
