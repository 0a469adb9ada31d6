"""Attempts to write, to read elsewhere, to escape and to exhaust, made from tables.

``{folder}`` is the folder of the log, ``{log}`` its file, ``{secret}`` a file beside it.
"""

from __future__ import annotations

from itertools import product

__all__ = ["EXHAUSTING", "REFUSED"]

_TABLES = ("records", "events", "queries", "codes", "leases", "memory.main.records")
_WRITES = (
    "INSERT INTO {it} SELECT * FROM {it}",
    "UPDATE {it} SET cell = 'x'",
    "DELETE FROM {it}",
    "TRUNCATE {it}",
    "DROP TABLE {it}",
    "DROP VIEW IF EXISTS {it}",
    "ALTER TABLE {it} ADD COLUMN x INT",
    "ALTER TABLE {it} RENAME TO x",
    "CREATE OR REPLACE TABLE {it} AS SELECT 1",
    "CREATE OR REPLACE VIEW {it} AS SELECT 1",
    "CREATE INDEX i ON {it} (cell)",
    "COMMENT ON TABLE {it} IS 'x'",
    "WITH x AS (DELETE FROM {it} RETURNING *) SELECT * FROM x",
    "WITH x AS (INSERT INTO {it} SELECT * FROM {it} RETURNING *) SELECT * FROM x",
    "MERGE INTO {it} USING codes ON true WHEN MATCHED THEN DELETE",
)
_MAKES = (
    "CREATE TABLE x AS SELECT 1",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE TEMP VIEW x AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "CREATE OR REPLACE MACRO place(a, b) AS 'x'",
    "CREATE OR REPLACE TEMP MACRO gpu_seconds(a, b, c) AS 0",
    "CREATE SCHEMA s",
    "CREATE SEQUENCE s",
    "CREATE TYPE t AS ENUM ('a')",
    "CREATE SECRET s (TYPE http)",
    "CREATE PERSISTENT SECRET s (TYPE s3, KEY_ID 'x', SECRET 'y')",
    "CREATE DATABASE x",
)

_READERS = (
    "read_text('{at}')",
    "read_blob('{at}')",
    "read_csv('{at}')",
    "read_csv_auto('{at}')",
    "read_json('{at}')",
    "read_json_auto('{at}')",
    "read_ndjson('{at}')",
    "read_json_objects('{at}')",
    "read_ndjson_objects('{at}')",
    "read_parquet('{at}')",
    "parquet_scan('{at}')",
    "parquet_metadata('{at}')",
    "parquet_schema('{at}')",
    "parquet_file_metadata('{at}')",
    "parquet_kv_metadata('{at}')",
    "sniff_csv('{at}')",
    "glob('{at}')",
    "read_duckdb('{at}')",
    "sqlite_scan('{at}', 'records')",
    "read_text(['{at}', '{at}'])",
    "query('SELECT * FROM read_text(''{at}'')')",
)
_PLACES = (
    "{secret}",
    "{log}",
    "{folder}/*",
    "../../../../../etc/passwd",
    "/proc/self/environ",
    "http://127.0.0.1:9/x",
)
_NAMES = (
    "SELECT * FROM '{at}'",
    'SELECT * FROM "{at}"',
    "SELECT * FROM query_table('{at}')",
    "SELECT (SELECT content FROM read_text('{at}'))",
    "WITH x AS MATERIALIZED (SELECT * FROM read_blob('{at}')) SELECT count(*) FROM x",
    "SELECT * FROM records, LATERAL (SELECT * FROM read_text('{at}'))",
    "SUMMARIZE SELECT * FROM read_text('{at}')",
    "DESCRIBE SELECT * FROM read_csv('{at}')",
)

_SOURCES = ("events", "(SELECT * FROM records)")
_TARGETS = ("{folder}/out", "{log}", "{secret}", "/dev/stdout", "s3://bucket/key")
_FORMATS = ("", " (FORMAT json)", " (FORMAT parquet)",
            " (FORMAT parquet, PARTITION_BY (cell), OVERWRITE)",
            " (FORMAT csv, USE_TMP_FILE false)")  # fmt: skip
_MOVES = (
    "COPY records FROM '{at}'",
    "EXPORT DATABASE '{at}'",
    "IMPORT DATABASE '{at}'",
    "ATTACH '{at}' AS other",
    "ATTACH '{at}' AS other (TYPE sqlite)",
    "ATTACH '{at}' AS other (READ_ONLY)",
    "LOAD '{at}'",
    "INSTALL x FROM '{at}'",
)

