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
         (SELECT unnest(enum_range(NULL::delivery)) AS delivery)
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

CREATE TABLE laid_owners AS
SELECT o, owner, delivery FROM owners WHERE o IN (SELECT o FROM laid);

CREATE TABLE lines AS
WITH calm AS (
    SELECT d, greatest((t0 + 500000) // 1000000, start_s) AS start_s,
           least((t1 + 500000) // 1000000, end_s) AS end_s, o, ab, kind,
           CASE WHEN o = 0 THEN CAST('' AS delivery) ELSE priced_as END AS delivery
    FROM turn_parts, period WHERE calm AND t0 < end_s * 1000000 AND t1 > start_s * 1000000
),
whole AS (
    SELECT d, start_s, end_s, CAST((g >> 31) - 2147483648 AS INTEGER) AS o,
           CAST(g >> 6 & 33554431 AS INTEGER) AS ab,
           CAST(enum_range(NULL::kind) AS kind[])[(g & 63) + 1] AS kind
    FROM seconds WHERE g >= 0
),
every AS (
    SELECT d, start_s, end_s, 0 AS s, o, 1000 AS milli, ab, kind, delivery, '' AS turn
    FROM calm WHERE start_s < end_s
    UNION ALL
    SELECT d, start_s, end_s, 0, o, 1000, ab, kind,
           CASE WHEN o = 0 THEN CAST('' AS delivery) ELSE x.delivery END, ''
    FROM whole LEFT JOIN laid_owners AS x USING (o)
    UNION ALL
    SELECT y.d, start_s, end_s, s, o, milli, ab, kind,
           CASE WHEN o = 0 THEN CAST('' AS delivery) ELSE x.delivery END,
           CASE WHEN s = 0 THEN coalesce(x.owner, '') ELSE '' END
    FROM seconds AS y JOIN laid USING (d, t0) LEFT JOIN laid_owners AS x USING (o)
    WHERE g < 0
),
judged AS (
    SELECT every.*, o <> 0 AND list_contains(pays.kinds, kind) AS holder_pays,
           kind >= CAST('absent missing' AS kind) AS absent
    FROM every, pays
),
-- Of a device that is not there somebody's part is billed, and what is beside it.
billed AS (
    SELECT * FROM judged WHERE NOT absent OR holder_pays
    UNION ALL
    SELECT * FROM judged WHERE absent AND NOT holder_pays
           AND (d, start_s) IN (SELECT (d, start_s) FROM judged WHERE absent AND holder_pays)
),
cut AS (
    SELECT billed.* EXCLUDE (start_s, end_s, absent), e, greatest(start_s, from_s) AS start_s,
           least(end_s, until_s) AS end_s
    FROM billed JOIN epochs ON start_s < until_s AND end_s > from_s
)
SELECT cut.* EXCLUDE (e, ab, delivery), t.r, CAST(places.place AS INTEGER) AS place
FROM cut JOIN places USING (s)
     LEFT JOIN tariff AS t
     ON t.e = cut.e AND t.ab = cut.ab AND t.delivery = cut.delivery
        AND t.profile = CASE WHEN cut.o = 0 THEN '' ELSE places.profile END;

CREATE VIEW priced AS
SELECT lines.* EXCLUDE (r), t.id AS price, t.size, t.list_nanos, t.agreed_nanos,
       CAST(milli AS BIGINT) * (end_s - start_s) * 1000000000 AS amount
FROM lines JOIN tariff AS t USING (r);

-- Hours are rounded to a thousand-millionth, by the largest remainder among a device's lines
-- at one price: their sum is what it would be without. So of the lines with one remainder all
-- are rounded up, or none, or, of one remainder, the first ``ups``.
CREATE TABLE remainders AS
WITH alike AS (
    SELECT d, price, amount % size AS rest, count(*) AS n, sum(amount) AS amount,
           sum(amount // size) AS whole, any_value(size) AS size
    FROM priced GROUP BY d, price, rest
),
summed AS (
    SELECT d, price, rest, n, sum(n) OVER (PARTITION BY d, price ORDER BY rest DESC) - n AS before,
           (2 * sum(amount) OVER each + size) // (2 * size) - sum(whole) OVER each AS missing
    FROM alike WINDOW each AS (PARTITION BY d, price)
)
SELECT d, price, rest, missing - before AS ups,
       CASE WHEN before + n <= missing THEN 1 WHEN before >= missing THEN 0 END AS up
FROM summed;

CREATE VIEW charges AS
WITH rests AS (
    SELECT priced.*, up, ups
    FROM priced JOIN remainders AS r
         ON r.d = priced.d AND r.price = priced.price AND r.rest = amount % size
),
chosen AS (
    SELECT * FROM rests WHERE up IS NOT NULL
    UNION ALL
    SELECT * REPLACE (CASE WHEN row_number() OVER (
                               PARTITION BY d, price ORDER BY start_s, place, turn, kind) <= ups
                           THEN 1 ELSE 0 END AS up)
    FROM rests WHERE up IS NULL
),
rounded AS (
    SELECT * EXCLUDE (place, turn, up, ups), amount // size + up AS nano FROM chosen
)
SELECT *, nano * list_nanos AS list_atto, nano * agreed_nanos AS agreed_atto FROM rounded;
