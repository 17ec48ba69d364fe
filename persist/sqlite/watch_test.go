package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// neverPolls hints the commits of the store itself only.
var neverPolls = Config{PollInterval: time.Hour}

// A commit of the store is hinted without polling, with key and version. So are Take and a release,
// but not a renewal of a lease or an expiry.
//
// Proves SCOPE-13.
func TestWatchOwnCommits(t *testing.T) {
	s := openAt(t, dbPath(t), neverPolls)
	ctx := t.Context()
	require.NoError(t, s.look(ctx)) // the first look of a connection always finds a change
	w := testkit.NewWatch(t, s)
	_, err := s.Commit(ctx, put("a", 0))
	require.NoError(t, err)
	require.Equal(t, persist.Hint{Key: thing("a"), Version: 1}, w.Next())

	taken, err := s.Take(ctx, persist.Query{}, persist.Acquire{Holder: "h", For: time.Hour}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.Equal(t, persist.Hint{Key: thing("a"), Version: 2}, w.Next())

	guard := persist.Guard{Key: thing("a"), Token: 2, Extend: time.Hour, Read: true, Version: 2, TTL: time.Hour}
	_, err = s.Commit(ctx, persist.Commit{Guards: []persist.Guard{guard}})
	require.NoError(t, err)
	_, err = s.Commit(ctx, put("a", 0))
	require.Error(t, err)
	_, err = s.Commit(ctx, persist.Commit{Guards: []persist.Guard{{Key: thing("a"), Token: 2, Release: true}}})
	require.NoError(t, err)
	require.Equal(t, persist.Hint{Key: thing("a")}, w.Next(), "a release moves no version")

	_, err = s.CommitWith(ctx, put("b", 0), func(context.Context, any) error { return errRefused })
	require.Error(t, err)
	_, err = s.CommitWith(ctx, put("c", 0), func(context.Context, any) error { return nil })
	require.NoError(t, err)
	require.Equal(t, persist.Hint{Key: thing("c"), Version: 1}, w.Next())
	require.ErrorIs(t, w.Stop(), context.Canceled)
	count := len(w.All())
	_, err = s.Commit(ctx, put("d", 0))
	require.NoError(t, err)
	require.Len(t, w.All(), count, "hinted after Watch has returned")
}

// A joined commit in the store's own transaction is hinted, although polling on that connection
// does not see it.
//
// Proves SCOPE-13.
func TestWatchJoinInside(t *testing.T) {
	s := openAt(t, dbPath(t), neverPolls)
	require.NoError(t, s.look(t.Context()))
	w := testkit.NewWatch(t, s)
	_, err := s.CommitWith(t.Context(), persist.Commit{}, func(ctx context.Context, tx any) error {
		_, err := s.Join(tx.(*sql.Tx)).Commit(ctx, put("a", 0))
		return err
	})
	require.NoError(t, err)
	require.Equal(t, persist.Hint{}, w.Next())
}

// Commits of another store, a joined transaction and another process give the zero hint.
//
// Proves SCOPE-13.
func TestWatchOthers(t *testing.T) {
	path := dbPath(t)
	s, other := openAt(t, path, Config{}), openAt(t, path, Config{})
	db := database(t, path, appSettings)
	for name, commit := range map[string]func(){
		"store": func() {
			_, err := other.Commit(t.Context(), put("store", 0))
			require.NoError(t, err)
		},
		"join": func() {
			tx := beginOn(t, db)
			_, err := s.Join(tx).Commit(t.Context(), put("join", 0))
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
		},
		"process": func() { commitElsewhere(t, path, "process") },
	} {
		t.Run(name, func(t *testing.T) { // Proves SCOPE-13.
			require.NoError(t, s.look(t.Context())) // so that earlier changes are known
			w := testkit.NewWatch(t, s)
			defer func() { require.ErrorIs(t, w.Stop(), context.Canceled) }()
			commit()
			require.Equal(t, persist.Hint{}, w.Next())
			versions, err := s.Versions(t.Context(), []persist.Key{thing(name)})
			require.NoError(t, err)
			require.Equal(t, []uint64{1}, versions)
		})
	}
}

// A foreign commit is hinted before a function keeps the connection that polls.
//
// Proves SCOPE-13.
func TestWatchDuringFunction(t *testing.T) {
	path := dbPath(t)
	s, other := openAt(t, path, neverPolls), openAt(t, path, Config{})
	require.NoError(t, s.look(t.Context()))
	w := testkit.NewWatch(t, s)
	_, err := other.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	_, err = s.CommitWith(t.Context(), persist.Commit{}, func(context.Context, any) error {
		require.Equal(t, persist.Hint{}, w.Next())
		return nil
	})
	require.NoError(t, err)
}

// The store's own commits are not taken for foreign changes.
//
// Proves SCOPE-13.
func TestWatchToldApart(t *testing.T) {
	s := openAt(t, dbPath(t), neverPolls)
	require.NoError(t, s.look(t.Context()))
	w := testkit.NewWatch(t, s)
	for version := range uint64(50) {
		var err error
		if version%2 == 0 {
			_, err = s.Commit(t.Context(), put("a", version))
		} else {
			_, err = s.CommitWith(t.Context(), put("a", version), func(context.Context, any) error { return nil })
		}
		require.NoError(t, err)
		require.NoError(t, s.look(t.Context()))
		require.Equal(t, persist.Hint{Key: thing("a"), Version: version + 1}, w.Next())
	}
	s.writer.discard()
	require.NoError(t, s.look(t.Context()))
	require.Equal(t, persist.Hint{}, w.Next(), "after a lost connection, anything may have changed")
}

// A watcher that reads at every hint ends with the last version, while watchers come and go.
//
// Proves SCOPE-13.
func TestWatchNothingMissed(t *testing.T) {
	path := dbPath(t)
	stores := []*Store{openAt(t, path, Config{}), openAt(t, path, Config{}), openAt(t, path, Config{})}
	const rounds = 100
	var group sync.WaitGroup
	for i, s := range stores {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		group.Go(func() {
			var last uint64
			err := s.Watch(ctx, func(persist.Hint) {
				versions, err := s.Versions(ctx, []persist.Key{thing("0"), thing("1"), thing("2")})
				require.NoError(t, err)
				sum := versions[0] + versions[1] + versions[2]
				require.GreaterOrEqual(t, sum, last)
				if last = sum; sum == uint64(len(stores)*rounds) {
					cancel()
				}
			})
			require.ErrorIs(t, err, context.Canceled)
		})
		group.Go(func() {
			for version := range uint64(rounds) {
				_, err := s.Commit(t.Context(), put(fmt.Sprint(i), version))
				require.NoError(t, err)
				if version%10 == 0 {
					brief, cancel := context.WithCancel(t.Context())
					require.ErrorIs(t, s.Watch(brief, func(persist.Hint) { cancel() }), context.Canceled)
				}
			}
		})
	}
	group.Wait()
}

// All watchers share one goroutine, which ends with the last of them.
//
// Proves SCOPE-13.
func TestWatchShares(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	polling := func() int { // goroutines that poll
		stacks := make([]byte, 1<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "sqlite.(*Store).poll(")
	}
	for range 2 {
		testkit.Eventually(t, func() bool { return polling() == 0 })
		one, two := testkit.NewWatch(t, s), testkit.NewWatch(t, s)
		require.Equal(t, 1, polling())
		require.ErrorIs(t, one.Stop(), context.Canceled)
		require.Equal(t, 1, polling(), "it ended before the last watcher")
		require.ErrorIs(t, two.Stop(), context.Canceled)
	}
	testkit.Eventually(t, func() bool { return polling() == 0 }, "it did not end with the last watcher")
}

// Close ends all watchers, also while a wake function runs or another store writes.
//
// Proves SCOPE-13.
func TestWatchClose(t *testing.T) {
	path := dbPath(t)
	s, other := openAt(t, path, Config{PollInterval: time.Microsecond}), openAt(t, path, Config{})
	waking, goOn := make(chan struct{}), make(chan struct{})
	var slow error
	var group sync.WaitGroup
	group.Go(func() {
		slow = s.Watch(t.Context(), func(persist.Hint) {
			close(waking)
			<-goOn
		})
	})
	<-waking
	var quick []*testkit.Watch
	for range 5 {
		quick = append(quick, testkit.NewWatch(t, s))
	}
	stop := make(chan struct{})
	group.Go(func() {
		for version := uint64(0); ; version++ {
			select {
			case <-stop:
				return
			default:
			}
			_, err := other.Commit(t.Context(), put("a", version))
			require.NoError(t, err)
		}
	})
	for _, w := range quick {
		w.Next()
	}
	require.NoError(t, s.Close())
	for _, w := range quick {
		require.ErrorIs(t, w.Ended(), persist.ErrClosed)
	}
	close(goOn)
	close(stop)
	group.Wait()
	require.ErrorIs(t, slow, persist.ErrClosed)
	err := s.Watch(t.Context(), func(persist.Hint) { t.Error("hinted after Close") })
	require.ErrorIs(t, err, persist.ErrClosed)
}

// commitElsewhere commits a new document in another process.
func commitElsewhere(t *testing.T, path, id string) {
	t.Helper()
	testkit.Start(t, "TestCommitElsewhere", elsewherePath+"="+path, elsewhereID+"="+id).Wait()
}

const (
	elsewherePath = "PAWL_SQLITE_PATH"
	elsewhereID   = "PAWL_SQLITE_ID"
)

// TestCommitElsewhere is the other process of TestWatchOthers.
//
// Proves SCOPE-13.
func TestCommitElsewhere(t *testing.T) {
	if testkit.Role() == "" {
		t.Skip("only as the child of TestWatchOthers")
	}
	_, err := openAt(t, os.Getenv(elsewherePath), Config{}).Commit(t.Context(), put(os.Getenv(elsewhereID), 0))
	require.NoError(t, err)
}

// Versions answers for any number of keys, in their order, tombstones included.
//
// Proves SCOPE-13.
func TestVersions(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	const many = 40000 // more than SQLite takes parameters
	keys, want := make([]persist.Key, many), make([]uint64, many)
	c := persist.Commit{ID: "test.1"}
	for i := range keys {
		keys[i] = thing(fmt.Sprint(i))
		if i%100 == 0 {
			want[i] = uint64(i + 1)
			c.Writes = append(c.Writes, persist.Write{Key: keys[i], Version: want[i], Deleted: true})
		}
	}
	_, err := s.Commit(t.Context(), c)
	require.NoError(t, err)
	keys, want = append(keys, keys[0], thing("\xff"), persist.Key{}), append(want, want[0], 0, 0)
	got, err := s.Versions(t.Context(), keys)
	require.NoError(t, err)
	require.Equal(t, want, got)
	got, err = s.Versions(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, got)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Versions(ctx, keys)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.Close())
	_, err = s.Versions(t.Context(), keys)
	require.ErrorIs(t, err, persist.ErrClosed)
}
