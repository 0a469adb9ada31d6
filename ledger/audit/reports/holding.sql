-- report: who-held
-- Who held a GPU at an instant, under which quota, and on whose order?
-- parameter at: the instant, UTC
-- parameter device = : only this device or slice
-- parameter tenant = : only what this tenant held
-- parameter node = : only what is on this node
-- column unit VARCHAR: device UUID, or the ledger's id of a slice
-- column device VARCHAR: device that the unit is, or is of
-- column node VARCHAR: node
-- column tenant VARCHAR: who held it
-- column lease VARCHAR: under which lease
-- column who VARCHAR: on whose order
-- column quota VARCHAR: under which quota
-- column nominal_milli BIGINT: what that quota was then
-- column quota_author VARCHAR: who had set it so
-- column granted TIMESTAMP: since when, UTC
-- column position VARCHAR: place of the grant
SELECT unit, device, node, tenant, lease, who, quota, nominal_milli, quota_author, granted, position
FROM held_at($at)
WHERE (CAST($device AS VARCHAR) IS NULL OR device = $device OR unit = $device)
  AND (CAST($tenant AS VARCHAR) IS NULL OR tenant = $tenant)
  AND (CAST($node AS VARCHAR) IS NULL OR node = $node)
ORDER BY device, unit, lease

-- report: device-history
-- Who had a device or slice, one after the other, and when was it proved clean in between?
-- parameter device: device UUID, or id of a slice
-- parameter from = : leases that ended after this, UTC
-- parameter to = : leases that were granted before this, UTC
-- column unit VARCHAR: device UUID, or the ledger's id of a slice
-- column lease VARCHAR: lease
-- column tenant VARCHAR: whose
-- column who VARCHAR: on whose order
-- column charge_milli BIGINT: thousandths of a GPU
-- column granted TIMESTAMP: from when, UTC
-- column ended TIMESTAMP: until before; NULL: it is held
-- column reason VARCHAR: why it ended
-- column cleaned TIMESTAMP: when it was proved clean, UTC
SELECT unit, lease, tenant, who, charge_milli, granted, ended, reason, cleaned
FROM holdings
WHERE (device = $device OR unit = $device)
  AND (utc($from) IS NULL OR ended IS NULL OR ended > utc($from))
  AND (utc($to) IS NULL OR granted < utc($to))
ORDER BY granted, unit, lease

-- report: lease-life
-- What happened to a lease, from its request to the proof that its devices are clean?
-- parameter lease: the lease, SOURCE#ID/ATTEMPT
-- column position VARCHAR: place of the record
-- column time TIMESTAMP: when, UTC
-- column type VARCHAR: type of the event
-- column cause VARCHAR: who sent the input that led to it
-- column input_type VARCHAR: type of that input
-- column data JSON: the event
SELECT * FROM lease_timeline($lease)

-- report: neighbours
-- With whom did a lease share a card, and for how long?
-- parameter lease: the lease
-- column device VARCHAR: the card
-- column other VARCHAR: other lease on it
-- column tenant VARCHAR: whose
-- column who VARCHAR: on whose order
-- column mode VARCHAR: how both are kept apart: mig (hardware) or share
-- column together_us BIGINT: how long both lasted
SELECT o.device, o.lease AS other, o.tenant, o.who, o.mode,
       CAST(sum(overlap_us(o.granted, coalesce(o.ended, e.last_time), m.granted,
                           coalesce(m.ended, e.last_time))) AS BIGINT) AS together_us
FROM (SELECT DISTINCT cell, device, granted, ended FROM holdings WHERE lease = $lease) m
JOIN (SELECT DISTINCT cell, device, lease, tenant, who, mode, granted, ended, position
      FROM holdings) o
  ON o.cell = m.cell AND o.device = m.device AND o.lease <> $lease
     AND (m.ended IS NULL OR o.granted < m.ended) AND (o.ended IS NULL OR m.granted < o.ended)
JOIN log_end e ON o.position LIKE 'events/' || e.partition || '@%'
GROUP BY ALL
ORDER BY o.device, other

