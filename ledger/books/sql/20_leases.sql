-- Requests, and the leases that they were granted, from when until when.

CREATE TABLE requests AS
SELECT c, request, tenant,
       CASE WHEN mode = 'whole' THEN 1000 WHEN most > 0 THEN 1000 // most ELSE milli END AS milli,
       coalesce(need_delivery, mode) AS priced_as
FROM (
    SELECT c, unnest(event_type) AS type, unnest(event_request) AS request,
           unnest(event_tenant) AS tenant, unnest(event_need_mode) AS mode,
           unnest(event_need_milli) AS milli, unnest(event_need_vgpu_most) AS most,
           nullif(unnest(event_need_delivery), '') AS need_delivery
    FROM src WHERE input_type = 'request.submit'
) WHERE type = 'request.received';

CREATE TABLE granted AS
SELECT g.* EXCLUDE (type), r.tenant, r.priced_as, r.milli
FROM (
    SELECT c, k AS k0, t AS t0, unnest(event_type) AS type, unnest(event_lease) AS lease,
           unnest(event_request) AS request, unnest(event_node) AS node,
           unnest(event_unit) AS unit, unnest(event_units) AS units,
           unnest(event_unit_nodes) AS nodes
    FROM src WHERE list_contains(event_type, 'lease.granted')
) AS g LEFT JOIN requests AS r USING (c, request) WHERE type = 'lease.granted';

-- A lease's number is that of its row: to count them in order would take one thread.
CREATE VIEW grants AS SELECT CAST(rowid + 1 AS INTEGER) AS l, * FROM granted;

CREATE TABLE ends AS
SELECT * EXCLUDE (type)
FROM (
    SELECT c, k AS kend, t AS tend, unnest(event_type) AS type, unnest(event_lease) AS lease,
           unnest(event_held_us) AS held_us
    FROM src WHERE list_contains(event_type, 'lease.ended')
) WHERE type = 'lease.ended';
