-- write_together is the fast way to commit several records together: all of them, or none. The first
-- arrays are those of write, with one element per record. deletions leave tombstones.
--
-- The guard arrays have one element per record that the commit relies on and does not write: its live
-- version, or 0 for any, and the token of its live lease, or 0 for no test. guard_keys are the numbers
-- of their advisory locks, which the function takes shared. A transaction that waits to write such a
-- record holds the same lock exclusively, and goes first: the function then writes nothing.
--
-- It returns the time of the commit, or nothing if it wrote nothing: a record is locked, is expired, has
-- another version or another lease, or is not absent, or the session is not READ COMMITTED. The store
-- then commits by a transaction, which can wait and says why. Like write, the function never waits for a
-- record, and at most 10 ms for the lock of a table or for an uncommitted row in a unique index.
--
-- It locks all records first. Meanwhile it collects when the commit is allowed: from earliest, when the
-- last lease that it takes over has ended, until before latest, when the first record expires or the
-- first lease that it relies on ends. Only then it reads the clock: what is locked can no longer change,
-- so the test holds until the commit. All records get this time.
CREATE OR REPLACE FUNCTION {write_together}(
    kinds text[], ids text[], expected bigint[], versions bigint[], docs text[], schemas bigint[], labels text[],
    dues timestamptz[], dues_in interval[], ttls interval[], rings text[],
    tokens bigint[], holders text[], leases interval[], releases boolean[], lock_keys bigint[],
    deletions boolean[], guard_kinds text[], guard_ids text[], guard_versions bigint[], guard_tokens bigint[], guard_keys bigint[]
) RETURNS TABLE (at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET lock_timeout = '10ms' AS {body}
DECLARE
    stored   record;
    earliest timestamptz := '-infinity';
    latest   timestamptz := 'infinity';
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;

    FOR n IN 1..pg_catalog.cardinality(guard_keys) LOOP
        IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(guard_keys[n]) THEN
            RETURN;
        END IF;
        SELECT r.expires, r.token, r.until INTO stored FROM {records} r
        WHERE r.kind = guard_kinds[n] AND r.id = guard_ids[n] AND r.deleted IS NULL
            AND (guard_versions[n] = 0 OR r.version = guard_versions[n]) AND (guard_tokens[n] = 0 OR r.token = guard_tokens[n])
        FOR SHARE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        IF stored.expires IS NOT NULL THEN -- a live lease keeps an expired record
            latest := least(latest, greatest(stored.expires, CASE WHEN stored.token <> 0 THEN stored.until END));
        END IF;
        IF guard_tokens[n] <> 0 THEN
            latest := least(latest, coalesce(stored.until, '-infinity'));
        END IF;
    END LOOP;
    FOR n IN 1..pg_catalog.cardinality(kinds) LOOP
        IF expected[n] = 0 THEN
            -- An absent row cannot be locked: the advisory lock of its key stands for it. The next
            -- statement sees what the last holder has committed: a record, a tombstone, or the
            -- floor that was raised when the tombstone was purged.
            IF NOT pg_catalog.pg_try_advisory_xact_lock(lock_keys[n]) THEN
                RETURN;
            END IF;
            PERFORM FROM {meta} m WHERE m.name = 'floor' AND m.value < versions[n]
                AND NOT EXISTS (SELECT FROM {records} r WHERE r.kind = kinds[n] AND r.id = ids[n]);
            IF NOT FOUND THEN
                RETURN;
            END IF;
        ELSE
            SELECT r.expires, r.token, r.until INTO stored FROM {records} r
            WHERE r.kind = kinds[n] AND r.id = ids[n] AND r.deleted IS NULL
                AND r.version = expected[n] AND (tokens[n] = 0 OR r.token = tokens[n])
            FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN;
            END IF;
            IF stored.expires IS NOT NULL THEN
                latest := least(latest, greatest(stored.expires, CASE WHEN stored.token <> 0 THEN stored.until END));
            END IF;
            IF tokens[n] <> 0 THEN
                latest := least(latest, coalesce(stored.until, '-infinity'));
            END IF;
            IF holders[n] IS NOT NULL AND stored.token <> 0 THEN -- the lease must have ended
                earliest := greatest(earliest, stored.until);
            END IF;
        END IF;
    END LOOP;

    at := pg_catalog.clock_timestamp();
    IF at < earliest OR at >= latest THEN
        RETURN;
    END IF;

    FOR n IN 1..pg_catalog.cardinality(kinds) LOOP
        IF expected[n] = 0 THEN
            INSERT INTO {records} (kind, id, version, born, doc, schema, label, due, expires, updated, holder, token, until, commits)
            VALUES (kinds[n], ids[n], versions[n], versions[n], docs[n]::jsonb, schemas[n], labels[n], coalesce(dues[n], at + dues_in[n]),
                CASE WHEN ttls[n] >= '0' THEN at + ttls[n] END, at, coalesce(holders[n], ''),
                CASE WHEN holders[n] IS NULL THEN 0 ELSE versions[n] END, at + leases[n], pg_catalog.string_to_array(rings[n], E'\n'));
        ELSE
            UPDATE {records} r SET
                version = versions[n], doc = docs[n]::jsonb, schema = schemas[n], label = labels[n],
                due = coalesce(dues[n], at + dues_in[n]), updated = at,
                deleted = CASE WHEN deletions[n] THEN at END,
                expires = CASE WHEN ttls[n] < '0' THEN r.expires ELSE at + ttls[n] END,
                holder = CASE WHEN releases[n] THEN '' ELSE coalesce(holders[n], r.holder) END,
                token = CASE WHEN releases[n] THEN 0 WHEN holders[n] IS NULL THEN r.token ELSE versions[n] END,
                until = CASE WHEN releases[n] THEN NULL ELSE coalesce(at + leases[n], r.until) END,
                commits = pg_catalog.string_to_array(rings[n], E'\n')
            WHERE r.kind = kinds[n] AND r.id = ids[n];
        END IF;
        IF NOT FOUND THEN
            RAISE serialization_failure USING MESSAGE = 'a trigger has ignored a record';
        END IF;
    END LOOP;
    RETURN NEXT;
END
{body};
