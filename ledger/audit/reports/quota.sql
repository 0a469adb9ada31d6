-- report: over-quota
-- Who held more than their own quota, when, and how much more?
-- parameter from = : from when, UTC
-- parameter to = : until before, UTC
-- parameter tenant = : only this tenant or TENANT/PROJECT
-- column quota VARCHAR: tenant, or TENANT/PROJECT
-- column since TIMESTAMP: from when, UTC
-- column until TIMESTAMP: until before; NULL: it still is
-- column held_milli BIGINT: thousandths of a GPU that were held
-- column nominal_milli BIGINT: thousandths that were its own
-- column over_milli BIGINT: the difference
SELECT quota, since, until, held_milli, nominal_milli, over_milli
FROM quota_use
WHERE over_milli > 0
  AND (CAST($tenant AS VARCHAR) IS NULL OR quota = $tenant)
  AND (utc($from) IS NULL OR until IS NULL OR until > utc($from))
  AND (utc($to) IS NULL OR since < utc($to))
ORDER BY since, quota

-- report: quota-history
-- How did a quota change, by whom, why, and who approved it?
-- parameter tenant = : only this tenant's and its projects'
-- column quota VARCHAR: tenant, or TENANT/PROJECT
-- column since TIMESTAMP: from when, UTC
-- column until TIMESTAMP: until before; NULL: it is in force
-- column nominal_milli BIGINT: thousandths that are its own
-- column borrowing_milli BIGINT: how much more it may borrow; NULL: any
-- column lending_milli BIGINT: how much of its own it lends; NULL: all
-- column parent VARCHAR: quota above it
-- column author VARCHAR: who set it, or asked for it
-- column approver VARCHAR: who approved what was asked for
-- column reason VARCHAR: why
-- column position VARCHAR: place of the record
SELECT quota, since, until, nominal_milli, borrowing_milli, lending_milli, parent, author, approver,
       reason, position
FROM quotas WHERE CAST($tenant AS VARCHAR) IS NULL OR tenant = $tenant
ORDER BY quota, since, "offset"

-- report: quota-raises
-- Which quotas were raised, and did a second person approve it?
-- parameter from = : from when, UTC
-- parameter to = : until before, UTC
-- column time TIMESTAMP: when, UTC
-- column quota VARCHAR: tenant, or TENANT/PROJECT
-- column before_milli BIGINT: thousandths before; NULL: it was new
-- column after_milli BIGINT: thousandths after
-- column author VARCHAR: who set or asked
-- column approver VARCHAR: who approved; NULL: nobody did
-- column second_person BOOLEAN: somebody else approved
-- column reason VARCHAR: why
-- column position VARCHAR: place of the record
SELECT * FROM (
    SELECT since AS time, quota,
           lag(nominal_milli) OVER (PARTITION BY cell, quota ORDER BY "offset") AS before_milli,
           nominal_milli AS after_milli, author, approver,
           coalesce(approver <> author, false) AS second_person, reason, position
    FROM quotas
) WHERE (before_milli IS NULL OR after_milli > before_milli)
  AND (utc($from) IS NULL OR time >= utc($from)) AND (utc($to) IS NULL OR time < utc($to))
ORDER BY time, quota, position

-- report: gpu-seconds
-- How much GPU time did each tenant and project hold?
-- parameter from = : from when, UTC
-- parameter to = : until before, UTC
-- column tenant VARCHAR: tenant
-- column project VARCHAR: project
-- column leases BIGINT: leases that lasted in the window
-- column gpu_seconds DECIMAL(38,9): GPU-seconds, exactly
SELECT tenant, project, count(*) AS leases, seconds(sum(milli_us)) AS gpu_seconds
FROM (SELECT tenant, project,
             CAST(charge_milli AS HUGEINT)
             * overlap_us(granted, coalesce(ended, last_time), $from, $to) AS milli_us
      FROM leases JOIN log_end USING (partition))
WHERE milli_us > 0
GROUP BY ALL
ORDER BY tenant, project

-- report: ordered-by
-- What has each source ordered, and what did it get?
-- parameter from = : requests received from then on, UTC
-- parameter to = : requests received before, UTC
-- parameter who = : only this source
-- column who VARCHAR: the source
-- column tenant VARCHAR: for which tenant
-- column requests BIGINT: requests that it sent
-- column rejected BIGINT: of them rejected
-- column leases BIGINT: leases that they had
-- column gpu_seconds DECIMAL(38,9): GPU-seconds of these
SELECT r.who, r.tenant, count(*) AS requests, count(*) FILTER (r.state = 'rejected') AS rejected,
       CAST(sum(r.leases) AS BIGINT) AS leases,
       seconds(coalesce(sum(l.milli_us), 0)) AS gpu_seconds
FROM requests r
LEFT JOIN (SELECT cell, request, request_offset,
                  sum(CAST(charge_milli AS HUGEINT)
                      * (epoch_us(coalesce(ended, last_time)) - epoch_us(granted))) AS milli_us
           FROM leases JOIN log_end USING (partition) GROUP BY ALL) l
       ON l.cell = r.cell AND l.request = r.request AND l.request_offset = r."offset"
WHERE (CAST($who AS VARCHAR) IS NULL OR r.who = $who)
  AND (utc($from) IS NULL OR r.received >= utc($from))
  AND (utc($to) IS NULL OR r.received < utc($to))
GROUP BY ALL
ORDER BY r.who, r.tenant
