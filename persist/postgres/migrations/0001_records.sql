-- Placeholders: a word in braces becomes a quoted name with the schema and the store's prefix; with
-- a colon in front, the name without the schema; "body" becomes the quotes around a function body.
-- Comments contain no placeholder, because a name with a line break would end the comment.

-- Facts about the whole store: the schema version, and the version floor. Versions up to the floor
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
    born    bigint           NOT NULL, -- version at creation
    doc     jsonb,                     -- NULL when deleted
    schema  bigint           NOT NULL, -- schema version that doc was written under
    label   text COLLATE "C" NOT NULL,
    due     timestamptz,
    expires timestamptz,               -- on a tombstone: the record expired then and was swept
    updated timestamptz      NOT NULL,
    deleted timestamptz,               -- on a tombstone: equal to updated
    holder  text COLLATE "C" NOT NULL,
    token   bigint           NOT NULL, -- 0: not leased
    until   timestamptz,
    commits text[]           NOT NULL, -- recent commit ids, oldest first
    CONSTRAINT {:records_pkey} PRIMARY KEY (kind, id)
) WITH (fillfactor = 85);

-- No index contains a column that every write changes, so most updates stay on their page.
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

COMMENT ON VIEW {state} IS 'Documents that are neither deleted nor expired. A live lease keeps an expired document.';
