--
-- PostgreSQL database dump
--

\restrict 9j6UpU89lxWDW8UYrb7aEkK0Vh31jfegmWPC458LnaqcTcke7zPpuEr0BaTIGEl

-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: pawl_confirm_absent(text[], text[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pawl_confirm_absent(kinds text[], ids text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        RETURN;
    END IF;
    BEGIN
        INSERT INTO "public"."pawl_records" (kind, id, version, born, schema, label, updated, holder, token, commits)
        SELECT k.kind, k.id, 0, 0, 0, '', pg_catalog.clock_timestamp(), '', 0, '{}' FROM unnest(kinds, ids) AS k (kind, id)
        ON CONFLICT DO NOTHING;
        PERFORM FROM "public"."pawl_meta" m WHERE m.name = 'floor' FOR SHARE;
        RAISE EXCEPTION USING ERRCODE = 'PW002', MESSAGE = 'confirmed';
    EXCEPTION WHEN SQLSTATE 'PW002' THEN
        RETURN;
    END;
END
$$;


--
-- Name: pawl_create_records(timestamp with time zone, text[], text[], bigint[], text[], bigint[], text[], timestamp with time zone[], timestamp with time zone[], timestamp with time zone[], text[], bigint[], timestamp with time zone[], text[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pawl_create_records(at timestamp with time zone, kinds text[], ids text[], versions bigint[], docs text[], schemas bigint[], labels text[], dues timestamp with time zone[], expiries timestamp with time zone[], deletions timestamp with time zone[], holders text[], tokens bigint[], untils timestamp with time zone[], commit_ids text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO "public"."pawl_records" (
        kind, id, version, born, doc, schema, label, due, expires, updated, deleted, holder, token, until, commits
    )
    SELECT n.kind, n.id, n.version, n.version, n.doc::jsonb, n.schema, n.label, n.due, n.expires, at, n.deleted,
        n.holder, n.token, n.until, pg_catalog.string_to_array(n.commits, E'\n')
    FROM unnest(kinds, ids, versions, docs, schemas, labels, dues, expiries, deletions, holders, tokens, untils, commit_ids)
        AS n (kind, id, version, doc, schema, label, due, expires, deleted, holder, token, until, commits);
END
$$;


--
-- Name: pawl_durable(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pawl_durable() RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;


--
-- Name: pawl_lock_absent(bigint[], boolean[], bigint[], integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pawl_lock_absent(lock_keys bigint[], shared boolean[], readings bigint[], patience integer) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
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
$$;


--
-- Name: pawl_lock_records(text[], text[], boolean, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pawl_lock_records(kinds text[], ids text[], shared boolean, patience integer) RETURNS TABLE(locked boolean, kind text, id text, version bigint, expires timestamp with time zone, updated timestamp with time zone, deleted timestamp with time zone, holder text, token bigint, until timestamp with time zone, commits text)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_hashjoin TO 'off'
    AS $$
DECLARE
    found_count integer;
BEGIN
    PERFORM pg_catalog.set_config('lock_timeout', greatest(patience, 10)::text, true);
    IF patience > 0 AND shared THEN
        RETURN QUERY SELECT true, r.kind, r.id, r.version, r.expires, r.updated, r.deleted, r.holder, r.token, r.until,
            pg_catalog.array_to_string(r.commits, E'\n')
        FROM unnest(kinds, ids) AS k (kind, id) JOIN "public"."pawl_records" r ON r.kind = k.kind AND r.id = k.id
        ORDER BY r.kind, r.id FOR SHARE OF r;
    ELSIF patience > 0 THEN
        RETURN QUERY SELECT true, r.kind, r.id, r.version, r.expires, r.updated, r.deleted, r.holder, r.token, r.until,
            pg_catalog.array_to_string(r.commits, E'\n')
        FROM unnest(kinds, ids) AS k (kind, id) JOIN "public"."pawl_records" r ON r.kind = k.kind AND r.id = k.id
        ORDER BY r.kind, r.id FOR NO KEY UPDATE OF r;
    ELSIF shared THEN
        RETURN QUERY SELECT true, r.kind, r.id, r.version, r.expires, r.updated, r.deleted, r.holder, r.token, r.until,
            pg_catalog.array_to_string(r.commits, E'\n')
        FROM unnest(kinds, ids) AS k (kind, id) JOIN "public"."pawl_records" r ON r.kind = k.kind AND r.id = k.id
        ORDER BY r.kind, r.id FOR SHARE OF r SKIP LOCKED;
    ELSE
        RETURN QUERY SELECT true, r.kind, r.id, r.version, r.expires, r.updated, r.deleted, r.holder, r.token, r.until,
            pg_catalog.array_to_string(r.commits, E'\n')
        FROM unnest(kinds, ids) AS k (kind, id) JOIN "public"."pawl_records" r ON r.kind = k.kind AND r.id = k.id
        ORDER BY r.kind, r.id FOR NO KEY UPDATE OF r SKIP LOCKED;
    END IF;
    GET DIAGNOSTICS found_count = ROW_COUNT;
    IF found_count < pg_catalog.cardinality(kinds) THEN
        RETURN QUERY SELECT false, r.kind, r.id, r.version, r.expires, r.updated, r.deleted, r.holder, r.token, r.until, ''
        FROM unnest(kinds, ids) AS k (kind, id) JOIN "public"."pawl_records" r ON r.kind = k.kind AND r.id = k.id;
    END IF;
END
$$;


--
-- Name: pawl_remember(text[], text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pawl_remember(ring text[], id text) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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
$$;


--
-- Name: pawl_replace_records(timestamp with time zone, text[], text[], bigint[], text[], bigint[], text[], timestamp with time zone[], timestamp with time zone[], timestamp with time zone[], text[], bigint[], timestamp with time zone[], text[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pawl_replace_records(at timestamp with time zone, kinds text[], ids text[], versions bigint[], docs text[], schemas bigint[], labels text[], dues timestamp with time zone[], expiries timestamp with time zone[], deletions timestamp with time zone[], holders text[], tokens bigint[], untils timestamp with time zone[], commit_ids text[]) RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_hashjoin TO 'off'
    AS $$
DECLARE
    changed integer;
BEGIN
    UPDATE "public"."pawl_records" r SET
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
$$;


--
-- Name: pawl_touch_records(text[], text[], timestamp with time zone[], text[], bigint[], timestamp with time zone[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pawl_touch_records(kinds text[], ids text[], expiries timestamp with time zone[], holders text[], tokens bigint[], untils timestamp with time zone[]) RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_hashjoin TO 'off'
    AS $$
DECLARE
    changed integer;
BEGIN
    UPDATE "public"."pawl_records" r SET expires = n.expires, holder = n.holder, token = n.token, until = n.until
    FROM unnest(kinds, ids, expiries, holders, tokens, untils) AS n (kind, id, expires, holder, token, until)
    WHERE r.kind = n.kind AND r.id = n.id;
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> pg_catalog.cardinality(kinds) THEN -- cannot be, while they are locked
        RAISE serialization_failure USING MESSAGE = 'a locked record is gone';
    END IF;
END
$$;


--
-- Name: pawl_write(text[], text[], bigint[], bigint[], text[], bigint[], text[], timestamp with time zone[], text[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pawl_write(kinds text[], ids text[], expected bigint[], versions bigint[], docs text[], schemas bigint[], labels text[], dues timestamp with time zone[], rings text[]) RETURNS TABLE(number bigint, at timestamp with time zone)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_hashjoin TO 'off'
    SET lock_timeout TO '10ms'
    AS $$
DECLARE
    now timestamptz := pg_catalog.clock_timestamp();
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' OR pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        RETURN;
    END IF;
    RETURN QUERY UPDATE "public"."pawl_records" r SET
        version = versions[k.number], doc = docs[k.number]::jsonb, schema = schemas[k.number], label = labels[k.number],
        due = dues[k.number], updated = now, commits = pg_catalog.string_to_array(rings[k.number], E'\n')
    FROM unnest(kinds, ids, expected) WITH ORDINALITY AS k (kind, id, version, number)
    WHERE r.kind = k.kind AND r.id = k.id AND r.version = k.version AND (r.xmax = 0 OR r.xmax = r.xmin) AND r.deleted IS NULL AND r.expires IS NULL
    RETURNING k.number, now;
END
$$;


--
-- Name: pawl_write(text[], text[], bigint[], bigint[], text[], bigint[], text[], timestamp with time zone[], interval[], text[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pawl_write(kinds text[], ids text[], expected bigint[], versions bigint[], docs text[], schemas bigint[], labels text[], dues timestamp with time zone[], ttls interval[], rings text[]) RETURNS TABLE(number bigint, at timestamp with time zone)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_hashjoin TO 'off'
    SET lock_timeout TO '10ms'
    AS $$
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
        JOIN "public"."pawl_records" r ON r.kind = k.kind AND r.id = k.id AND r.version = k.version
        ORDER BY r.kind, r.id FOR NO KEY UPDATE OF r SKIP LOCKED
    ) AS l;
    now := pg_catalog.clock_timestamp();
    RETURN QUERY UPDATE "public"."pawl_records" r SET
        version = versions[p.number], doc = docs[p.number]::jsonb, schema = schemas[p.number], label = labels[p.number],
        due = dues[p.number], expires = now + ttls[p.number], updated = now,
        commits = pg_catalog.string_to_array(rings[p.number], E'\n')
    FROM unnest(places, numbers) AS p (place, number)
    WHERE r.ctid = p.place AND r.deleted IS NULL AND (r.expires IS NULL OR r.expires > now OR r.token <> 0 AND r.until > now)
    RETURNING p.number, now;
END
$$;


--
-- Name: pawl_write(text, text, bigint, boolean, bigint, jsonb, bigint, text, timestamp with time zone, interval, interval, boolean, text, interval, text, bigint, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pawl_write(p_kind text, p_id text, p_expected bigint, p_gone boolean, p_version bigint, p_doc jsonb, p_schema bigint, p_label text, p_due timestamp with time zone, p_due_in interval, p_ttl interval, p_deleted boolean, p_holder text, p_lease interval, p_commit text, lock_key bigint, patience integer) RETURNS TABLE(outcome text, at timestamp with time zone, floor bigint, kind text, id text, version bigint, born bigint, doc jsonb, schema bigint, label text, due timestamp with time zone, expires timestamp with time zone, updated timestamp with time zone, is_deleted boolean, holder text, token bigint, until timestamp with time zone, commits text)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    present "public"."pawl_records";
    held    boolean;
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = 'PW001', MESSAGE = 'the transaction is not READ COMMITTED';
    END IF;
    PERFORM "public"."pawl_durable"();
    PERFORM pg_catalog.set_config('lock_timeout', greatest(patience, 10)::text, true);
    IF p_expected = 0 THEN
        IF patience > 0 THEN
            PERFORM pg_catalog.pg_advisory_xact_lock(lock_key);
        ELSIF NOT pg_catalog.pg_try_advisory_xact_lock(lock_key) THEN
            outcome := 'busy';
            RETURN NEXT;
            RETURN;
        END IF;
        SELECT * INTO present FROM "public"."pawl_records" r WHERE r.kind = p_kind AND r.id = p_id;
    ELSE
        IF patience > 0 THEN
            PERFORM pg_catalog.pg_advisory_xact_lock(lock_key);
            SELECT * INTO present FROM "public"."pawl_records" r WHERE r.kind = p_kind AND r.id = p_id FOR NO KEY UPDATE;
        ELSE -- who is too late has nothing locked: the next to come would find it so
            SELECT * INTO present FROM "public"."pawl_records" r WHERE r.kind = p_kind AND r.id = p_id;
            IF present.version = p_expected THEN
                SELECT * INTO present FROM "public"."pawl_records" r WHERE r.kind = p_kind AND r.id = p_id FOR NO KEY UPDATE SKIP LOCKED;
            END IF;
        END IF;
        IF present.version IS NULL THEN -- it is locked, or was purged and created anew during the wait, or is absent
            PERFORM FROM "public"."pawl_records" r WHERE r.kind = p_kind AND r.id = p_id;
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
        SELECT m.value INTO floor FROM "public"."pawl_meta" m WHERE m.name = 'floor';
        IF p_expected = 0 AND p_version > floor THEN
            INSERT INTO "public"."pawl_records" (
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
        UPDATE "public"."pawl_records" r SET
            version = p_version, doc = p_doc, schema = p_schema, label = p_label,
            due = coalesce(p_due, at + p_due_in), expires = at + p_ttl,
            updated = at, deleted = CASE WHEN p_deleted THEN at END,
            holder = present.holder, token = present.token, until = present.until,
            commits = "public"."pawl_remember"(present.commits, p_commit)
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
$$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: pawl_meta; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.pawl_meta (
    name text NOT NULL COLLATE pg_catalog."C",
    value bigint NOT NULL
);


--
-- Name: pawl_records; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.pawl_records (
    kind text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    born bigint NOT NULL,
    doc jsonb,
    schema bigint NOT NULL,
    label text NOT NULL COLLATE pg_catalog."C",
    due timestamp with time zone,
    expires timestamp with time zone,
    updated timestamp with time zone NOT NULL,
    deleted timestamp with time zone,
    holder text NOT NULL COLLATE pg_catalog."C",
    token bigint NOT NULL,
    until timestamp with time zone,
    commits text[] NOT NULL
)
WITH (fillfactor='85');


--
-- Name: pawl_state; Type: VIEW; Schema: public; Owner: -
--

CREATE VIEW public.pawl_state AS
 SELECT pawl_records.kind,
    pawl_records.id,
    pawl_records.version,
    pawl_records.doc,
    pawl_records.schema,
    pawl_records.label,
    pawl_records.due,
    pawl_records.expires,
    pawl_records.updated,
        CASE
            WHEN (pawl_records.until > statement_timestamp()) THEN pawl_records.holder
            ELSE NULL::text
        END AS holder,
        CASE
            WHEN (pawl_records.until > statement_timestamp()) THEN pawl_records.until
            ELSE NULL::timestamp with time zone
        END AS held_until
   FROM public.pawl_records
  WHERE ((pawl_records.deleted IS NULL) AND ((pawl_records.expires IS NULL) OR (pawl_records.expires > statement_timestamp()) OR (pawl_records.until > statement_timestamp())));


--
-- Name: VIEW pawl_state; Type: COMMENT; Schema: public; Owner: -
--

COMMENT ON VIEW public.pawl_state IS 'The documents that are alive now: neither deleted, nor expired without a lease.';


--
-- Data for Name: pawl_meta; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.pawl_meta VALUES ('schema', 1);
INSERT INTO public.pawl_meta VALUES ('floor', 6);


--
-- Data for Name: pawl_records; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.pawl_records VALUES ('task', 'schema-0', 1, 1, '{"name": "written under schema 0"}', 0, '', NULL, NULL, '2026-11-17 00:20:44.923602+00', NULL, '', 0, NULL, '{DJQR37NCESKFT.1}');
INSERT INTO public.pawl_records VALUES ('task', 'plain/with a slash, ümlaut and 日本', 9, 7, '{"big": 18446744073709551615, "due": "2020-02-03T04:05:06.000789Z", "steps": ["one", "two"], "title": "a \"title\" <b>   ü", "counts": {"a": -1, "b.c": 2}, "status": "open"}', 1, 'open', '2020-02-03 04:05:06.000789+00', NULL, '2026-11-17 00:20:44.98912+00', NULL, '', 0, NULL, '{DMQDMFYZ3IS7Y.7,DMQDMFYZ3IS7Y.8,DMQDMFYZ3IS7Y.9}');
INSERT INTO public.pawl_records VALUES ('task', 'closed', 7, 7, '{"big": 0, "steps": null, "title": "never due", "counts": null, "status": "closed"}', 1, 'closed', NULL, NULL, '2026-11-17 00:20:44.994337+00', NULL, '', 0, NULL, '{DMQDMFYZ3IS7Y.10}');
INSERT INTO public.pawl_records VALUES ('task', 'tx-1', 7, 7, '{"big": 0, "due": "2090-02-03T04:05:06.000789Z", "steps": null, "title": "of a transaction", "counts": null, "status": "open"}', 1, 'open', '2090-02-03 04:05:06.000789+00', NULL, '2026-11-17 00:20:44.998629+00', NULL, '', 0, NULL, '{DMQDMFYZ3IS7Y.11}');
INSERT INTO public.pawl_records VALUES ('task', 'tx-2', 7, 7, '{"big": 0, "due": "2090-02-03T04:05:06.000789Z", "steps": null, "title": "of a transaction", "counts": null, "status": "open"}', 1, 'open', '2090-02-03 04:05:06.000789+00', NULL, '2026-11-17 00:20:44.998629+00', NULL, '', 0, NULL, '{DMQDMFYZ3IS7Y.11}');
INSERT INTO public.pawl_records VALUES ('task', 'deleted', 8, 7, NULL, 0, '', NULL, NULL, '2026-11-17 00:20:45.005995+00', '2026-11-17 00:20:45.005995+00', '', 0, NULL, '{DMQDMFYZ3IS7Y.12,DMQDMFYZ3IS7Y.13}');
INSERT INTO public.pawl_records VALUES ('task', 'held', 8, 7, '{"big": 0, "due": "2020-02-03T04:05:06.000789Z", "steps": null, "title": "held", "counts": null, "status": "open"}', 1, 'open', '2020-02-03 04:05:06.000789+00', NULL, '2026-11-17 00:20:45.014125+00', NULL, 'holder of the fixture', 8, '2226-09-30 00:20:45.014125+00', '{DMQDMFYZ3IS7Y.14,DMQDMFYZ3IS7Y.15}');
INSERT INTO public.pawl_records VALUES ('task', 'released', 8, 7, '{"big": 0, "due": "2020-02-03T04:05:06.000789Z", "steps": null, "title": "released", "counts": null, "status": "open"}', 1, 'open', '2020-02-03 04:05:06.000789+00', NULL, '2026-11-17 00:20:45.018061+00', NULL, '', 0, NULL, '{DMQDMFYZ3IS7Y.16,DMQDMFYZ3IS7Y.17}');
INSERT INTO public.pawl_records VALUES ('visit', 'swept', 8, 7, NULL, 0, '', NULL, '2026-11-17 00:20:45.023492+00', '2026-11-17 00:20:45.077726+00', '2026-11-17 00:20:45.077726+00', '', 0, NULL, '{DMQDMFYZ3IS7Y.19,DMQDMFYZ3IS7Y.20}');
INSERT INTO public.pawl_records VALUES ('visit', 'expired', 7, 7, '{"n": 7}', 0, '', NULL, '2026-11-17 00:20:45.093051+00', '2026-11-17 00:20:45.092051+00', NULL, '', 0, NULL, '{DMQDMFYZ3IS7Y.21}');


--
-- Name: pawl_meta pawl_meta_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.pawl_meta
    ADD CONSTRAINT pawl_meta_pkey PRIMARY KEY (name);


--
-- Name: pawl_records pawl_records_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.pawl_records
    ADD CONSTRAINT pawl_records_pkey PRIMARY KEY (kind, id);


--
-- Name: pawl_deleted; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX pawl_deleted ON public.pawl_records USING btree (kind, deleted, id) WHERE (deleted IS NOT NULL);


--
-- Name: pawl_due; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX pawl_due ON public.pawl_records USING btree (kind, due, id) WHERE (due IS NOT NULL);


--
-- Name: pawl_expires; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX pawl_expires ON public.pawl_records USING btree (kind, expires, id) WHERE ((expires IS NOT NULL) AND (deleted IS NULL));


--
-- Name: pawl_label; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX pawl_label ON public.pawl_records USING btree (kind, label, id) WHERE (label <> ''::text);


--
-- PostgreSQL database dump complete
--

\unrestrict 9j6UpU89lxWDW8UYrb7aEkK0Vh31jfegmWPC458LnaqcTcke7zPpuEr0BaTIGEl

