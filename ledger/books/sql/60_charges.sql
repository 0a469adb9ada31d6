-- What each piece of each run of seconds costs, and whom: ``price`` holds a book's prices.

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
SELECT CAST(row_number() OVER () AS INTEGER) AS r, asked.e, asked.ab, asked.profile,
       asked.delivery, price.* EXCLUDE (model, profile, delivery)
FROM asked JOIN price
     ON price.valid_from_s <= asked.from_s
        AND coalesce(price.model, asked.model) = asked.model
        AND coalesce(price.profile, asked.profile) = asked.profile
        AND coalesce(price.delivery, asked.delivery) = asked.delivery
QUALIFY row_number() OVER (
    PARTITION BY asked.e, asked.ab, asked.profile, asked.delivery
    ORDER BY price.profile IS NOT NULL DESC, price.delivery IS NOT NULL DESC,
             price.model IS NOT NULL DESC, price.valid_from_s DESC) = 1;

-- A device's pieces at one time are billed in the order of their units, then of their owners.
CREATE TABLE places AS
SELECT s, profile, row_number() OVER (ORDER BY slice) AS place FROM slices
UNION ALL SELECT 0, '', 0;

CREATE TABLE lines AS
WITH every AS (
    SELECT d, start_s, end_s, 0 AS s, CAST((g >> 31) - 2147483648 AS INTEGER) AS o, 1000 AS milli,
           CAST(g >> 6 & 33554431 AS INTEGER) AS ab,
           CAST(enum_range(NULL::kind) AS kind[])[(g & 63) + 1] AS kind,
           '' AS turn, false AS paid
    FROM seconds WHERE g >= 0
    UNION ALL
    SELECT x.d, x.start_s, x.end_s, p.s, p.o, p.milli, p.ab, p.kind,
           CASE WHEN p.s = 0 THEN coalesce(owners.owner, '') ELSE '' END,
           bool_or(p.o <> 0 AND p.kind IN (FROM pays)) OVER (PARTITION BY x.d, x.start_s)
    FROM seconds AS x JOIN tiles AS p ON p.d = x.d AND p.t0 = x.t0
         LEFT JOIN owners ON owners.o = p.o
    WHERE x.g < 0
),
cut AS (
    SELECT every.* EXCLUDE (start_s, end_s, paid), e, greatest(start_s, from_s) AS start_s,
           least(end_s, until_s) AS end_s, o <> 0 AND kind IN (FROM pays) AS holder_pays
    FROM every JOIN epochs ON start_s < until_s AND end_s > from_s
    WHERE paid OR kind < CAST('absent missing' AS kind) OR (o <> 0 AND kind IN (FROM pays))
)
SELECT cut.* EXCLUDE (e, ab), t.r, CAST(places.place AS INTEGER) AS place,
       CAST(milli AS BIGINT) * (end_s - start_s) * 1000000000 AS amount
FROM cut JOIN places USING (s) LEFT JOIN owners USING (o)
     LEFT JOIN tariff AS t
     ON t.e = cut.e AND t.ab = cut.ab
        AND t.profile = CASE WHEN cut.o = 0 THEN '' ELSE places.profile END
        AND t.delivery = CASE WHEN cut.o = 0 THEN '' ELSE owners.delivery END;

-- Hours are rounded to a thousand-millionth, by the largest remainder among a device's lines
-- at one price: their sum is what it would be without.
CREATE VIEW charges AS
WITH priced AS (
    SELECT lines.* EXCLUDE (r), t.id AS price, t.size, t.list_nanos, t.agreed_nanos
    FROM lines JOIN tariff AS t USING (r)
),
sums AS (
    SELECT d, price, (2 * sum(amount) + any_value(size)) // (2 * any_value(size))
                     - sum(amount // size) AS missing
    FROM priced GROUP BY d, price
),
ranked AS (
    SELECT *, row_number() OVER (
                  PARTITION BY d, price ORDER BY amount % size DESC, start_s, place, turn, kind) AS n
    FROM priced
),
rounded AS (
    SELECT ranked.* EXCLUDE (n, place, turn),
           amount // size + CASE WHEN n <= missing THEN 1 ELSE 0 END AS nano
    FROM ranked JOIN sums USING (d, price)
)
SELECT *, nano * list_nanos AS list_atto, nano * agreed_nanos AS agreed_atto FROM rounded;
