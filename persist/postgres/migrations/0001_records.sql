-- A word in braces is filled in: it is a qualified, quoted name with the store's prefix, after a
-- colon the same without the schema, and "body" the quotes around a function's body. There must be
-- none in a comment, which a name with a line break would end.
--
-- Functions are called instead of sending their statements, because a session keeps the plans of a
-- function, and a text that is sent anew is planned anew. All names in them are qualified, whatever
-- the session's search path is; to set that would reach triggers that users have added. They run with
-- the rights of the caller. enable_seqscan and its like keep a plan that was made when the
-- table was small from reading all of it once it is large; plan_cache_mode keeps those from being planned anew each
-- time who are given short arrays, which PostgreSQL would find cheaper than a plan for arrays of any length.

-- Facts about the whole store: the schema version, and the version floor, below which versions
-- may have been used by tombstones that were purged.
CREATE TABLE {meta} (
    name  text COLLATE "C" PRIMARY KEY,
    value bigint NOT NULL
);

INSERT INTO {meta} (name, value) VALUES ('schema', 0), ('floor', 0);

CREATE TABLE {records} (
    kind    text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    version bigint           NOT NULL,
    born    bigint           NOT NULL, -- the version that the record was created with
    doc     jsonb,                     -- NULL when deleted
    schema  bigint           NOT NULL, -- schema version that doc was written under
    label   text COLLATE "C" NOT NULL,
    due     timestamptz,
    expires timestamptz,               -- of a tombstone: it was swept, having expired then
    updated timestamptz      NOT NULL,
    deleted timestamptz,               -- since when this is a tombstone; equal to updated
    holder  text COLLATE "C" NOT NULL,
    token   bigint           NOT NULL, -- 0: not leased
    until   timestamptz,
    commits text[]           NOT NULL, -- recent commit ids, oldest first
    CONSTRAINT {:records_pkey} PRIMARY KEY (kind, id)
) WITH (fillfactor = 85);

-- No index has a column that every write changes, so that most updates stay on their page.
CREATE INDEX {:label}   ON {records} (kind, label, id)   WHERE label <> '';
CREATE INDEX {:due}     ON {records} (kind, due, id)     WHERE due IS NOT NULL;
CREATE INDEX {:expires} ON {records} (kind, expires, id) WHERE expires IS NOT NULL AND deleted IS NULL;
CREATE INDEX {:deleted} ON {records} (kind, deleted, id) WHERE deleted IS NOT NULL;

CREATE VIEW {state} AS
SELECT kind, id, version, doc, schema, label, due, expires, updated,
       CASE WHEN until > pg_catalog.statement_timestamp() THEN holder END AS holder,
       CASE WHEN until > pg_catalog.statement_timestamp() THEN until END AS held_until
FROM {records}
WHERE deleted IS NULL
  AND (expires IS NULL OR expires > pg_catalog.statement_timestamp() OR until > pg_catalog.statement_timestamp());

COMMENT ON VIEW {state} IS 'The documents that are alive now: neither deleted, nor expired without a lease.';

