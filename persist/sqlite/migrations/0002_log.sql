-- The logs of records. An entry never changes. AUTOINCREMENT never gives a position again, not even
-- that of the last entry after it was removed.
CREATE TABLE "{prefix}log" (
    position INTEGER PRIMARY KEY AUTOINCREMENT, -- the place among the entries of all records
    kind     TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    number   INTEGER NOT NULL, -- the place in the log of the record
    at       INTEGER NOT NULL, -- the time of the commit
    data     TEXT    NOT NULL,
    UNIQUE (kind, id, number)
) STRICT;

-- SQLite keeps the last position in this row. It exists before there are entries, so that it can be
-- read and raised.
INSERT INTO sqlite_sequence (name, seq) VALUES ('{prefix}log', 0);

-- The entries of a kind in the order of their positions: every index ends with the position.
CREATE INDEX "{prefix}order" ON "{prefix}log" (kind);
