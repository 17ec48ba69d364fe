package stores

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
)

// EachCounted runs test on the stores whose commits can be counted.
func EachCounted(t *testing.T, test func(t *testing.T, location string)) {
	for _, s := range []Store{SQLite, Postgres} {
		t.Run(s.Name, func(t *testing.T) {
			Need(t, s.Name)
			test(t, s.New(t))
		})
	}
}

// Commits returns a function that counts the commits to a store on PostgreSQL or SQLite that changed
// a record. The database counts them: PostgreSQL by the ids of its transactions, SQLite by the ends
// of transactions in its write-ahead log. The store must have been opened before. On SQLite the count
// is right for the first few hundred commits.
func Commits(t testing.TB, location string) (count func() int) {
	t.Helper()
	if path, ok := strings.CutPrefix(location, "sqlite:"); ok {
		return func() int { return endsInLog(t, path+"-wal") }
	}
	conn := pgtest.Connect(t, location)
	_, err := conn.Exec(t.Context(), `CREATE TABLE committed (id bigint PRIMARY KEY);
		CREATE FUNCTION count_commit() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO committed VALUES (txid_current()) ON CONFLICT DO NOTHING; RETURN NULL; END $$;
		CREATE TRIGGER count_commit AFTER INSERT OR UPDATE OR DELETE ON pawl_records FOR EACH ROW EXECUTE FUNCTION count_commit()`)
	require.NoError(t, err)
	return func() (n int) {
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM committed").Scan(&n))
		return n
	}
}

// endsInLog counts the frames in the write-ahead log of SQLite that end a transaction. See
// https://www.sqlite.org/fileformat2.html#walformat.
func endsInLog(t testing.TB, path string) (n int) {
	t.Helper()
	const header, frameHeader = 32, 24
	log, err := os.ReadFile(path)
	require.NoError(t, err)
	if len(log) < header {
		return 0
	}
	frame := frameHeader + int(binary.BigEndian.Uint32(log[8:]))
	salts := string(log[16:24])
	for rest := log[header:]; len(rest) >= frame && string(rest[8:16]) == salts; rest = rest[frame:] {
		if binary.BigEndian.Uint32(rest[4:]) != 0 { // the size of the database after the commit
			n++
		}
	}
	return n
}
