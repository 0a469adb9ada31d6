-- What each piece of each run of seconds costs, and whom: ``price`` holds a book's prices.

CREATE TABLE owners AS
SELECT l AS o, lease AS owner, requests.tenant, requests.priced_as AS delivery
FROM grants LEFT JOIN requests USING (c, request)
UNION ALL
SELECT DISTINCT o, request, requests.tenant, requests.priced_as
FROM kept LEFT JOIN requests USING (c, request);

CREATE TABLE epochs AS
SELECT n AS e, at_s AS from_s, coalesce(lead(at_s) OVER (ORDER BY at_s), 9223372036854775807) AS until_s
FROM (
    SELECT row_number() OVER (ORDER BY at_s) AS n, at_s
    FROM (SELECT DISTINCT valid_from_s AS at_s FROM price
          UNION SELECT CAST(-9223372036854775807 AS BIGINT))
);

CREATE TABLE models AS SELECT DISTINCT ab, model FROM conditions;

CREATE TABLE tariff AS
WITH asked AS (
    SELECT DISTINCT e, from_s, ab, model, profile, delivery
    FROM epochs, models,
         (SELECT DISTINCT profile FROM slices UNION SELECT ''),
         (SELECT DISTINCT delivery FROM owners UNION SELECT '')
)
SELECT asked.e, asked.ab, asked.profile, asked.delivery, price.* EXCLUDE (model, profile, delivery)
FROM asked JOIN price
     ON price.valid_from_s <= asked.from_s
        AND coalesce(price.model, asked.model) = asked.model
        AND coalesce(price.profile, asked.profile) = asked.profile
        AND coalesce(price.delivery, asked.delivery) = asked.delivery
QUALIFY row_number() OVER (
    PARTITION BY asked.e, asked.ab, asked.profile, asked.delivery
    ORDER BY price.profile IS NOT NULL DESC, price.delivery IS NOT NULL DESC,
             price.model IS NOT NULL DESC, price.valid_from_s DESC) = 1;

-- The pieces of layouts that are more than one, in the order of a bill.
CREATE TABLE members AS
WITH each AS (SELECT g, unnest(content, recursive := true) FROM layouts)
SELECT each.*, row_number() OVER (
           PARTITION BY g ORDER BY slices.slice NULLS FIRST, owners.owner NULLS FIRST, kind) AS n,
       kind IN (FROM pays) AND each.o <> 0 AS holder_pays,
       bool_or(kind IN (FROM pays) AND each.o <> 0) OVER (PARTITION BY g) AS paid
FROM each LEFT JOIN slices USING (s) LEFT JOIN owners USING (o);

CREATE TABLE lines AS
WITH single AS (
    SELECT d, start_s, end_s, 0 AS n, 0 AS s, CAST((g >> 31) - 2147483648 AS INTEGER) AS o,
           1000 AS milli, CAST(g >> 6 & 33554431 AS INTEGER) AS ab,
           enum_range(NULL::kind)[(g & 63) + 1] AS kind
    FROM seconds WHERE g >= 0
),
every AS (
    SELECT *, kind IN (FROM pays) AND o <> 0 AS holder_pays FROM single
    WHERE kind NOT LIKE 'absent %' OR (kind IN (FROM pays) AND o <> 0)
    UNION ALL BY NAME
    SELECT d, start_s, end_s, n, s, o, milli, ab, kind, holder_pays
    FROM seconds JOIN members USING (g) WHERE kind NOT LIKE 'absent %' OR paid
),
cut AS (
    SELECT every.* EXCLUDE (start_s, end_s), e, greatest(start_s, from_s) AS start_s,
           least(end_s, until_s) AS end_s
    FROM every JOIN epochs ON start_s < until_s AND end_s > from_s
)
SELECT cut.* EXCLUDE (e), t.id AS price, t.size, t.list_nanos, t.agreed_nanos,
       milli * (end_s - start_s) * 1000000000 AS amount
FROM cut LEFT JOIN owners USING (o) LEFT JOIN slices USING (s)
     LEFT JOIN tariff AS t
     ON t.e = cut.e AND t.ab = cut.ab
        AND t.profile = CASE WHEN cut.o = 0 THEN '' ELSE coalesce(slices.profile, '') END
        AND t.delivery = CASE WHEN cut.o = 0 THEN '' ELSE owners.delivery END;

-- Hours are rounded to a thousand-millionth, by the largest remainder among a device's lines
-- at one price: their sum is what it would be without.
CREATE VIEW charges AS
WITH ranked AS (
    SELECT *, amount // size AS down,
           (2 * sum(amount) OVER priced + size) // (2 * size)
               - sum(amount // size) OVER priced AS missing,
           row_number() OVER (PARTITION BY d, price ORDER BY amount % size DESC, start_s, n) AS turn
    FROM lines WHERE price IS NOT NULL
    WINDOW priced AS (PARTITION BY d, price)
),
rounded AS (
    SELECT * EXCLUDE (down, missing, turn), down + CASE WHEN turn <= missing THEN 1 ELSE 0 END AS nano
    FROM ranked
)
SELECT *, nano * list_nanos AS list_atto, nano * agreed_nanos AS agreed_atto FROM rounded;