-- remember returns ring with id appended: the last 4 ids of each of the last 16 writers. The
-- writer is what stands before the last dot of an id.
CREATE FUNCTION {remember}(ring text[], id text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE AS {body}
DECLARE
    writers text[];
    counts  integer[] := '{1}';
    kept    text[]    := ARRAY[id];
    old     text;
    writer  text;
    place   integer;
BEGIN
    IF pg_catalog.cardinality(ring) < 4 THEN
        RETURN ring || id;
    END IF;
    writers := ARRAY[pg_catalog.left(id, pg_catalog.length(id) - pg_catalog.strpos(pg_catalog.reverse(id), '.'))];
    FOR n IN REVERSE pg_catalog.cardinality(ring)..1 LOOP
        old := ring[n];
        writer := pg_catalog.left(old, pg_catalog.length(old) - pg_catalog.strpos(pg_catalog.reverse(old), '.'));
        place := pg_catalog.array_position(writers, writer);
        IF place IS NULL THEN
            CONTINUE WHEN pg_catalog.cardinality(writers) = 16;
            writers := writers || writer;
            counts := counts || 1;
        ELSE
            CONTINUE WHEN counts[place] = 4;
            counts[place] := counts[place] + 1;
        END IF;
        kept := old || kept;
    END LOOP;
    RETURN kept;
END
{body};

-- durable makes the transaction wait for the disk when it commits, whatever the session's default.
CREATE FUNCTION {durable}() RETURNS void
LANGUAGE plpgsql AS {body}
BEGIN
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END
{body};

-- write is a transaction of its own, of one write without guards. outcome is 'written', 'conflict' with the record
-- that is current (no record: the key is absent), or 'busy' when somebody has the record locked and
-- patience is 0; else it is how many milliseconds to wait for the lock. Without patience, a unique
-- index that waits for somebody's uncommitted row still does so for 10 ms. lock_key stands for the key
-- while it is absent, and for a place in the queue of those who wait for its record. Versions, life and lease are tested once the lock is held, by a clock that is
-- read then. The transaction must be READ COMMITTED, where each statement sees what is committed by
-- then; in any other it fails with SQLSTATE PW001.
CREATE FUNCTION {write}(
    p_kind text, p_id text, p_expected bigint, p_gone boolean, p_version bigint, p_doc jsonb, p_schema bigint,
    p_label text, p_due timestamptz, p_due_in interval, p_ttl interval, p_deleted boolean,
    p_holder text, p_lease interval, p_commit text, lock_key bigint, patience integer
) RETURNS TABLE (outcome text, at timestamptz, floor bigint,
    kind text, id text, version bigint, born bigint, doc jsonb, schema bigint, label text, due timestamptz,
    expires timestamptz, updated timestamptz, is_deleted boolean, holder text, token bigint, until timestamptz, commits text)
LANGUAGE plpgsql SET enable_seqscan = off AS {body}
DECLARE
    present {records};
    held    boolean;
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = 'PW001', MESSAGE = 'the transaction is not READ COMMITTED';
    END IF;
    PERFORM {durable}();
    PERFORM pg_catalog.set_config('lock_timeout', greatest(patience, 10)::text, true);
    IF p_expected = 0 THEN
        IF patience > 0 THEN
            PERFORM pg_catalog.pg_advisory_xact_lock(lock_key);
        ELSIF NOT pg_catalog.pg_try_advisory_xact_lock(lock_key) THEN
            outcome := 'busy';
            RETURN NEXT;
            RETURN;
        END IF;
        SELECT * INTO present FROM {records} r WHERE r.kind = p_kind AND r.id = p_id;
    ELSE
        IF patience > 0 THEN
            PERFORM pg_catalog.pg_advisory_xact_lock(lock_key);
            SELECT * INTO present FROM {records} r WHERE r.kind = p_kind AND r.id = p_id FOR NO KEY UPDATE;
        ELSE -- who is too late has nothing locked: the next to come would find it so
            SELECT * INTO present FROM {records} r WHERE r.kind = p_kind AND r.id = p_id;
            IF present.version = p_expected THEN
                SELECT * INTO present FROM {records} r WHERE r.kind = p_kind AND r.id = p_id FOR NO KEY UPDATE SKIP LOCKED;
            END IF;
        END IF;
        IF present.version IS NULL THEN -- it is locked, or was purged and created anew during the wait, or is absent
            PERFORM FROM {records} r WHERE r.kind = p_kind AND r.id = p_id;
            IF FOUND THEN
                outcome := 'busy';
                RETURN NEXT;
                RETURN;
            END IF;
        END IF;
    END IF;
    at := pg_catalog.clock_timestamp();
    outcome := 'conflict';
    IF present.version IS NULL THEN
        -- After the record was found absent: whoever purged it had raised the floor by then.
        SELECT m.value INTO floor FROM {meta} m WHERE m.name = 'floor';
        IF p_expected = 0 AND p_version > floor THEN
            INSERT INTO {records} (
                kind, id, version, born, doc, schema, label, due, expires,
                updated, deleted, holder, token, until, commits
            ) VALUES (
                p_kind, p_id, p_version, p_version, p_doc, p_schema, p_label, coalesce(p_due, at + p_due_in), at + p_ttl,
                at, CASE WHEN p_deleted THEN at END, coalesce(p_holder, ''),
                CASE WHEN p_lease IS NULL THEN 0 ELSE p_version END, at + p_lease, ARRAY[p_commit]
            );
            outcome := 'written';
        END IF;
        RETURN NEXT;
        RETURN;
    END IF;
    held := present.token <> 0 AND present.until > at;
    IF present.version = p_expected
        AND p_gone = (present.deleted IS NOT NULL OR present.expires IS NOT NULL AND present.expires <= at AND NOT held)
        AND (p_lease IS NULL OR NOT held)
    THEN
        IF p_lease IS NOT NULL THEN
            present.holder := p_holder;
            present.token := p_version;
            present.until := at + p_lease;
        ELSIF p_gone OR p_deleted THEN
            present.holder := '';
            present.token := 0;
            present.until := NULL;
        END IF;
        UPDATE {records} r SET
            version = p_version, doc = p_doc, schema = p_schema, label = p_label,
            due = coalesce(p_due, at + p_due_in), expires = at + p_ttl,
            updated = at, deleted = CASE WHEN p_deleted THEN at END,
            holder = present.holder, token = present.token, until = present.until,
            commits = {remember}(present.commits, p_commit)
        WHERE r.kind = p_kind AND r.id = p_id;
        outcome := 'written';
        RETURN NEXT;
        RETURN;
    END IF;
    IF patience = 0 THEN -- nothing but a lock was written, and nothing follows
        PERFORM pg_catalog.set_config('synchronous_commit', 'off', true);
    END IF;
    kind       := present.kind;
    id         := present.id;
    version    := present.version;
    born       := present.born;
    doc        := present.doc;
    schema     := present.schema;
    label      := present.label;
    due        := present.due;
    expires    := present.expires;
    updated    := present.updated;
    is_deleted := present.deleted IS NOT NULL;
    holder     := present.holder;
    token      := present.token;
    until      := present.until;
    commits    := pg_catalog.array_to_string(present.commits, E'\n');
    RETURN NEXT;
END
{body};

-- write, with arrays, is that for the next versions of several records that are alive and that nobody has locked, each with an outcome of
-- its own. It returns the places of those that it has written; about the others, the one above is to be asked. rings are the commit ids to
-- keep, with line breaks in between. Nobody is waited for.
CREATE FUNCTION {write}(
    kinds text[], ids text[], expected bigint[], versions bigint[], docs text[], schemas bigint[], labels text[],
    dues timestamptz[], ttls interval[], rings text[]
) RETURNS TABLE (number bigint, at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET lock_timeout = '10ms' AS {body}
DECLARE
    places  tid[];
    numbers bigint[];
    now     timestamptz;
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' OR pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        RETURN;
    END IF;
    SELECT pg_catalog.array_agg(l.place), pg_catalog.array_agg(l.number) INTO places, numbers FROM (
        SELECT r.ctid AS place, k.number FROM unnest(kinds, ids, expected) WITH ORDINALITY AS k (kind, id, version, number)
        JOIN {records} r ON r.kind = k.kind AND r.id = k.id AND r.version = k.version
        ORDER BY r.kind, r.id FOR NO KEY UPDATE OF r SKIP LOCKED
    ) AS l;
    now := pg_catalog.clock_timestamp();
    RETURN QUERY UPDATE {records} r SET
        version = versions[p.number], doc = docs[p.number]::jsonb, schema = schemas[p.number], label = labels[p.number],
        due = dues[p.number], expires = now + ttls[p.number], updated = now,
        commits = pg_catalog.string_to_array(rings[p.number], E'\n')
    FROM unnest(places, numbers) AS p (place, number)
    WHERE r.ctid = p.place AND r.deleted IS NULL AND (r.expires IS NULL OR r.expires > now OR r.token <> 0 AND r.until > now)
    RETURNING p.number, now;
END
{body};

-- write, with arrays and without times to live, is the same for records that have no expiry and get none. Whom nobody has locked is seen by xmax;
-- who locks a record after that look is waited for, but for 10 ms only. The keys come sorted.
CREATE FUNCTION {write}(
    kinds text[], ids text[], expected bigint[], versions bigint[], docs text[], schemas bigint[], labels text[],
    dues timestamptz[], rings text[]
) RETURNS TABLE (number bigint, at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET lock_timeout = '10ms' AS {body}
DECLARE
    now timestamptz := pg_catalog.clock_timestamp();
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' OR pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        RETURN;
    END IF;
    RETURN QUERY UPDATE {records} r SET
        version = versions[k.number], doc = docs[k.number]::jsonb, schema = schemas[k.number], label = labels[k.number],
        due = dues[k.number], updated = now, commits = pg_catalog.string_to_array(rings[k.number], E'\n')
    FROM unnest(kinds, ids, expected) WITH ORDINALITY AS k (kind, id, version, number)
    WHERE r.kind = k.kind AND r.id = k.id AND r.version = k.version AND (r.xmax = 0 OR r.xmax = r.xmin) AND r.deleted IS NULL AND r.expires IS NULL
    RETURNING k.number, now;
END
{body};

-- lock_absent locks keys, of which all or some are absent, until the transaction ends: for
-- themselves or, where shared, against those only who would create them. It returns those that
-- somebody has locked, when patience is 0. The keys come sorted, and are locked before any record.
--
-- Who waits for a record to change it has its key locked, too, and readings are the keys of records
-- that are only read: they are returned while somebody waits, because locks for sharing that are
-- always granted to the next reader would keep a writer waiting for ever.
CREATE FUNCTION {lock_absent}(lock_keys bigint[], shared boolean[], readings bigint[], patience integer) RETURNS bigint[]
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
        IF pg_catalog.pg_try_advisory_lock_shared(readings[n]) THEN -- for a look, and not until the transaction ends
            PERFORM pg_catalog.pg_advisory_unlock_shared(readings[n]);
        ELSE
            busy := busy || readings[n];
        END IF;
    END LOOP;
    RETURN busy;
END
{body};

-- lock_records locks the records of keys in their order, for sharing or against all others, and
-- returns what a commit tests of each. With patience 0 those that somebody has locked come with
-- locked = false, and so do those that were purged and created anew during a wait; all that exist
-- may come so, too, after they came with locked = true.
CREATE FUNCTION {lock_records}(kinds text[], ids text[], shared boolean, patience integer)
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

-- confirm_absent is for transactions that are not READ COMMITTED, which go on seeing what was committed
-- when they began. It fails with SQLSTATE 40001 if one of the keys, which are locked by lock_absent, has a
-- record that is newer than that, or if the floor is: an index knows all rows, and a lock is given of the
-- newest only. What that takes is taken back.
CREATE FUNCTION {confirm_absent}(kinds text[], ids text[]) RETURNS void
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

-- create_records stores records whose keys are absent, and locked by lock_absent.
CREATE FUNCTION {create_records}(
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

-- replace_records stores records that are locked by lock_records.
CREATE FUNCTION {replace_records}(
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
    IF changed <> pg_catalog.cardinality(kinds) THEN -- cannot be, while they are locked
        RAISE serialization_failure USING MESSAGE = 'a locked record is gone';
    END IF;
END
{body};

-- touch_records changes the expiry and the lease of records that are locked by lock_records, and
-- nothing else.
CREATE FUNCTION {touch_records}(
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
    IF changed <> pg_catalog.cardinality(kinds) THEN -- cannot be, while they are locked
        RAISE serialization_failure USING MESSAGE = 'a locked record is gone';
    END IF;
END
{body};
