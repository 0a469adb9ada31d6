-- Requests, the leases that they were granted, and their ends.

CREATE TABLE requests AS
SELECT c, r.request, r.tenant,
       CASE WHEN r.mode = 'whole' THEN 1000 WHEN r.vgpu_most > 0 THEN 1000 // r.vgpu_most
            ELSE r.milli END AS milli,
       coalesce(nullif(r.delivery, ''), r.mode) AS priced_as
FROM (SELECT c, unnest(received) AS r FROM src WHERE received IS NOT NULL);

-- Few names in many rows.
CREATE TYPE tenant AS ENUM (
    SELECT DISTINCT tenant FROM requests WHERE tenant IS NOT NULL ORDER BY tenant
);

CREATE TYPE delivery AS ENUM (
    SELECT DISTINCT priced_as FROM requests WHERE priced_as <> '' UNION ALL SELECT ''
);

CREATE TABLE granted AS
SELECT g.* EXCLUDE (request), CAST(r.tenant AS tenant) AS tenant,
       CAST(r.priced_as AS delivery) AS priced_as, r.milli
FROM (
    SELECT c, k AS k0, t AS t0, g.lease, g.request, g.node, g.unit, g.units,
           g.unit_nodes AS nodes
    FROM (SELECT c, k, t, unnest(granted) AS g FROM src WHERE granted IS NOT NULL)
) AS g LEFT JOIN requests AS r USING (c, request);

-- A lease's number is that of its row: to count them in order would take one thread.
CREATE VIEW grants AS SELECT CAST(rowid + 1 AS INTEGER) AS l, * FROM granted;

CREATE TABLE ends AS
SELECT c, k AS kend, t AS tend, e.lease, e.held_us
FROM (SELECT c, k, t, unnest(ended) AS e FROM src WHERE ended IS NOT NULL);
