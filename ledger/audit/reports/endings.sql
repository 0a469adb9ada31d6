-- report: preemptions
-- Who preempted whom, and under which rule?
-- parameter from = : from when, UTC
-- parameter to = : until before, UTC
-- parameter tenant = : only where this tenant evicted or was evicted
-- column time TIMESTAMP: when, UTC
-- column by_tenant VARCHAR: who preempted
-- column by_request VARCHAR: for which request
-- column by_priority BIGINT: its priority
-- column tenant VARCHAR: whom
-- column lease VARCHAR: which lease had to stop
-- column priority BIGINT: its priority
-- column rule VARCHAR: the entitlement
-- column ended TIMESTAMP: when it was over, UTC
-- column position VARCHAR: place of the record
SELECT time, by_tenant, by_request, by_priority, tenant, lease, priority, rule, ended, position
FROM preemptions
WHERE (CAST($tenant AS VARCHAR) IS NULL OR tenant = $tenant OR by_tenant = $tenant)
  AND (utc($from) IS NULL OR time >= utc($from)) AND (utc($to) IS NULL OR time < utc($to))
ORDER BY time, lease

-- report: interrupted
-- What did each failure interrupt?
-- parameter from = : failures from then on, UTC
-- parameter to = : failures before, UTC
-- parameter node = : only on this node
-- column time TIMESTAMP: when the ledger learnt of the failure, UTC
-- column kind VARCHAR: what failed
-- column about VARCHAR: node, device or slice
-- column node VARCHAR: node
-- column why VARCHAR: why
-- column position VARCHAR: place of its record
-- column lease VARCHAR: lease that it ended; NULL: it ended none
-- column tenant VARCHAR: whose
-- column held_us BIGINT: how long that had been held
-- column again TIMESTAMP: when its request was granted again, UTC
WITH ended AS (
    SELECT DISTINCT l.cell, l.lease, l.tenant, l.held_us, l.ended_offset, l.request,
           l.request_offset, l.attempt,
           replace(l.reason, '-', ' ') AS kind, unnest([h.node, h.device, h.unit]) AS about
    FROM leases l
    JOIN holdings h ON h.cell = l.cell AND h.lease = l.lease AND h.position = l.position
    WHERE l.outcome = 'interrupted'
),
caused AS (
    -- A failure is told before, or in the record itself, that ends what it broke.
    SELECT e.cell, e.lease, e.tenant, e.held_us, e.request, e.request_offset, e.attempt,
           arg_max((f.position, f.about, f.kind), (f."offset", f.about)) AS failure
    FROM ended e JOIN failures f
      ON f.cell = e.cell AND f.kind = e.kind AND f.about = e.about AND f."offset" <= e.ended_offset
    GROUP BY ALL
)
SELECT f.time, f.kind, f.about, f.node, f.reason AS why, f.position, c.lease, c.tenant, c.held_us,
       n.granted AS again
FROM failures f
LEFT JOIN caused c ON c.cell = f.cell AND c.failure = (f.position, f.about, f.kind)
LEFT JOIN leases n ON n.cell = c.cell AND n.request = c.request
                      AND n.request_offset = c.request_offset AND n.attempt = c.attempt + 1
WHERE (CAST($node AS VARCHAR) IS NULL OR f.node = $node)
  AND (utc($from) IS NULL OR f.time >= utc($from)) AND (utc($to) IS NULL OR f.time < utc($to))
ORDER BY f.time, f.kind, f.about, c.lease

-- report: taken-back
-- Which leases did an operator end, and why?
-- parameter from = : from when, UTC
-- parameter to = : until before, UTC
-- column time TIMESTAMP: when it was told to end, UTC
-- column author VARCHAR: who
-- column reason VARCHAR: why
-- column lease VARCHAR: lease
-- column tenant VARCHAR: whose
-- column ended TIMESTAMP: when it was over, UTC; NULL: it still stops
-- column position VARCHAR: place of the record
SELECT d.time, d.input->>'author' AS author, d.input->>'reason' AS reason, l.lease, l.tenant,
       l.ended, d.position
FROM decisions d
ASOF JOIN leases l
     ON l.cell = d.cell AND l.lease = d.input->>'lease' AND l."offset" <= d."offset"
WHERE d.input_type = 'lease.reclaim' AND d.answer = 'yes'
  AND (utc($from) IS NULL OR d.time >= utc($from)) AND (utc($to) IS NULL OR d.time < utc($to))
ORDER BY d.time, l.lease

-- report: layout-changes
-- Which cards were cut anew, for whom, and did it work?
-- parameter from = : ordered from then on, UTC
-- parameter to = : ordered before, UTC
-- parameter node = : only on this node
-- column issued TIMESTAMP: when it was ordered, UTC
-- column node VARCHAR: node
-- column device VARCHAR: card
-- column request VARCHAR: request that it is for; NULL: an operator's order
-- column cause VARCHAR: who sent the input that led to it
-- column steps JSON: what to create and destroy
-- column outcome VARCHAR: done, failed, timed-out, superseded; NULL: it is open
-- column reason VARCHAR: why it failed
-- column took_us BIGINT: from the order to its end
-- column position VARCHAR: place of the order
SELECT issued, node, units->>'$[0]' AS device, request, cause, steps, outcome, reason,
       epoch_us(closed) - epoch_us(issued) AS took_us, position
FROM orders
WHERE kind = 'partition' AND (CAST($node AS VARCHAR) IS NULL OR node = $node)
  AND (utc($from) IS NULL OR issued >= utc($from)) AND (utc($to) IS NULL OR issued < utc($to))
ORDER BY issued, "order"
