-- report: denials
-- Who was refused, by which rule, and how often?
-- parameter from = : from when, UTC
-- parameter to = : until before, UTC
-- parameter tenant = : only this tenant
-- column tenant VARCHAR: who asked; NULL: no tenant did
-- column input_type VARCHAR: what was asked
-- column code VARCHAR: the rule
-- column answer VARCHAR: transient (may become a yes by itself) or final
-- column meaning VARCHAR: what the rule says
-- column count BIGINT: how often
-- column first TIMESTAMP: first time, UTC
-- column last TIMESTAMP: last time, UTC
-- column example VARCHAR: place of the last one: its numbers are there
SELECT d.tenant, d.input_type, d.code, d.answer, any_value(c.meaning) AS meaning, count(*) AS count,
       min(d.time) AS first, max(d.time) AS last,
       arg_max(d.position, (d.time, d.partition, d."offset")) AS example
FROM denials d LEFT JOIN codes c ON c.code = d.code
WHERE d.source_topic = 'requests'
  AND (CAST($tenant AS VARCHAR) IS NULL OR d.tenant = $tenant)
  AND (utc($from) IS NULL OR d.time >= utc($from)) AND (utc($to) IS NULL OR d.time < utc($to))
GROUP BY d.tenant, d.input_type, d.code, d.answer
ORDER BY d.tenant, d.input_type, d.code

-- report: waits-of
-- What did a request wait for, stretch by stretch, with the numbers?
-- parameter request: the request, SOURCE#ID
-- column since TIMESTAMP: from when, UTC
-- column until TIMESTAMP: until before; NULL: it still waits
-- column waited_us BIGINT: how long
-- column code VARCHAR: why
-- column numbers JSON: the numbers that were compared
-- column then VARCHAR: type of the event that ended it
-- column position VARCHAR: place of the record
SELECT since, until, waited_us, code, numbers, "then", position
FROM waits WHERE request = $request
ORDER BY since, epoch_us(until) NULLS LAST, position

-- report: longest-waits
-- Which requests waited longest, and mostly for what?
-- parameter from = : received from then on, UTC
-- parameter to = : received before, UTC
-- parameter tenant = : only this tenant's
-- column request VARCHAR: request
-- column tenant VARCHAR: tenant
-- column queue VARCHAR: queue
-- column state VARCHAR: what became of it
-- column waited_us BIGINT: how long in all
-- column mostly VARCHAR: reason for which it waited longest
SELECT r.request, r.tenant, r.queue, r.state, CAST(sum(w.waited_us) AS BIGINT) AS waited_us,
       arg_max(w.code, (w.waited_us, w.code)) AS mostly
FROM requests r
JOIN (SELECT cell, request, request_offset, code, sum(waited_us) AS waited_us
      FROM waits GROUP BY ALL) w
  ON w.cell = r.cell AND w.request = r.request AND w.request_offset = r."offset"
WHERE (CAST($tenant AS VARCHAR) IS NULL OR r.tenant = $tenant)
  AND (utc($from) IS NULL OR r.received >= utc($from))
  AND (utc($to) IS NULL OR r.received < utc($to))
GROUP BY r.cell, r.request, r."offset", r.tenant, r.queue, r.state
HAVING sum(w.waited_us) > 0
ORDER BY waited_us DESC, r.request

-- report: unanswered
-- Which requests still wait for their answer, since when, and why?
-- parameter tenant = : only this tenant's
-- column request VARCHAR: request
-- column tenant VARCHAR: tenant
-- column queue VARCHAR: queue
-- column state VARCHAR: queued or reserved
-- column received TIMESTAMP: since when, UTC
-- column age_us BIGINT: how long that is, up to the last record
-- column last_no VARCHAR: why it waits
SELECT r.request, r.tenant, r.queue, r.state, r.received,
       epoch_us(e.last_time) - epoch_us(r.received) AS age_us, r.last_no
FROM requests r JOIN log_end e ON r.position LIKE 'events/' || e.partition || '@%'
WHERE r.state IN ('queued', 'reserved')
  AND (CAST($tenant AS VARCHAR) IS NULL OR r.tenant = $tenant)
ORDER BY r.received, r.request

-- report: conflicts
-- Which ids were used again with other content (L1)?
-- column time TIMESTAMP: when, UTC
-- column who VARCHAR: who sent it
-- column id VARCHAR: the id
-- column input_type VARCHAR: type of what came second
-- column input JSON: what it said
-- column position VARCHAR: place of the record
-- column first_position VARCHAR: place of what had come first
SELECT d.time, d.input_source AS who, d.input_id AS id, d.input_type, d.input, d.position,
       (SELECT arg_min(o.position, o."offset") FROM decisions o
        WHERE o.partition = d.partition AND o.input_source = d.input_source
          AND o.input_id = d.input_id AND o.code <> 'id_conflict') AS first_position
FROM decisions d WHERE d.code = 'id_conflict'
ORDER BY d.time, d.position
