-- Facts about the whole store: the schema version, and the version floor, below which versions
-- may have been used by tombstones that were purged.
CREATE TABLE "{prefix}meta" (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT;

INSERT INTO "{prefix}meta" (name, value) VALUES ('schema', 0), ('floor', 0);

-- Texts compare byte by byte; times are Unix times in microseconds, NULL where there is none.
CREATE TABLE "{prefix}records" (
    kind    TEXT    NOT NULL,
    id      TEXT    NOT NULL,
    version INTEGER NOT NULL,
    born    INTEGER NOT NULL, -- the version that the record was created with
    doc     TEXT,             -- NULL when deleted
    schema  INTEGER NOT NULL,
    label   TEXT    NOT NULL,
    due     INTEGER,
    expires INTEGER,          -- of a tombstone: it was swept, having expired then
    updated INTEGER NOT NULL,
    deleted INTEGER NOT NULL, -- 1: a tombstone
    holder  TEXT    NOT NULL,
    token   INTEGER NOT NULL, -- 0: not leased
    until   INTEGER,
    commits TEXT    NOT NULL, -- commit ids, one per line, oldest first
    PRIMARY KEY (kind, id)
) STRICT;

CREATE INDEX "{prefix}label"   ON "{prefix}records" (kind, label, id) WHERE label <> '';
CREATE INDEX "{prefix}due"     ON "{prefix}records" (kind, due, id)   WHERE due IS NOT NULL;
-- A tombstone may have an expiry, but is not expired: it was swept.
CREATE INDEX "{prefix}expires" ON "{prefix}records" (kind, expires)   WHERE expires IS NOT NULL AND deleted = 0;
CREATE INDEX "{prefix}deleted" ON "{prefix}records" (kind, updated)   WHERE deleted = 1;