_SETTINGS = {
    "enable_external_access": "true",
    "lock_configuration": "false",
    "allowed_directories": "['/']",
    "allowed_paths": "['/etc/passwd']",
    "memory_limit": "'100GB'",
    "max_memory": "'100GB'",
    "threads": "64",
    "worker_threads": "64",
    "temp_directory": "'{folder}'",
    "max_temp_directory_size": "'10GB'",
    "secret_directory": "'{folder}'",
    "extension_directory": "'{folder}'",
    "home_directory": "'{folder}'",
    "log_query_path": "'{folder}/x'",
    "profiling_output": "'{folder}/x'",
    "enable_profiling": "'json'",
    "autoload_known_extensions": "true",
    "autoinstall_known_extensions": "true",
    "allow_community_extensions": "true",
    "allow_unsigned_extensions": "true",
    "custom_extension_repository": "'http://127.0.0.1:9'",
    "python_enable_replacements": "true",
    "max_expression_depth": "1000000",
    "access_mode": "'READ_WRITE'",
    "TimeZone": "'Asia/Tokyo'",
    "search_path": "'main'",
}
_SETTING = ("SET {it} = {to}", "RESET {it}", "PRAGMA {it} = {to}")

_EXTENSIONS = ("httpfs", "sqlite", "postgres", "mysql", "aws", "azure", "excel", "ui", "shellfs")
_EXTENDING = ("INSTALL {it}", "LOAD {it}", "INSTALL {it} FROM community")

_INNER = ("DROP TABLE records", "DELETE FROM events", "COPY events TO '{folder}/x'",
          "ATTACH '{log}' AS other", "SELECT 2")  # fmt: skip
_HIDDEN = (
    "SELECT 1; {it}",
    "SELECT 1;{it};",
    "{it}; SELECT 1",
    "SELECT 1 /* */ ; /* */ {it}",
    "SELECT 1 -- ;\n; {it}",
    ";;{it}",
    "ROLLBACK; {it}",
    "COMMIT; {it}",
    "BEGIN; {it}; COMMIT",
    "PREPARE p AS {it}",
    "EXPLAIN {it}",
    "EXPLAIN ANALYZE {it}",
    "EXECUTE IMMEDIATE '{it}'",
    "SELECT * FROM query($${it}$$), query($${it}$$)",
)
#: In a query() a SELECT is what it says, and no more; what is empty is no statement.
_NOT_HIDDEN = {"SELECT * FROM query($$SELECT 2$$), query($$SELECT 2$$)", ";;SELECT 2"}

_OTHERS = (
    "BEGIN TRANSACTION",
    "COMMIT",
    "ROLLBACK",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "DETACH memory",
    "COPY FROM DATABASE memory TO other",
    "USE memory",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "PRAGMA database_list",
    "PRAGMA show_tables",
    "PRAGMA enable_profiling",
    "PRAGMA version",
    "PIVOT events ON type USING count(*)",
    "SELECT getenv('HOME')",
    "SELECT getenv('PATH')",
    "SELECT * FROM outside",
    "SELECT * FROM incoming",
    "SELECT * FROM raw",
    "SELECT * FROM pandas_frame",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM read_text(getvariable('x'))",
    "SELECT which_secret('s3://x', 's3')",
    "SELECT load_aws_credentials()",
    "SELECT write_file('{folder}/x', 'y')",
    "SELECT system('id')",
    "SELECT pg_read_file('{secret}')",
    "LISTEN x",
    "KILL 1",
    "LOCK TABLE records",
    "\\! id",
    ".shell id",
)


def _fill(templates: tuple[str, ...], **values: tuple[str, ...]) -> list[str]:
    (name, chosen), *_ = values.items()
    return [one.replace(f"{{{name}}}", value) for one, value in product(templates, chosen)]


