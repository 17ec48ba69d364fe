package sqlite

import (
	"context"
	"database/sql"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// TestLoadWhileOthersWrite: who loads while somebody has the connection that writes has one of its own, and if
// those are all in use waits for one, no longer than its context lasts.
//
// Proves STORE-7.
func TestLoadWhileOthersWrite(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	require.True(t, s.queue.tryLead())
	require.False(t, s.queue.tryLead())
	for range 2 {
		r, err := s.Load(t.Context(), thing("a"))
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Version)
		_, err = s.Load(t.Context(), thing("b"))
		require.ErrorIs(t, err, persist.ErrNotFound)
	}
	require.EqualValues(t, 1, s.lanes.opened.Load(), "one after the other")

	var taken []*lane
	for range cap(s.lanes.free) {
		l, err := s.lanes.take(t.Context())
		require.NoError(t, err)
		taken = append(taken, l)
	}
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
	for _, l := range taken {
		s.lanes.free <- l
	}
	group.Wait()
	require.EqualValues(t, cap(s.lanes.free), s.lanes.opened.Load())

	s.queue.resign(nil, 0)
	require.NoError(t, s.Close())
	require.Zero(t, s.lanes.opened.Load())
	_, err = s.Load(t.Context(), thing("a"))
	require.ErrorIs(t, err, persist.ErrClosed)
}

// waitingInTake returns how many callers of lanes.take wait for a lane of others.
func waitingInTake() (n int) {
	stacks := make([]byte, 1<<20)
	for _, one := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if head, rest, _ := strings.Cut(one, "\n"); strings.Contains(head, "[select") {
			if top, _, _ := strings.Cut(rest, "\n"); strings.Contains(top, "(*lanes).take(") {
				n++
			}
		}
	}
	return n
}

// TestLanesThatCouldNotBeOpened: who waits for a lane of others opens one when theirs came to nothing, so that
// nobody waits for what nobody has.
//
// Proves STORE-14.
func TestLanesThatCouldNotBeOpened(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	require.True(t, s.queue.tryLead()) // somebody writes
	defer s.queue.resign(nil, 0)
	var used []*sql.Conn
	for range s.reader.Stats().MaxOpenConnections {
		conn, err := s.reader.Conn(t.Context())
		require.NoError(t, err)
		used = append(used, conn)
	}

	before := s.reader.Stats().WaitCount
	leaving, leave := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range cap(s.lanes.free) {
		group.Go(func() {
			_, err := s.Load(leaving, thing("a"))
			require.ErrorIs(t, err, context.Canceled)
		})
	}
	testkit.Eventually(t, func() bool { return s.reader.Stats().WaitCount-before == int64(cap(s.lanes.free)) })
	staying, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stayed := make(chan error, 1)
	go func() {
		_, err := s.Load(staying, thing("a"))
		stayed <- err
	}()
	testkit.Eventually(t, func() bool { return waitingInTake() == 1 })
	leave()
	group.Wait()
	for _, conn := range used {
		require.NoError(t, conn.Close())
	}
	require.NoError(t, <-stayed)
	require.EqualValues(t, 1, s.lanes.opened.Load())
}

// TestLaneThatFailed: a connection that did not become a lane, and does not wait for locks by itself any more, is not
// one by which others read.
//
// Proves STORE-7.
func TestLaneThatFailed(t *testing.T) {
	path := dbPath(t)
	s := openAt(t, path, Config{})
	db := database(t, path, appSettings)
	_, err := db.Exec("ALTER TABLE pawl_meta RENAME TO hidden")
	require.NoError(t, err)
	require.True(t, s.queue.tryLead()) // somebody writes
	defer s.queue.resign(nil, 0)
	idle, err := s.reader.Conn(t.Context()) // it remembers the tables, and a new one does not
	require.NoError(t, err)
	_, err = s.Load(t.Context(), thing("a"))
	require.NoError(t, idle.Close())
	require.ErrorContains(t, err, "no such table")
	require.Zero(t, s.lanes.opened.Load())
	_, err = db.Exec("ALTER TABLE hidden RENAME TO pawl_meta")
	require.NoError(t, err)

	for range s.reader.Stats().MaxOpenConnections {
		conn, err := s.reader.Conn(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		var timeout int64
		require.NoError(t, conn.QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&timeout))
		require.Equal(t, defaultBusyTimeout.Milliseconds(), timeout)
	}
}