-- report: held-and-idle
-- What was held while its task used nothing, and how much GPU time was that?
-- parameter from = : from when, UTC
-- parameter to = : until before, UTC
-- parameter tenant = : only this tenant's
-- column tenant VARCHAR: who held it
-- column lease VARCHAR: lease
-- column queue VARCHAR: queue
-- column since TIMESTAMP: idle since, UTC
-- column until TIMESTAMP: until before; NULL: it still is
-- column then VARCHAR: what ended it: busy, or why the lease ended
-- column idle_us BIGINT: how long, within the window
-- column idle_gpu_seconds DECIMAL(38,9): the same in GPU-seconds
SELECT * FROM (
    SELECT i.tenant, i.lease, i.queue, i.since, i.until, i."then",
           overlap_us(i.since, coalesce(i.until, i.since + to_microseconds(i.idle_us)),
                      $from, $to) AS idle_us,
           seconds(CAST(i.charge_milli AS HUGEINT)
                   * overlap_us(i.since, coalesce(i.until, i.since + to_microseconds(i.idle_us)),
                                $from, $to)) AS idle_gpu_seconds
    FROM idles i WHERE CAST($tenant AS VARCHAR) IS NULL OR i.tenant = $tenant
) WHERE idle_us > 0
ORDER BY since, lease

-- report: overdue
-- Which leases lasted longer than they were given, and how much?
-- parameter from = : that were due from then on, UTC
-- parameter to = : that were due before, UTC
-- column tenant VARCHAR: whose
-- column lease VARCHAR: lease
-- column due TIMESTAMP: when it had to end, UTC
-- column stopping TIMESTAMP: when it was told to end, UTC
-- column ended TIMESTAMP: when it ended, UTC; NULL: it lasts
-- column late_us BIGINT: how much later that is; up to the last record if it lasts
-- column reason VARCHAR: why it ended
SELECT tenant, lease, due, stopping, ended,
       epoch_us(coalesce(ended, last_time)) - epoch_us(due) AS late_us, reason
FROM leases JOIN log_end USING (partition)
WHERE coalesce(ended, last_time) > due
  AND (utc($from) IS NULL OR due >= utc($from)) AND (utc($to) IS NULL OR due < utc($to))
ORDER BY due, lease

-- report: held-twice
-- Was a device or slice ever held by more than it has (A1, A9)? There should be no row.
-- column unit VARCHAR: device UUID, or the ledger's id of a slice
-- column since TIMESTAMP: from when, UTC
-- column until TIMESTAMP: until before; NULL: it still is
-- column held_milli BIGINT: thousandths that were held; of a slice 1000 for each lease
-- column leases VARCHAR[]: the leases
WITH parts AS (
    SELECT cell, unit, lease, granted, ended,
           CASE WHEN unit = device THEN charge_milli ELSE 1000 END AS milli
    FROM holdings
),
moments AS (
    SELECT cell, unit, moment, sum(milli) AS milli FROM (
        SELECT cell, unit, granted AS moment, milli FROM parts
        UNION ALL SELECT cell, unit, ended, -milli FROM parts WHERE ended IS NOT NULL)
    GROUP BY ALL
),
held AS (
    SELECT cell, unit, moment AS since, lead(moment) OVER w AS until,
           CAST(sum(milli) OVER w AS BIGINT) AS held_milli
    FROM moments WINDOW w AS (PARTITION BY cell, unit ORDER BY moment)
)
SELECT h.unit, h.since, h.until, h.held_milli, list_sort(list(DISTINCT p.lease)) AS leases
FROM held h JOIN parts p
  ON p.cell = h.cell AND p.unit = h.unit AND p.granted <= h.since
     AND (p.ended IS NULL OR p.ended > h.since)
WHERE h.held_milli > 1000
GROUP BY ALL
ORDER BY since, unit

-- report: not-clean
-- Was a device or slice leased again before it was proved clean (A11)? There should be no row.
-- column unit VARCHAR: device UUID, or the ledger's id of a slice
-- column lease VARCHAR: lease that left it
-- column ended TIMESTAMP: when, UTC
-- column cleaned TIMESTAMP: when it was proved clean, UTC; NULL: it was not
-- column next_lease VARCHAR: lease that took it
-- column next_granted TIMESTAMP: when, UTC
-- column position VARCHAR: place of that grant
SELECT b.unit, b.lease, b.ended, b.cleaned, a.lease AS next_lease, a.granted AS next_granted,
       a.position
FROM holdings b JOIN holdings a
  ON a.cell = b.cell AND a.unit = b.unit AND a.granted >= b.ended
     AND (a.lease <> b.lease OR a.position <> b.position)
WHERE (b.cleaned IS NULL OR b.cleaned > a.granted)
  -- Shares of a card stand beside each other: what is cleaned is not what is leased.
  AND NOT (a.mode = 'share' AND b.mode = 'share')
  -- An operator's word is a proof too.
  AND NOT EXISTS (SELECT 1 FROM events c
                  WHERE c.type = 'device.cleared' AND c.cell = b.cell AND c.device = b.device
                    AND make_timestamp(c.time_us) BETWEEN b.ended AND a.granted)
ORDER BY next_granted, a.unit, b.lease
