import time, pytest, asyncio
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from tests.support.servers.base import module_server
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.mariadb import MariaDbServer
pg = module_server(PostgresServer)
my = module_server(MariaDbServer)
async def gap(probe, out):
    worst = 0; stop = asyncio.Event()
    async def tick():
        nonlocal worst
        last = time.perf_counter()
        while not stop.is_set():
            await asyncio.sleep(0.001)
            now = time.perf_counter(); worst = max(worst, now-last); last = now
    t = asyncio.create_task(tick())
    r = await run_check(probe, 20)
    stop.set(); await t
    return r, worst
def go(url, query, *require):
    t = time.perf_counter()
    (v, e), w = asyncio.run(gap(make_probe({"url": url, "query": query, **({"require": list(require)} if require else {})}), []))
    print(f"{query[:70]:70} {require!s:50} {v.outcome.value:9} {v.code} blocked={w:.3f} total={time.perf_counter()-t:.2f} {v.reason[:170]} {e or ''}")
PG = [
 ("select 'NaN'::numeric v", "v > 1"), ("select 'NaN'::numeric v", "v == 1"), ("select 'infinity'::numeric v", "v > 1"), ("select '-infinity'::numeric v", "v < 1"), ("select 'infinity'::float8 v", "v > 1"),("select 'infinity'::numeric v", "age of v < 1h"),("select '-infinity'::float8 v", "age of v < 1h"), ("select 'infinity'::numeric v", "v advances within 1m"),
 ("select 10::numeric^1000 v", "v > 1"), ("select 10::numeric^100000 v", "v > 1"), ("select 10::numeric^100000 v", "v < 1"), ("select 10::numeric^1000 v", "age of v < 1h"), ("select 10::numeric^1000 v", "v advances within 1m"),
 ("select gen_random_uuid() v", 'v matches "-"'), ("select '0b2f0cc4-6f3f-4e1c-9a0a-7a7a7a7a7a7a'::uuid v", 'v == "0b2f0cc4-6f3f-4e1c-9a0a-7a7a7a7a7a7a"'),
 ("select '10:00'::time v", 'v == "10:00:00"'), ("select '10:00+00'::timetz v", 'v matches "10"'), ("select '10.0.0.1'::inet v", 'v == "10.0.0.1"'), ("select '10.0.0.0/8'::cidr v", 'v == "10.0.0.0/8"'),
 ("select int4range(1,5) v", 'v == "[1,5)"'), ("select array[1,2,3] v", "v contains 2"), ("select array[1.5,2]::numeric[] v", "v contains 1.5"), ("select array[now()] v", 'v matches "20"'), ("select array[now()] v", 'v contains "20"'), ("select array['a'::text,null] v", "v contains null"), ("select '{{1,2},{3,4}}'::int[] v", "v contains 2"),
 ("select '{\"a\": 1}'::jsonb v", 'v == 1'), ("select '{\"a\": 1}'::jsonb v", 'v matches "a"'), ("select '3'::jsonb v", 'v == 3'), ("select '[1]'::json v", 'v contains 1'), ("select '{\"a\":1}'::jsonb->'a' v", 'v == 1'), ("select '1e400'::jsonb v", 'v > 1'),
 ("select interval '1 day 2 h' v", 'v == 93600'), ("select interval '1 mon' v", 'v == 2592000'), ("select interval '-1 s' v", 'v == -1'), ("select interval '100000000 years' v", 'v > 1'),
 ("select now() at time zone 'Asia/Tokyo' v", "age of v < 1m"), ("select timestamptz 'infinity' v", "age of v < 1m"), ("select timestamp '4000-01-01 BC' v", "age of v < 1m"), ("select date '0001-01-01' v", "age of v < 1m"),
 ("select null v", "v == null"), ("select null v", "v != 3"), ("select null::int v", "v < 3"), ("select 1 v where false", "v == null"), ("select 1 v where false",), ("values (1),(2)", "value == 1"), ("select 1 a, 2 a", "a == 1"), ("select 1 a, 2 \"A\"", "a == 1"), ("select 1 \"a b/c\"", '"a b/c" == 1'), ("select 1 \"a\"\"b\"", "'a\"b' == 1"), ("select 1 \"value\", 2 b", "value == 1"), ("select 2 b, 1 \"value\"", "value == 1"), ("select 2 b, 1 \"value\"", '"value" == 1'), ("select 1 \"age\"", "age == 1"), ("select 1 as \"ä\"", "ä == 1"), ("select 1 as \"Ä\"", "ä == 1"),
 ("select 1",  '"?column?" == 1'), ("select repeat('x', 10000000) v", 'v matches "xy"'), ("select repeat('x', 10000000) v", 'v == "x"'), ("select repeat('x', 10000000) v", 'v contains "y"'), ("select repeat('x', 10000000) v", 'v > 5'), ("select repeat('x', 10000000) v", 'age of v < 5s'), ("select repeat('x', 10000000) v",), ("select decode(repeat('ff', 5000000), 'hex') v", 'v contains "y"'), ("select array_agg(x) v from generate_series(1,500000) x", 'v contains 0'), ("select array_agg(x) v from generate_series(1,500000) x", 'v contains 500000'), ("select x from generate_series(1,3000000) x", 'value == 1'),
 ("select repeat('x', 200000000) v", 'v == "x"'),
 ("select '12.50'::money v", "v > 1"), ("select B'101' v", 'v == "101"'), ("select point(1,2) v", 'v matches "1"'), ("select 'a'::\"char\" v", 'v == "a"'), ("select '1/2'::pg_lsn v", 'v matches "1"'), ("select oid v from pg_class limit 1", "v > 0"), ("select row(1,2) v", 'v matches "1"'), ("select 'x'::name v", 'v == "x"'), ("select 'a=>1'::text v", 'v == "a=>1"'), ("select '<a/>'::xml v", 'v matches "a"'), ("select 'a'::tsvector v", 'v matches "a"'), ("select E'a\\nb\\x1b[31m' v", 'v == "a"'),
]
MY = [
 ("select 1 a, 2 a", "a == 1"), ("select 1 a, 2 A", "a == 1"), ("select 1 a, 2 a", "value == 1"), ("select cast('10:00:00' as time) v", "v == 36000"), ("select cast('-10:00:00' as time) v", "v == -36000"), ("select cast('0000-00-00' as date) v", "age of v < 1h"), ("select cast('2020-01-01' as date) v", "age of v < 1h"), ("select utc_timestamp() v", "age of v < 1m"), ("select now() v", "age of v < 1m"), ("select 1.50 v", "v == 1.5"), ("select 1e300*1e10 v", "v > 1"), ("select cast(99999999999999999999999999999999999999999999999999999999999999999 as decimal(65,0)) v", "v > 1"), ("select b'101' v", "v == 5"), ("select x'ff00' v", 'v contains "x"'), ("select json_object('a',1) v", 'v matches "a"'), ("select json_extract('{\"a\":3}','$.a') v", 'v == 3'), ("select null v", "v == null"), ("select null v", "v < 3"), ("select true v", "v == 1"), ("select 1 `a b/c`", '"a b/c" == 1'), ("select 1 v where false", "v == 1"), ("select repeat('x', 10000000) v", 'v == "x"'), ("select repeat('x', 10000000) v",), ("select year(now()) v", "v > 2000"), ("select point(1,2) v", 'v == "x"'), ("select 1 union select 2", "value == 1"), ("select seq from seq_1_to_3000000", "value == 1"), ("select cast('2020-01-01 00:00:00.123456' as datetime(6)) v", 'v matches "2020"'), ("select uuid() v", 'v matches "-"'), ("select inet6_aton('::1') v", 'v matches "x"'), ("select 1 `value`, 2 b", "value == 1"), ("select 2 b, 1 `value`", '"value" == 1'),
 ("select now(6) a, 1 as ``", "value == 1"),
]
def test_pg(pg):
    print()
    for q, *r in PG: go(pg.url, q, *r)
def test_my(my):
    print()
    for q, *r in MY: go(my.url, q, *r)
