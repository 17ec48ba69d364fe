package sqlite

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// allReaders returns every connection that reads.
func allReaders(t *testing.T, s *Store) []*sql.Conn {
	t.Helper()
	var conns []*sql.Conn
	for range s.reader.Stats().MaxOpenConnections {
		conn, err := s.reader.Conn(t.Context())
		require.NoError(t, err)
		conns = append(conns, conn)
	}
	return conns
}

// Reads do not wait for the owner of the writer. If all reading connections are in use, they wait
// for one, no longer than their context lasts.
//
// Proves STORE-7.
func TestLoadWhileOthersWrite(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	require.NoError(t, s.queue.acquire(t.Context()))
	for range 2 {
		require.EqualValues(t, 1, alive(t, s, "a").Version)
		_, err = s.Load(t.Context(), thing("b"))
		require.ErrorIs(t, err, persist.ErrNotFound)
	}

	conns := allReaders(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		_, err := s.Load(ctx, thing("a"))
		require.ErrorIs(t, err, context.Canceled)
	})
	group.Go(func() {
		_, err := s.Load(t.Context(), thing("a"))
		require.NoError(t, err)
	})
	cancel()
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	group.Wait()

	s.queue.release()
	require.NoError(t, s.Close())
	_, err = s.Load(t.Context(), thing("a"))
	require.ErrorIs(t, err, persist.ErrClosed)
}

// A read that waits for a connection gets one although reads that waited before it have left.
//
// Proves STORE-14.
func TestReadersThatLeave(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	conns := allReaders(t, s)
	before := s.reader.Stats().WaitCount
	leaving, leave := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range conns {
		group.Go(func() {
			_, err := s.Load(leaving, thing("a"))
			require.ErrorIs(t, err, context.Canceled)
		})
	}
	waiting := func(n int) {
		testkit.Eventually(t, func() bool { return s.reader.Stats().WaitCount-before == int64(n) })
	}
	waiting(len(conns))
	staying, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stayed := make(chan error, 1)
	go func() {
		_, err := s.Load(staying, thing("a"))
		stayed <- err
	}()
	waiting(len(conns) + 1)
	leave()
	group.Wait()
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	require.NoError(t, <-stayed)
}

// A failed read leaves no connection behind that would not wait for locks.
//
// Proves STORE-7.
func TestReadersWaitForLocks(t *testing.T) {
	path := dbPath(t)
	s := openAt(t, path, Config{})
	db := database(t, path, appSettings)
	_, err := db.Exec("ALTER TABLE pawl_meta RENAME TO hidden")
	require.NoError(t, err)
	_, err = s.Load(t.Context(), thing("a"))
	require.ErrorContains(t, err, "no such table")
	_, err = db.Exec("ALTER TABLE hidden RENAME TO pawl_meta")
	require.NoError(t, err)
	for _, conn := range allReaders(t, s) {
		defer func() { require.NoError(t, conn.Close()) }()
		var timeout int64
		require.NoError(t, conn.QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&timeout))
		require.Equal(t, defaultBusyTimeout.Milliseconds(), timeout)
	}
}

// slowly is an executor whose statements take a while.
type slowly struct {
	executor
	asked time.Time // when the first statement began
}

func (e *slowly) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	defer e.begin()()
	return e.executor.QueryRowContext(ctx, text, args...)
}

func (e *slowly) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	defer e.begin()()
	return e.executor.QueryContext(ctx, text, args...)
}

// begin notes the time and returns a function that waits until the clock has moved.
func (e *slowly) begin() (wait func()) {
	now := hostTime()
	if e.asked.IsZero() {
		e.asked = now
	}
	return func() {
		for !hostTime().After(now) {
			time.Sleep(time.Microsecond)
		}
	}
}

// A record is judged by a time before it was read: a writer may have renewed it since.
//
// Proves STORE-8.
func TestClockBeforeRead(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	for name, read := range map[string]func(r reads) (persist.Record, error){
		"load":   func(r reads) (persist.Record, error) { return r.Load(t.Context(), thing("a")) },
		"absent": func(r reads) (persist.Record, error) { return r.Load(t.Context(), thing("b")) },
		"all": func(r reads) (persist.Record, error) {
			records, err := r.LoadAll(t.Context(), []persist.Key{thing("a")})
			return records[0], err
		},
		"list": func(r reads) (persist.Record, error) {
			page, err := r.List(t.Context(), persist.Query{})
			return page.Records[0], err
		},
	} {
		slow := &slowly{executor: s.reader}
		open := func(context.Context) (executor, func(), error) { return slow, func() {}, nil }
		r, err := read(reads{sql: s.sql, open: open})
		if name != "absent" {
			require.NoError(t, err)
		}
		require.False(t, r.Now.After(slow.asked), name)
	}
}

// TestNotReadBeforeItsUpdate: a record that is written after a reader has read the clock is not read
// with a time before its update. A record that was written while the clock was ahead is judged by the
// clock, as commits judge it.
//
// Proves STORE-8.
func TestNotReadBeforeItsUpdate(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	before := hostTime().Add(-time.Second)
	at, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	ahead := hostTime().Add(time.Hour)
	require.NoError(t, s.Restore(t.Context(), []persist.Record{
		{Key: thing("b"), Version: 1, Born: 1, Doc: []byte("{}"), Updated: ahead},
	}, 0))
	for id, now := range map[string]time.Time{"a": at, "b": before, "c": before} {
		r, err := s.sql.loadFrom(t.Context(), s.reader, thing(id), before)
		require.NoError(t, err)
		require.Equal(t, now, r.Now, id)
	}
}
