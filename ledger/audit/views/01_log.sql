-- macro: place(partition_, offset_)
-- A record's place as every command takes it: events/PARTITION@OFFSET.
'events/' || partition_ || '@' || offset_

-- macro: utc(x_)
-- A time as a TIMESTAMP in UTC, also from text with an offset; text without one is UTC.
timezone('UTC', CAST(x_ AS TIMESTAMPTZ))

-- macro: seconds(milli_us_)
-- Thousandths of a GPU x microseconds as GPU-seconds, exactly: nine digits after the point.
CAST(milli_us_ AS DECIMAL(28, 0)) * CAST(0.000000001 AS DECIMAL(10, 9))

-- macro: overlap_us(start_, end_, from_, to_)
-- Microseconds of a span that lie in a window; a missing bound is open.
greatest(epoch_us(least(end_, coalesce(utc(to_), TIMESTAMP '9999-01-01')))
         - epoch_us(greatest(start_, coalesce(utc(from_), TIMESTAMP '0001-01-01'))), 0)

-- view: log_end
-- one row a partition: where and when its last record was decided
-- column partition INTEGER: partition of the events topic
-- column last_offset BIGINT: offset of its last record
-- column last_time TIMESTAMP: time of its last effective record, UTC: until then everything is known
SELECT partition, max("offset") AS last_offset,
       make_timestamp(max(time_us) FILTER (verdict = 'effective')) AS last_time
FROM records GROUP BY partition

-- view: claims
-- one row a claim: who wrote the partition from then on
-- column partition INTEGER: partition of the events topic
-- column offset BIGINT: its place there
-- column position VARCHAR: the same as events/PARTITION@OFFSET
-- column time TIMESTAMP: when, UTC
-- column token VARCHAR: what the decisions under it carry
-- column worker VARCHAR: who claimed
-- column host VARCHAR: where that ran
-- column until_offset BIGINT: place of the next claim; NULL: it is the current one
SELECT partition, "offset", place(partition, "offset") AS position,
       make_timestamp(time_us) AS time, token, worker, host,
       lead("offset") OVER (PARTITION BY partition ORDER BY "offset") AS until_offset
FROM records WHERE kind = 'claim'

-- view: decisions
-- one row an effective decision: place, time, input, outcome and its numbers
-- column partition INTEGER: partition of the events topic
-- column offset BIGINT: its place there
-- column position VARCHAR: the same as events/PARTITION@OFFSET
-- column time TIMESTAMP: when it was decided, UTC
-- column cell VARCHAR: cell
-- column seq BIGINT: its number in the partition
-- column source_topic VARCHAR: requests or observations
-- column input_type VARCHAR: type of the input
-- column input_source VARCHAR: who sent it
-- column input_id VARCHAR: its id
-- column input JSON: what it says
-- column code VARCHAR: outcome
-- column answer VARCHAR: kind of the outcome: yes, transient or final
-- column numbers JSON: the numbers that were compared
-- column events INTEGER: how many events follow
SELECT partition, "offset", place(partition, "offset") AS position,
       make_timestamp(time_us) AS time, cell, seq, source_topic, input_type, input_source,
       input_id, input, r.code, c.kind AS answer, numbers, events
FROM records r LEFT JOIN codes c ON c.code = r.code
WHERE verdict = 'effective'

-- view: voids
-- one row a record without effect: another writer's, or written twice
-- column partition INTEGER: partition of the events topic
-- column offset BIGINT: its place there
-- column position VARCHAR: the same as events/PARTITION@OFFSET
-- column time TIMESTAMP: when it says that it was decided, UTC
-- column why VARCHAR: token (its claim was over), seq (not the next one), source (decided before)
-- column worker VARCHAR: who had claimed with its token
-- column cell VARCHAR: cell that it speaks of
-- column input_type VARCHAR: type of the input
-- column input_source VARCHAR: who sent that
-- column input_id VARCHAR: its id
-- column code VARCHAR: outcome that it would have had
-- column decided_at VARCHAR: place of the decision on this input that counts; NULL: there is none
SELECT v.partition, v."offset", place(v.partition, v."offset") AS position,
       make_timestamp(v.time_us) AS time, v.why_void AS why, c.worker, v.cell, v.input_type,
       v.input_source, v.input_id, v.code, place(d.partition, d."offset") AS decided_at
FROM records v
LEFT JOIN (SELECT partition, token, any_value(worker) AS worker
           FROM records WHERE kind = 'claim' GROUP BY ALL) c
       ON c.partition = v.partition AND c.token = v.token
LEFT JOIN records d
       ON d.verdict = 'effective' AND d.partition = v.partition
          AND d.source_topic = v.source_topic AND d.source_offset = v.source_offset
WHERE v.verdict = 'void'

-- view: denials
-- one row a no: an input that was refused, or a request that waited in vain
-- column partition INTEGER: partition of the events topic
-- column offset BIGINT: place of the record
-- column position VARCHAR: the same as events/PARTITION@OFFSET
-- column time TIMESTAMP: when, UTC
-- column cell VARCHAR: cell
-- column source_topic VARCHAR: requests, or observations for what a node reported in vain
-- column input_type VARCHAR: type of the input; of a wait that ended, request.submit
-- column who VARCHAR: who sent it
-- column request VARCHAR: request that it is about, where it is one
-- column tenant VARCHAR: tenant that asked, where one did
-- column code VARCHAR: the rule
-- column answer VARCHAR: transient (may become a yes by itself) or final
-- column numbers JSON: the numbers that were compared
SELECT r.partition, r."offset", place(r.partition, r."offset") AS position,
       make_timestamp(r.time_us) AS time, r.cell, r.source_topic, r.input_type,
       r.input_source AS who, e.request, coalesce(e.tenant, r.input->>'tenant') AS tenant,
       r.code, c.kind AS answer, r.numbers
FROM records r JOIN codes c ON c.code = r.code AND c.kind <> 'yes'
LEFT JOIN events e
       ON e.type = 'request.rejected' AND e.partition = r.partition AND e."offset" = r."offset"
WHERE r.verdict = 'effective'
UNION ALL
SELECT e.partition, e."offset", place(e.partition, e."offset"), make_timestamp(e.time_us), e.cell,
       'requests', 'request.submit', split_part(e.request, '#', 1), e.request, q.tenant,
       CASE e.data->>'how' WHEN 'expired' THEN 'wait_expired' ELSE 'reservation_over' END,
       'transient', NULL
FROM events e
ASOF LEFT JOIN (FROM events WHERE type = 'request.received') q
     ON q.cell = e.cell AND q.request = e.request AND q."offset" <= e."offset"
WHERE e.type = 'request.ended' AND (e.data->>'how') IN ('expired', 'reservation-over')
