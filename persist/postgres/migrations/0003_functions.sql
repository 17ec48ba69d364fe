-- The functions of the store. The store calls functions instead of sending their statements,
-- because a session keeps the plans of a function. They run with the rights of the caller. All
-- names are qualified, so the search path of a session does not matter.
--
-- plan_cache_mode keeps one plan for arrays of any length: PostgreSQL would otherwise plan short
-- arrays again each time. enable_seqscan, enable_mergejoin and enable_hashjoin force index lookups,
-- so that a plan made for a small table is still good when the table has grown.
--
-- Other functions of earlier releases stay: processes of those releases may still run.

-- durable makes the transaction wait for the disk when it commits, whatever the session's default.
CREATE OR REPLACE FUNCTION {durable}() RETURNS void
LANGUAGE plpgsql AS {body}
BEGIN
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END
{body};

-- write is the fast way to commit a batch: commits of one record each, independent of each other
-- and with different keys, with one element per commit in every array. A commit creates a record
-- (expected = 0) or replaces a live one.
--
-- dues_in and ttls count from the commit; a negative ttl keeps the expiry. rings are the commit ids
-- to keep, one per line. A token other than 0 must be that of the live lease. With a holder, the
-- commit acquires the lease, which must be free; without, leases extends it. releases ends it.
--
-- write returns a row with written = true for each commit that it wrote, with the time and the key.
-- If it did not write all, it also returns what is stored for the others: the record, or only the
-- key and the floor if there is none. This is read by a later statement than the writes, so it is
-- newer than what the writes have seen. A commit without a row is undecided.
--
-- write never waits for a record: it skips locked ones. It waits at most 10 ms for the lock of a
-- table or for an uncommitted row in a unique index. The clock that leases are tested by is read
-- after the records are locked. In a transaction that is not READ COMMITTED write returns nothing.
CREATE OR REPLACE FUNCTION {write}(
    kinds text[], ids text[], expected bigint[], versions bigint[], docs text[], schemas bigint[], labels text[],
    dues timestamptz[], dues_in interval[], ttls interval[], rings text[],
    tokens bigint[], holders text[], leases interval[], releases boolean[], lock_keys bigint[]
) RETURNS TABLE (written boolean, at timestamptz, floor bigint,
    kind text, id text, version bigint, born bigint, doc jsonb, schema bigint, label text, due timestamptz,
    expires timestamptz, updated timestamptz, is_deleted boolean, holder text, token bigint, until timestamptz, commits text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET lock_timeout = '10ms' AS {body}
DECLARE
    now      timestamptz;
    replaced bigint := 0;
    created  bigint := 0;
    free     bigint[];
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;

    -- The clock is read after all records are locked, because it selects from them.
    RETURN QUERY WITH picked AS MATERIALIZED (
        SELECT l.ctid AS place, n.*
        FROM unnest(kinds, ids, expected, versions, docs, schemas, labels, dues, dues_in, ttls, rings, tokens, holders, leases, releases)
            AS n (kind, id, expected, version, doc, schema, label, due, due_in, ttl, ring, token, holder, lease, release)
        JOIN {records} l ON l.kind = n.kind AND l.id = n.id AND l.version = n.expected
        FOR NO KEY UPDATE OF l SKIP LOCKED
    ), clock AS MATERIALIZED (SELECT pg_catalog.clock_timestamp() AS now FROM (SELECT count(*) FROM picked) AS locked)
    UPDATE {records} r SET
        version = k.version, doc = k.doc::jsonb, schema = k.schema, label = k.label,
        due = coalesce(k.due, clock.now + k.due_in), updated = clock.now,
        expires = CASE WHEN k.ttl < '0' THEN r.expires ELSE clock.now + k.ttl END,
        holder = CASE WHEN k.release THEN '' ELSE coalesce(k.holder, r.holder) END,
        token = CASE WHEN k.release THEN 0 WHEN k.holder IS NULL THEN r.token ELSE k.version END,
        until = CASE WHEN k.release THEN NULL ELSE coalesce(clock.now + k.lease, r.until) END,
        commits = pg_catalog.string_to_array(k.ring, E'\n')
    FROM picked AS k, clock
    WHERE r.ctid = k.place AND r.deleted IS NULL
        AND (r.expires IS NULL OR r.expires > clock.now OR r.token <> 0 AND r.until > clock.now)
        AND (k.token = 0 OR r.token = k.token AND r.until > clock.now)
        AND (k.holder IS NULL OR r.token = 0 OR r.until <= clock.now)
    RETURNING true, clock.now, NULL::bigint, r.kind, r.id, NULL::bigint, NULL::bigint, NULL::jsonb, NULL::bigint, NULL::text, NULL::timestamptz,
        NULL::timestamptz, NULL::timestamptz, NULL::boolean, NULL::text, NULL::bigint, NULL::timestamptz, NULL::text;
    GET DIAGNOSTICS replaced = ROW_COUNT;

    IF 0 = ANY (expected) THEN
        -- An absent row cannot be locked: the advisory lock of its key stands for it.
        SELECT pg_catalog.array_agg(n.number) INTO free
        FROM unnest(expected, lock_keys) WITH ORDINALITY AS n (expected, lock_key, number)
        WHERE CASE WHEN n.expected = 0 THEN pg_catalog.pg_try_advisory_xact_lock(n.lock_key) END;
        now := pg_catalog.clock_timestamp();
        -- One statement sees a tombstone, or the floor that was raised when it was purged.
        RETURN QUERY INSERT INTO {records} AS r (
            kind, id, version, born, doc, schema, label, due, expires, updated, holder, token, until, commits
        )
        SELECT n.kind, n.id, n.version, n.version, n.doc::jsonb, n.schema, n.label, coalesce(n.due, now + n.due_in),
            CASE WHEN n.ttl >= '0' THEN now + n.ttl END, now, coalesce(n.holder, ''), CASE WHEN n.holder IS NULL THEN 0 ELSE n.version END,
            now + n.lease, pg_catalog.string_to_array(n.ring, E'\n')
        FROM unnest(kinds, ids, versions, docs, schemas, labels, dues, dues_in, ttls, rings, holders, leases) WITH ORDINALITY
            AS n (kind, id, version, doc, schema, label, due, due_in, ttl, ring, holder, lease, number)
        JOIN {meta} m ON m.name = 'floor' AND n.version > m.value
        WHERE n.number = ANY (free) AND NOT EXISTS (SELECT FROM {records} o WHERE o.kind = n.kind AND o.id = n.id)
        RETURNING true, now, NULL::bigint, r.kind, r.id, NULL::bigint, NULL::bigint, NULL::jsonb, NULL::bigint, NULL::text, NULL::timestamptz,
            NULL::timestamptz, NULL::timestamptz, NULL::boolean, NULL::text, NULL::bigint, NULL::timestamptz, NULL::text;
        GET DIAGNOSTICS created = ROW_COUNT;
    END IF;

    IF replaced + created < pg_catalog.cardinality(ids) THEN
        RETURN QUERY SELECT false, pg_catalog.clock_timestamp(), m.value, n.kind, n.id, r.version, r.born, r.doc, r.schema, r.label, r.due,
            r.expires, r.updated, r.deleted IS NOT NULL, r.holder, r.token, r.until, pg_catalog.array_to_string(r.commits, E'\n')
        FROM unnest(kinds, ids) AS n (kind, id)
        JOIN {meta} m ON m.name = 'floor'
        LEFT JOIN {records} r ON r.kind = n.kind AND r.id = n.id
        WHERE (r.xmin::text = (pg_catalog.txid_current_if_assigned() & 4294967295)::text) IS NOT TRUE; -- not written above
    END IF;
END
{body};

-- lock_absent takes the advisory locks of keys until the transaction ends: exclusive ones, or
-- shared ones that only keep the key from being created. The keys come sorted, and are locked
-- before any record. With patience 0 it does not wait, and returns the keys that it could not lock;
-- otherwise it waits for that many milliseconds.
--
-- A transaction that waits to change a record holds the advisory lock of its key. readings are the
-- keys of records that are only read; lock_absent returns those that a writer waits for. Without
-- this, shared row locks that are always granted to the next reader would starve the writer.
CREATE OR REPLACE FUNCTION {lock_absent}(lock_keys bigint[], shared boolean[], readings bigint[], patience integer) RETURNS bigint[]
LANGUAGE plpgsql AS {body}
DECLARE
    busy bigint[] := '{}';
BEGIN
    PERFORM pg_catalog.set_config('lock_timeout', greatest(patience, 10)::text, true);
    FOR n IN 1..cardinality(lock_keys) LOOP
        IF patience > 0 AND shared[n] THEN
            PERFORM pg_catalog.pg_advisory_xact_lock_shared(lock_keys[n]);
        ELSIF patience > 0 THEN
            PERFORM pg_catalog.pg_advisory_xact_lock(lock_keys[n]);
        ELSIF shared[n] AND NOT pg_catalog.pg_try_advisory_xact_lock_shared(lock_keys[n])
            OR NOT shared[n] AND NOT pg_catalog.pg_try_advisory_xact_lock(lock_keys[n]) THEN
            busy := busy || lock_keys[n];
        END IF;
    END LOOP;
    FOR n IN 1..cardinality(readings) LOOP
        IF pg_catalog.pg_try_advisory_lock_shared(readings[n]) THEN -- a test only: unlocked at once
            PERFORM pg_catalog.pg_advisory_unlock_shared(readings[n]);
        ELSE
            busy := busy || readings[n];
        END IF;
    END LOOP;
    RETURN busy;
END
{body};

-- lock_records locks the records of keys in key order, shared or exclusively, and returns what a
-- commit tests. With patience 0 it does not wait: a record that another transaction has locked
-- comes with locked = false. So does a record that was purged and created again during a wait. A
-- record that came with locked = true may come a second time with locked = false.
CREATE OR REPLACE FUNCTION {lock_records}(kinds text[], ids text[], shared boolean, patience integer)
RETURNS TABLE (locked boolean, kind text, id text, version bigint, expires timestamptz, updated timestamptz,
    deleted timestamptz, holder text, token bigint, until timestamptz, commits text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off AS {body}
DECLARE
    found_count integer;
BEGIN
    PERFORM pg_catalog.set_config('lock_timeout', greatest(patience, 10)::text, true);
    IF patience > 0 AND shared THEN
        RETURN QUERY SELECT true, r.kind, r.id, r.version, r.expires, r.updated, r.deleted, r.holder, r.token, r.until,
            pg_catalog.array_to_string(r.commits, E'\n')
        FROM unnest(kinds, ids) AS k (kind, id) JOIN {records} r ON r.kind = k.kind AND r.id = k.id
        ORDER BY r.kind, r.id FOR SHARE OF r;
    ELSIF patience > 0 THEN
        RETURN QUERY SELECT true, r.kind, r.id, r.version, r.expires, r.updated, r.deleted, r.holder, r.token, r.until,
            pg_catalog.array_to_string(r.commits, E'\n')
        FROM unnest(kinds, ids) AS k (kind, id) JOIN {records} r ON r.kind = k.kind AND r.id = k.id
        ORDER BY r.kind, r.id FOR NO KEY UPDATE OF r;
    ELSIF shared THEN
        RETURN QUERY SELECT true, r.kind, r.id, r.version, r.expires, r.updated, r.deleted, r.holder, r.token, r.until,
            pg_catalog.array_to_string(r.commits, E'\n')
        FROM unnest(kinds, ids) AS k (kind, id) JOIN {records} r ON r.kind = k.kind AND r.id = k.id
        ORDER BY r.kind, r.id FOR SHARE OF r SKIP LOCKED;
    ELSE
        RETURN QUERY SELECT true, r.kind, r.id, r.version, r.expires, r.updated, r.deleted, r.holder, r.token, r.until,
            pg_catalog.array_to_string(r.commits, E'\n')
        FROM unnest(kinds, ids) AS k (kind, id) JOIN {records} r ON r.kind = k.kind AND r.id = k.id
        ORDER BY r.kind, r.id FOR NO KEY UPDATE OF r SKIP LOCKED;
    END IF;
    GET DIAGNOSTICS found_count = ROW_COUNT;
    IF found_count < pg_catalog.cardinality(kinds) THEN
        RETURN QUERY SELECT false, r.kind, r.id, r.version, r.expires, r.updated, r.deleted, r.holder, r.token, r.until, ''
        FROM unnest(kinds, ids) AS k (kind, id) JOIN {records} r ON r.kind = k.kind AND r.id = k.id;
    END IF;
END
{body};

-- confirm_absent is for transactions that are not READ COMMITTED and therefore see an old snapshot.
-- The keys are locked by lock_absent. It fails with SQLSTATE 40001 if a key has a record that is
-- newer than the snapshot, or if the floor is newer: the unique index contains all rows, and FOR
-- SHARE locks only the newest version of a row. The inserts for this test are rolled back.
CREATE OR REPLACE FUNCTION {confirm_absent}(kinds text[], ids text[]) RETURNS void
LANGUAGE plpgsql AS {body}
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        RETURN;
    END IF;
    BEGIN
        INSERT INTO {records} (kind, id, version, born, schema, label, updated, holder, token, commits)
        SELECT k.kind, k.id, 0, 0, 0, '', pg_catalog.clock_timestamp(), '', 0, '{}' FROM unnest(kinds, ids) AS k (kind, id)
        ON CONFLICT DO NOTHING;
        PERFORM FROM {meta} m WHERE m.name = 'floor' FOR SHARE;
        RAISE EXCEPTION USING ERRCODE = 'PW002', MESSAGE = 'confirmed';
    EXCEPTION WHEN SQLSTATE 'PW002' THEN
        RETURN;
    END;
END
{body};

-- create_records stores new records. Their keys are absent and locked by lock_absent.
CREATE OR REPLACE FUNCTION {create_records}(
    at timestamptz, kinds text[], ids text[], versions bigint[], docs text[], schemas bigint[], labels text[],
    dues timestamptz[], expiries timestamptz[], deletions timestamptz[], holders text[], tokens bigint[],
    untils timestamptz[], commit_ids text[]
) RETURNS void
LANGUAGE plpgsql AS {body}
BEGIN
    INSERT INTO {records} (
        kind, id, version, born, doc, schema, label, due, expires, updated, deleted, holder, token, until, commits
    )
    SELECT n.kind, n.id, n.version, n.version, n.doc::jsonb, n.schema, n.label, n.due, n.expires, at, n.deleted,
        n.holder, n.token, n.until, pg_catalog.string_to_array(n.commits, E'\n')
    FROM unnest(kinds, ids, versions, docs, schemas, labels, dues, expiries, deletions, holders, tokens, untils, commit_ids)
        AS n (kind, id, version, doc, schema, label, due, expires, deleted, holder, token, until, commits);
END
{body};

-- replace_records replaces records that are locked by lock_records.
CREATE OR REPLACE FUNCTION {replace_records}(
    at timestamptz, kinds text[], ids text[], versions bigint[], docs text[], schemas bigint[], labels text[],
    dues timestamptz[], expiries timestamptz[], deletions timestamptz[], holders text[], tokens bigint[],
    untils timestamptz[], commit_ids text[]
) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off AS {body}
DECLARE
    changed integer;
BEGIN
    UPDATE {records} r SET
        version = n.version, doc = n.doc::jsonb, schema = n.schema, label = n.label, due = n.due, expires = n.expires,
        updated = at, deleted = n.deleted, holder = n.holder, token = n.token, until = n.until,
        commits = pg_catalog.string_to_array(n.commits, E'\n')
    FROM unnest(kinds, ids, versions, docs, schemas, labels, dues, expiries, deletions, holders, tokens, untils, commit_ids)
        AS n (kind, id, version, doc, schema, label, due, expires, deleted, holder, token, until, commits)
    WHERE r.kind = n.kind AND r.id = n.id;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> pg_catalog.cardinality(kinds) THEN -- impossible while they are locked
        RAISE serialization_failure USING MESSAGE = 'a locked record is gone';
    END IF;
END
{body};

-- touch_records changes only the expiry and the lease of records that are locked by lock_records.
CREATE OR REPLACE FUNCTION {touch_records}(
    kinds text[], ids text[], expiries timestamptz[], holders text[], tokens bigint[], untils timestamptz[]
) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off AS {body}
DECLARE
    changed integer;
BEGIN
    UPDATE {records} r SET expires = n.expires, holder = n.holder, token = n.token, until = n.until
    FROM unnest(kinds, ids, expiries, holders, tokens, untils) AS n (kind, id, expires, holder, token, until)
    WHERE r.kind = n.kind AND r.id = n.id;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> pg_catalog.cardinality(kinds) THEN -- impossible while they are locked
        RAISE serialization_failure USING MESSAGE = 'a locked record is gone';
    END IF;
END
{body};
