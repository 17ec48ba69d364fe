-- write_together is the fast way to commit several records together: all of them, or none. The first
-- arrays are those of write, with one element per record. deletions leave tombstones.
--
-- The guard arrays have one element per record that the commit relies on and does not write: its live
-- version, or 0 for any, and the token of its live lease, or 0 for no test. guard_keys are the numbers
-- of their advisory locks. They are taken shared: a writer that waits for such a record takes its own
-- exclusively, and goes first.
--
-- It returns the time of the commit, or nothing if it wrote nothing: a record is locked, has another
-- version or another lease, or is not absent. The caller then asks a transaction, which finds out
-- more. It waits for as little as write does.
--
-- A record may be renewed while the function begins: its row is then a newer one, which the function
-- locks but cannot replace, because its snapshot is older. In this case it fails, so that nothing is
-- written.
--
-- The clock is read after all records are locked, so all records of a commit have the same time.
CREATE OR REPLACE FUNCTION {write_together}(
    kinds text[], ids text[], expected bigint[], versions bigint[], docs text[], schemas bigint[], labels text[],
    dues timestamptz[], dues_in interval[], ttls interval[], rings text[],
    tokens bigint[], holders text[], leases interval[], releases boolean[], lock_keys bigint[],
    deletions boolean[], guard_kinds text[], guard_ids text[], guard_versions bigint[], guard_tokens bigint[], guard_keys bigint[]
) RETURNS TABLE (at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET lock_timeout = '10ms' AS {body}
DECLARE
    n     integer;
    moved bigint;
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
    -- An absent row cannot be locked: the advisory lock of its key stands for it. The next statement
    -- sees what the last holder has committed.
    FOR n IN 1..pg_catalog.cardinality(expected) LOOP
        IF expected[n] = 0 AND NOT pg_catalog.pg_try_advisory_xact_lock(lock_keys[n]) THEN
            RETURN;
        END IF;
    END LOOP;
    FOR n IN 1..pg_catalog.cardinality(guard_keys) LOOP
        IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(guard_keys[n]) THEN
            RETURN;
        END IF;
    END LOOP;
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(kinds, ids, expected, versions, docs, schemas, labels, dues, dues_in, ttls, rings, tokens, holders, leases, releases, deletions)
            AS g (kind, id, expected, version, doc, schema, label, due, due_in, ttl, ring, token, holder, lease, release, deletion)
    ), picked AS MATERIALIZED (
        SELECT r.ctid AS place, r.deleted, r.expires, r.token AS held, r.until, g.*
        FROM given g JOIN {records} r ON r.kind = g.kind AND r.id = g.id AND r.version = g.expected
        WHERE g.expected > 0
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ), guarded AS MATERIALIZED (
        SELECT r.deleted, r.expires, r.token AS held, r.until, g.version, g.token
        FROM unnest(guard_kinds, guard_ids, guard_versions, guard_tokens) AS g (kind, id, version, token)
        JOIN {records} r ON r.kind = g.kind AND r.id = g.id AND (g.version = 0 OR r.version = g.version)
        FOR SHARE OF r SKIP LOCKED
    ), clock AS MATERIALIZED (
        SELECT pg_catalog.clock_timestamp() AS now FROM (SELECT count(*) FROM picked) AS locked, (SELECT count(*) FROM guarded) AS shared
    ), held AS MATERIALIZED (
        SELECT FROM guarded g, clock
        WHERE g.deleted IS NULL AND (g.expires IS NULL OR g.expires > clock.now OR g.held <> 0 AND g.until > clock.now)
            AND (g.token = 0 OR g.held = g.token AND g.until > clock.now)
    ), live AS MATERIALIZED (
        SELECT p.* FROM picked p, clock
        WHERE p.deleted IS NULL AND (p.expires IS NULL OR p.expires > clock.now OR p.held <> 0 AND p.until > clock.now)
            AND (p.token = 0 OR p.held = p.token AND p.until > clock.now)
            AND (p.holder IS NULL OR p.held = 0 OR p.until <= clock.now)
    ), fresh AS MATERIALIZED (
        SELECT g.* FROM given g JOIN {meta} m ON m.name = 'floor' AND g.version > m.value
        WHERE g.expected = 0 AND NOT EXISTS (SELECT FROM {records} o WHERE o.kind = g.kind AND o.id = g.id)
    ), ready AS MATERIALIZED (
        SELECT clock.now FROM clock WHERE (SELECT count(*) FROM live) + (SELECT count(*) FROM fresh) = pg_catalog.cardinality(kinds)
            AND (SELECT count(*) FROM held) = pg_catalog.cardinality(guard_kinds)
    ), replaced AS (
        UPDATE {records} r SET
            version = k.version, doc = k.doc::jsonb, schema = k.schema, label = k.label,
            due = coalesce(k.due, ready.now + k.due_in), updated = ready.now,
            deleted = CASE WHEN k.deletion THEN ready.now END,
            expires = CASE WHEN k.ttl < '0' THEN r.expires ELSE ready.now + k.ttl END,
            holder = CASE WHEN k.release THEN '' ELSE coalesce(k.holder, r.holder) END,
            token = CASE WHEN k.release THEN 0 WHEN k.holder IS NULL THEN r.token ELSE k.version END,
            until = CASE WHEN k.release THEN NULL ELSE coalesce(ready.now + k.lease, r.until) END,
            commits = pg_catalog.string_to_array(k.ring, E'\n')
        FROM ready, live AS k WHERE r.ctid = k.place
        RETURNING r.version
    ), created AS (
        INSERT INTO {records} (kind, id, version, born, doc, schema, label, due, expires, updated, holder, token, until, commits)
        SELECT k.kind, k.id, k.version, k.version, k.doc::jsonb, k.schema, k.label, coalesce(k.due, ready.now + k.due_in),
            CASE WHEN k.ttl >= '0' THEN ready.now + k.ttl END, ready.now, coalesce(k.holder, ''),
            CASE WHEN k.holder IS NULL THEN 0 ELSE k.version END, ready.now + k.lease, pg_catalog.string_to_array(k.ring, E'\n')
        FROM ready, fresh AS k
        RETURNING version
    ) SELECT ready.now, (SELECT count(*) FROM replaced) + (SELECT count(*) FROM created) INTO at, moved FROM ready;
    IF at IS NULL THEN
        RETURN;
    END IF;
    IF moved <> pg_catalog.cardinality(kinds) THEN
        RAISE serialization_failure USING MESSAGE = 'a record was replaced meanwhile';
    END IF;
    RETURN NEXT;
END
{body};
