package erase_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/erase"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

func init() { testkit.Child("eraser", eraser) }

// middle is the number of deletions after which the child stops.
const middle = 130

// eraser erases ann, and stops in the middle until it is killed.
func eraser() error {
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	parts, err := erase.Parts(context.Background(), store, subject("ann"))
	if err != nil {
		return err
	}
	n := 0
	_, err = erase.Erase(context.Background(), store, parts, erase.Options{Deleted: func(string, persist.Key) {
		if n++; n == middle {
			testkit.Say("middle")
			select {}
		}
	}})
	return err
}

// An Erase that is killed is ended by the next one. Proves ERASE-4.
func TestKilledErase(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		rt := open(t, store)
		fillAll(t, rt, "ann", "bob")
		for i := range 250 {
			_, err := notes.Scope(rt, fmt.Sprintf("ann/many/%d", i)).SetState(t.Context(), note{Text: secret("ann")})
			require.NoError(t, err)
		}
		before := all(t, store)
		p := testkit.Start(t, "eraser", stores.Env(location))
		p.Expect("middle")
		p.Kill()
		left := len(of(all(t, store), "ann"))
		require.Positive(t, left)
		require.Less(t, left, len(of(before, "ann")))
		report, err := erase.Erase(t.Context(), store, partsOf(t, store, "ann"), erase.Options{})
		require.NoError(t, err)
		require.Positive(t, report.Deleted)
		testkit.Figures(t, "killed when %d of %d documents were left; the next call deleted %d", left, len(of(before, "ann")), report.Deleted)
		after := all(t, store)
		require.Empty(t, of(after, "ann"))
		require.Equal(t, of(before, "bob"), of(after, "bob"))
	})
}

// A store that keeps logs as documents removes them after the deletion. If that was interrupted, or
// there were too many, the next Erase removes them. Proves ERASE-4.
func TestEraseRestOfLogs(t *testing.T) {
	for _, byLabel := range []bool{false, true} { // a tombstone has no label
		testEraseRestOfLogs(t, byLabel)
	}
}

func testEraseRestOfLogs(t *testing.T, byLabel bool) {
	t.Helper()
	store := stores.OpenFor(t, stores.Memory.New(t))
	bare := &stores.Bare{Store: store}
	rt := open(t, bare)
	log := newLog(t, rt)
	const events = 1_500 // more than one commit removes
	text := make([]any, 0, 500)
	for range 500 {
		text = append(text, said{secret("ann")})
	}
	for range events / len(text) {
		_, err := log.Append(t.Context(), "ann", stream.Any, text...)
		require.NoError(t, err)
	}
	_, err := log.Append(t.Context(), "bob", stream.Any, said{secret("bob")})
	require.NoError(t, err)
	require.NoError(t, log.DeleteStream(t.Context(), "ann"))
	require.NotEmpty(t, of(all(t, store), "ann"))
	parts := partsOf(t, bare, "ann")
	first := parts
	if byLabel {
		first = []erase.Part{erase.Labeled("thread", "ann")}
	}
	report, err := erase.Erase(t.Context(), bare, first, erase.Options{})
	require.NoError(t, err)
	require.Zero(t, report)
	require.Empty(t, of(all(t, store), "ann"))
	require.NotEmpty(t, of(all(t, store), "bob"))

	// A stream that has begun again keeps its events, and all of them go with it.
	for range 3 {
		_, err = log.Append(t.Context(), "ann", stream.Any, text...)
		require.NoError(t, err)
	}
	require.NoError(t, persist.Logs(bare).(persist.LogCleaner).CleanLog(t.Context(), persist.Key{Kind: "thread", ID: "ann"}))
	last, err := log.Last(t.Context(), "ann", 2_000)
	require.NoError(t, err)
	require.Len(t, last, events)
	report, err = erase.Erase(t.Context(), bare, parts, erase.Options{})
	require.NoError(t, err)
	require.Equal(t, 1, report.Deleted)
	require.Empty(t, of(all(t, store), "ann"))
	require.NotEmpty(t, of(all(t, store), "bob"))
}

// After an error in the middle, and after one whose deletion has landed, the next Erase ends the job.
// Proves ERASE-4.
func TestEraseAfterError(t *testing.T) {
	lost := errors.New("connection lost")
	for name, answer := range map[string]func(commit func() (time.Time, error)) (time.Time, error){
		"refused": func(func() (time.Time, error)) (time.Time, error) { return time.Time{}, persist.ErrUnavailable },
		"lost": func(commit func() (time.Time, error)) (time.Time, error) {
			_, err := commit()
			return time.Time{}, errors.Join(err, lost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			stores.EachOpen(t, func(t *testing.T, store persist.Store) {
				fillAll(t, open(t, store), "ann")
				parts := partsOf(t, store, "ann")
				total := len(list(t, store, parts))
				tap := &stores.Tap{Store: store}
				commits := 0
				tap.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
					if commits++; commits == 4 {
						return answer(commit)
					}
					return commit()
				})
				first, err := erase.Erase(t.Context(), tap, parts, erase.Options{})
				require.Error(t, err)
				require.NotErrorIs(t, err, erase.ErrLeft)
				require.Positive(t, first.Deleted)
				second, err := erase.Erase(t.Context(), tap, parts, erase.Options{})
				require.NoError(t, err)
				if name == "refused" {
					require.Equal(t, total, first.Deleted+second.Deleted)
				} else {
					require.Less(t, first.Deleted+second.Deleted, total)
				}
				require.Empty(t, of(all(t, store), "ann"))
			})
		})
	}
}

// A call whose context ends returns its cause, and what it has deleted stays deleted.
func TestEraseCanceled(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		for i := range 150 {
			_, err := notes.Scope(rt, fmt.Sprintf("ann/%d", i)).SetState(t.Context(), note{})
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		report, err := erase.Erase(ctx, store, partsOf(t, store, "ann"), erase.Options{Deleted: func(string, persist.Key) { cancel() }})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 100, report.Deleted)
		_, err = notes.Scope(rt, "ann/0").SetState(t.Context(), note{})
		require.ErrorIs(t, err, pawl.ErrDeleted)
	})
}

// purging is a store that keeps logs as documents and purges tombstones.
type purging struct {
	stores.Bare
	persist.Purger
}

// A Sweeper removes what is left of a log before it purges the tombstone by which an erasure would
// find it. Proves ERASE-1, ERASE-4.
func TestSweptLogs(t *testing.T) {
	store := stores.OpenFor(t, stores.Memory.New(t))
	rt := open(t, &purging{stores.Bare{Store: store}, store.(persist.Purger)})
	log := newLog(t, rt)
	text := make([]any, 0, 500)
	for range 500 {
		text = append(text, said{secret("ann")})
	}
	for range 3 { // more than one commit removes
		_, err := log.Append(t.Context(), "ann", stream.Any, text...)
		require.NoError(t, err)
	}
	require.NoError(t, log.DeleteStream(t.Context(), "ann"))
	require.NotEmpty(t, of(all(t, store), "ann"))
	sweeper, err := pawl.NewSweeper(rt, pawl.SweeperConfig{Tombstones: time.Nanosecond})
	require.NoError(t, err)
	_, err = sweeper.Sweep(t.Context())
	require.NoError(t, err)
	require.Empty(t, of(all(t, store), "ann"))
	_, err = store.Load(t.Context(), persist.Key{Kind: "thread", ID: "ann"})
	require.ErrorIs(t, err, persist.ErrNotFound, "the tombstone is purged")
}
