-- view: policy_changes
-- one row an act of an operator: what was set, by whom, why, and how it was before
-- column partition INTEGER: partition of the events topic
-- column offset BIGINT: place of the record
-- column position VARCHAR: the same as events/PARTITION@OFFSET
-- column time TIMESTAMP: when, UTC
-- column cell VARCHAR: cell
-- column type VARCHAR: type of the event
-- column about VARCHAR: pool, queue, quota, price book, node, device ... that it is about
-- column author VARCHAR: who
-- column reason VARCHAR: why
-- column source VARCHAR: who sent it
-- column data JSON: the event
-- column before JSON: the event of this type about the same thing before it; NULL: the first
SELECT e.partition, e."offset", place(e.partition, e."offset") AS position,
       make_timestamp(e.time_us) AS time, e.cell, e.type, about, e.data->>'author' AS author,
       e.data->>'reason' AS reason, r.input_source AS source, e.data,
       lag(e.data) OVER (PARTITION BY e.cell, e.type, about ORDER BY e."offset", e.n) AS before
FROM (SELECT *, CASE WHEN type = 'quota.applied'
                     THEN concat_ws('/', data->>'tenant', data->>'project')
                     -- A reservation is in a pool, and is not about it.
                     ELSE coalesce(data->>'reservation', data->>'pool', data->>'queue',
                                   data->>'template', data->>'ask', data->>'model_version',
                                   data->>'licence', data->>'book', lease, node, device, '')
                END AS about
      FROM events WHERE (data->>'author') IS NOT NULL) e
JOIN records r ON r.partition = e.partition AND r."offset" = e."offset"

-- view: quotas
-- one row a quota as it was in force for a time: from a change until the next
-- column cell VARCHAR: cell
-- column quota VARCHAR: its name: TENANT, or TENANT/PROJECT
-- column tenant VARCHAR: tenant
-- column project VARCHAR: project
-- column parent VARCHAR: quota above it
-- column nominal_milli BIGINT: thousandths of a GPU that are its own
-- column borrowing_milli BIGINT: how much more it may borrow; NULL: any
-- column lending_milli BIGINT: how much of its own it lends; NULL: all
-- column budget_milli_us BIGINT: GPU time of a period; NULL: no limit
-- column period_us BIGINT: length of that period
-- column limits JSON: limits of other resources
-- column author VARCHAR: who set it
-- column reason VARCHAR: why
-- column approver VARCHAR: who approved an increase that was asked for
-- column since TIMESTAMP: from when, UTC
-- column until TIMESTAMP: until before; NULL: it is in force
-- column partition INTEGER: partition of the events topic
-- column offset BIGINT: place of the record that set it
-- column until_offset BIGINT: place of the record that changed it; NULL: none has
-- column position VARCHAR: the place that set it as events/PARTITION@OFFSET
WITH changes AS (
    SELECT e.partition, e."offset", e.n, e.cell, e.time_us,
           coalesce(e.tenant, a.tenant) AS tenant,
           coalesce(e.data->>'project', a.data->>'project') AS project,
           CAST(coalesce(e.data->>'nominal_gpu_milli', a.data->>'nominal_gpu_milli') AS BIGINT)
               AS nominal_milli,
           e.data AS data, e.type = 'quota.applied' AS applied,
           coalesce(a.data->>'author', e.data->>'author') AS author,
           coalesce(a.data->>'reason', e.data->>'reason') AS reason,
           CASE WHEN e.type = 'quota.answered' THEN e.data->>'author' END AS approver
    FROM events e
    LEFT JOIN events a
           ON e.type = 'quota.answered' AND a.type = 'quota.asked' AND a.cell = e.cell
              AND a.data->>'ask' = e.data->>'ask'
    WHERE e.type = 'quota.applied' OR (e.type = 'quota.answered' AND (e.data->>'approve') = 'true')
),
kept AS (
    SELECT *, concat_ws('/', tenant, project) AS quota,
           -- An answer to an ask changes what is nominal, and nothing else.
           last_value(CASE WHEN applied THEN data END IGNORE NULLS) OVER w AS base,
           lead(time_us) OVER w AS until_us, lead("offset") OVER w AS until_offset
    FROM changes
    WINDOW w AS (PARTITION BY cell, tenant, project ORDER BY "offset", n)
)
SELECT cell, quota, tenant, project,
       CASE WHEN project IS NOT NULL THEN tenant ELSE base->>'parent' END AS parent, nominal_milli,
       CAST(base->>'borrowing_gpu_milli' AS BIGINT) AS borrowing_milli,
       CAST(base->>'lending_gpu_milli' AS BIGINT) AS lending_milli,
       CAST(base->>'budget_milli_us' AS BIGINT) AS budget_milli_us,
       CAST(base->>'period_us' AS BIGINT) AS period_us, base->'limits' AS limits,
       author, reason, approver, make_timestamp(time_us) AS since,
       make_timestamp(until_us) AS until, partition, "offset", until_offset,
       place(partition, "offset") AS position
FROM kept

-- view: reservations
-- one row a time that was reserved: for whom, what, where, and how it ended
-- column cell VARCHAR: cell
-- column reservation VARCHAR: its name
-- column tenant VARCHAR: for whom
-- column nodes JSON: the nodes that were chosen first
-- column count BIGINT: devices of each
-- column start TIMESTAMP: from when, UTC
-- column finish TIMESTAMP: until before, UTC
-- column author VARCHAR: who made it
-- column reason VARCHAR: why
-- column made TIMESTAMP: when it was made, UTC
-- column moved BIGINT: how often it was given other nodes
-- column ended TIMESTAMP: when it was over, UTC; NULL: it is not
-- column how VARCHAR: over, cancelled or replaced
-- column position VARCHAR: place of the record that made it
WITH steps AS (
    SELECT *, data->>'reservation' AS reservation,
           sum(CASE WHEN type = 'reservation.applied' THEN 1 END) OVER (
               PARTITION BY cell, data->>'reservation' ORDER BY "offset", n) AS life
    FROM events WHERE type LIKE 'reservation.%'
)
SELECT cell, reservation, first(s.tenant) FILTER (type = 'reservation.applied') AS tenant,
       first(data->'chosen') FILTER (type = 'reservation.applied') AS nodes,
       CAST(first(data->>'count') FILTER (type = 'reservation.applied') AS BIGINT) AS count,
       make_timestamp(CAST(first(data->>'start_us') FILTER (type = 'reservation.applied')
                      AS BIGINT)) AS start,
       make_timestamp(CAST(first(data->>'end_us') FILTER (type = 'reservation.applied')
                      AS BIGINT)) AS finish,
       first(data->>'author') FILTER (type = 'reservation.applied') AS author,
       first(data->>'reason') FILTER (type = 'reservation.applied') AS reason,
       make_timestamp(min(time_us)) AS made,
       count(*) FILTER (type = 'reservation.moved') AS moved,
       make_timestamp(coalesce(max(time_us) FILTER (type = 'reservation.ended'),
                               any_value(next_us))) AS ended,
       coalesce(first(data->>'how') FILTER (type = 'reservation.ended'),
                CASE WHEN any_value(next_us) IS NOT NULL THEN 'replaced' END) AS how,
       any_value(place(partition, "offset")) FILTER (type = 'reservation.applied') AS position
FROM steps s
LEFT JOIN (SELECT cell AS of_cell, reservation AS of, life - 1 AS of_life, time_us AS next_us
           FROM steps WHERE type = 'reservation.applied') later
       ON of_cell = cell AND of = reservation AND of_life = life
GROUP BY cell, reservation, life