#: Family -> statements, none of which may be answered.
REFUSED: dict[str, list[str]] = {
    "writes": _fill(_WRITES, it=_TABLES),
    "makes": list(_MAKES),
    "reads elsewhere": [f"SELECT * FROM {one}" for one in _fill(_READERS, at=_PLACES)],
    "names that are files": _fill(_NAMES, at=_PLACES[:4]),
    "copies out": [
        f"COPY {source} TO '{target}'{form}"
        for source, target, form in product(_SOURCES, _TARGETS, _FORMATS)
    ],
    "moves": _fill(_MOVES, at=("{log}", "{folder}/out", ":memory:")),
    "settings": [
        template.replace("{it}", name).replace("{to}", value)
        for template, (name, value) in product(_SETTING, _SETTINGS.items())
    ],
    "extensions": _fill(_EXTENDING, it=_EXTENSIONS),
    "hidden": [one for one in _fill(_HIDDEN, it=_INNER) if one not in _NOT_HIDDEN],
    "others": list(_OTHERS),
}

_DEEP = 20_000

#: What takes memory, time or stack without end, each for its own reason.
EXHAUSTING: dict[str, str] = {
    "a constant of 4 GB": "SELECT length(repeat('x', 4000000000))",
    "constants of 100 MB for each row": "SELECT repeat('x', 100000000) FROM range(100)",
    "padding of 2 GB": "SELECT lpad('x', 2000000000, 'y')",
    "a width of 1 GB": "SELECT format('{{:>1000000000}}', 'x')",
    "a width of 1 GB of old": "SELECT printf('%1000000000d', 1)",
    "a list of a billion": "SELECT list_sort(range(1000000000))",
    "an aggregate of a billion": "SELECT list(range) FROM range(1000000000)",
    "a text of 10 GB": "SELECT string_agg(repeat('x', 1000000)) FROM range(10000)",
    "a histogram": "SELECT histogram(range) FROM range(100000000)",
    "a sort that would spill": "SELECT max(x) FROM (SELECT hash(range) AS x FROM range(100000000)"
    " ORDER BY x LIMIT 99999999)",
    "a hash table that would spill": "SELECT count(*) FROM (SELECT DISTINCT hash(range)"
    " || repeat('x', 100) FROM range(30000000))",
    "a window over all": "SELECT sum(range) OVER (ORDER BY range ROWS BETWEEN UNBOUNDED PRECEDING"
    " AND UNBOUNDED FOLLOWING) FROM range(100000000)",
    "bits of 2 GB": "SELECT bitstring('1', 2000000000)",
    "an array of 100,000": "SELECT array_value(1)::INT[100000]",
    "a list of lists": "SELECT list_transform(range(1000000), lambda x:"
    " list_transform(range(1000), lambda y: x * y))",
    "a number of a million digits": "SELECT repeat('9', 1000000)::BIGNUM"
    " * repeat('9', 1000000)::BIGNUM",
    "splitting 100 MB": "SELECT string_split(repeat('a,', 50000000), ',')",
    "distances": "SELECT levenshtein(repeat('a', 100000), repeat('b', 100000))",
    "an expression of many parts": "SELECT " + "1+" * 50_000 + "1",
    "parentheses": "SELECT " + "(" * _DEEP + "1" + ")" * _DEEP,
    "negations": "SELECT " + "NOT " * _DEEP + "true",
    "queries in queries": "SELECT * FROM " + "(SELECT * FROM " * 3000 + "(SELECT 1)" + ")" * 3000,
    "a thousand unions": " UNION ALL ".join(["SELECT 1"] * 20_000),
    "many columns": "SELECT " + ", ".join(f"{at} AS c{at}" for at in range(50_000)),
    "brackets of JSON": "SELECT json_valid(repeat('[', 10000000))",
    "a cross join": "SELECT count(*) FROM range(10000000) a, range(100000) b"
    " WHERE a.range + b.range < 0",
    "a recursion": "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t)"
    " SELECT count(*) FROM t",
    "a recursion that doubles": "WITH RECURSIVE t(n) AS (SELECT 'x' UNION ALL SELECT n || n FROM t)"
    " SELECT max(length(n)) FROM t",
    "a series without end": "SELECT count(*) FROM generate_series(1, 9000000000000)",
    "a series of times": "SELECT count(*) FROM generate_series(TIMESTAMP '0001-01-01',"
    " TIMESTAMP '9999-01-01', INTERVAL 1 MICROSECOND)",
    "all pairs of events": "SELECT count(*) FROM events a, events b, events c, events d, events e,"
    " events f WHERE hash(a.data, b.data, c.data, d.data, e.data, f.data) = 0",
    "sleeping": "SELECT sleep_ms(100000)",
}
