package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/sqlite"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// of returns the events of one type since the last call, in their order, and forgets all events.
func (l *eventLog) of(typ pawl.EventType) (out []pawl.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Type == typ {
			out = append(out, e)
		}
	}
	l.events = nil
	return out
}

// verbs returns the verbs of the store calls since the last call.
func (l *eventLog) verbs() (out []string) {
	for _, e := range l.of(pawl.EventStoreCalled) {
		out = append(out, e.Verb)
	}
	return out
}

// Each call of the store is an event, with the first key and the time that it took.
func TestStoreCallsAreObserved(t *testing.T) {
	log := new(eventLog)
	onStores(t, func(t *testing.T, p path) {
		ctx, a, b := t.Context(), purses.Scope(p.rt, "a"), purses.Scope(p.rt, "b")
		log.verbs()
		_, err := a.State(ctx)
		require.NoError(t, err)
		calls := log.of(pawl.EventStoreCalled)
		require.Len(t, calls, 1)
		assert.Equal(t, "Load", calls[0].Verb)
		assert.Equal(t, a.Key(), calls[0].Key)
		assert.NoError(t, calls[0].Err, "an absent record is no failure")
		assert.Positive(t, calls[0].Took)
		assert.Empty(t, calls[0].Path)

		seed(t, a, purse{Balance: 1})
		calls = log.of(pawl.EventStoreCalled)
		require.Len(t, calls, 1)
		assert.Equal(t, "Commit", calls[0].Verb)
		assert.Equal(t, a.Key(), calls[0].Key)
		assert.Equal(t, 1, calls[0].Batch)

		for _, err := range purses.List(ctx, p.rt, pawl.Query{}) {
			require.NoError(t, err)
		}
		calls = log.of(pawl.EventStoreCalled)
		require.Len(t, calls, 1)
		assert.Equal(t, "List", calls[0].Verb)
		assert.Equal(t, pawl.Key{Kind: purses.Name}, calls[0].Key)

		var one, two pawl.Snapshot[purse]
		require.NoError(t, pawl.ReadAll(ctx, a.Into(&one), b.Into(&two)))
		assert.Equal(t, []string{"LoadAll"}, log.verbs())

		require.NoError(t, pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			if _, err := a.In(tx).IncState(ctx, "balance", -1); err != nil {
				return err
			}
			_, err := b.In(tx).IncState(ctx, "balance", 1)
			return err
		}))
		calls = log.of(pawl.EventStoreCalled)
		last := calls[len(calls)-1]
		assert.Equal(t, "Commit", last.Verb)
		assert.Equal(t, 2, last.Batch)

		require.NoError(t, a.Hold(ctx, func(context.Context, *pawl.Lease) error { return nil }))
		calls = log.of(pawl.EventStoreCalled)
		last = calls[len(calls)-1]
		assert.Equal(t, "Commit", last.Verb)
		assert.Equal(t, a.Key(), last.Key)
		assert.Zero(t, last.Batch, "the release writes no record")
	}, func(c *pawl.Config) { c.Observer = log })
}

// A commit in doubt is an event for each sending, and the conflict that settles it is one too.
func TestCommitInDoubtIsObserved(t *testing.T) {
	log := new(eventLog)
	persisted(t, pawl.Config{Observer: log}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.State(t.Context())
		require.NoError(t, err)
		log.verbs()
		lost := errors.New("the answer was lost")
		h.OnCommitted(func(_ persist.Commit, at time.Time, err error) (time.Time, error) {
			h.OnCommitted(nil)
			return at, lost
		})
		_, err = s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		calls := log.of(pawl.EventStoreCalled)
		require.Len(t, calls, 2)
		assert.Equal(t, lost, calls[0].Err)
		var conflict *persist.Conflict
		assert.ErrorAs(t, calls[1].Err, &conflict)
		assert.Equal(t, []int{1, 1}, []int{calls[0].Batch, calls[1].Batch})
	})
}

// Code of the caller that fails inside a commit leaves no commit in doubt.
func TestNativeFailureIsNotInDoubt(t *testing.T) {
	log := new(eventLog)
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "db"), sqlite.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	rt := openRuntime(t, pawl.Config{Store: store, Observer: log})
	require.ErrorIs(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		if err := pawl.WithNative(tx, func(context.Context, *sql.Tx) error { return errPoor }); err != nil {
			return err
		}
		_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
		return err
	}), errPoor)
	e := log.find(pawl.EventStoreCalled)
	assert.Equal(t, "Commit", e.Verb)
	assert.ErrorIs(t, e.Err, persist.ErrNotApplied)
}

// A Transact that returns nil is one event, after those of the scopes that it wrote.
func TestEndOfTransactIsObserved(t *testing.T) {
	log := new(eventLog)
	rt := openRuntime(t, pawl.Config{Store: newTap(), Observer: log})
	transfer := func(ctx context.Context, tx *pawl.Tx) error {
		for _, id := range []string{"b", "a"} {
			if _, err := purses.Scope(tx, id).IncState(ctx, "balance", 1); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(t, pawl.Transact(t.Context(), rt, transfer))
	log.mu.Lock()
	last := log.events[len(log.events)-1]
	log.mu.Unlock()
	assert.Equal(t, pawl.EventTransacted, last.Type)
	assert.Equal(t, purses.Scope(rt, "b").Key(), last.Key, "the first scope that it touched")
	assert.Equal(t, "tx", last.Path)
	assert.Equal(t, "Transact", last.Verb)
	assert.Equal(t, 1, last.Attempts)
	assert.Positive(t, last.Took)
	assert.Equal(t, 2, log.count(pawl.EventCommitted))

	log.of(pawl.EventTransacted)
	require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		return pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "a").State(ctx)
			return err
		})
	}))
	assert.Len(t, log.of(pawl.EventTransacted), 1, "one that reads, and joins another one")
	require.ErrorIs(t, pawl.Transact(t.Context(), rt, func(context.Context, *pawl.Tx) error { return errPoor }), errPoor)
	assert.Empty(t, log.of(pawl.EventTransacted))
}

// EventQueued tells how many mutations wait already.
func TestQueueIsObserved(t *testing.T) {
	for name, scope := range map[string]func(pawl.Owner, string) pawl.Scope[counts]{"lock": pawl.Memory[counts], "cas": pawl.Session[counts]} {
		t.Run(name, func(t *testing.T) {
			log := new(eventLog)
			bubble(t, pawl.Config{Store: newTap(), Observer: log}, func(t *testing.T, rt *pawl.Runtime) {
				s := scope(rt, "a")
				release, result := block(s)
				log.of(pawl.EventQueued)
				for range 3 {
					go func() { _, err := s.IncState(t.Context(), "n", 1); assert.NoError(t, err) }()
					synctest.Wait()
				}
				var depths []int
				for _, e := range log.of(pawl.EventQueued) {
					depths = append(depths, e.Queue)
				}
				assert.Equal(t, []int{0, 1, 2}, depths)
				release()
				require.NoError(t, <-result)
				synctest.Wait()
			})
		})
	}
}

// The observer is told of each watch, and of the versions that it skips.
func TestWatchIsObserved(t *testing.T) {
	for name, scope := range map[string]func(pawl.Owner, string) pawl.Scope[counts]{"in memory": pawl.Memory[counts], "persisted": pawl.Session[counts]} {
		t.Run(name, func(t *testing.T) {
			log := new(eventLog)
			bubble(t, pawl.Config{Store: newTap(), Observer: log}, func(t *testing.T, rt *pawl.Runtime) {
				s := scope(rt, "a")
				seen := 0
				for change, err := range s.Watch(t.Context()) {
					require.NoError(t, err)
					if seen++; seen == 2 {
						assert.Equal(t, 2, change.Missed)
						break
					}
					assert.Equal(t, 1, log.count(pawl.EventWatchStarted))
					for range 3 {
						_, err := s.IncState(t.Context(), "n", 1)
						require.NoError(t, err)
					}
				}
				e := log.find(pawl.EventWatchMissed)
				assert.Equal(t, pawl.Event{Type: pawl.EventWatchMissed, Key: s.Key(), Verb: "Watch", Version: 3, Batch: 2}, e)
				assert.Equal(t, 1, log.count(pawl.EventWatchMissed))
				assert.Equal(t, 1, log.count(pawl.EventWatchEnded))
			})
		})
	}
	log := new(eventLog)
	persisted(t, pawl.Config{Observer: log}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		h.OnLoad(func(context.Context, ...persist.Key) error { return errors.New("down") })
		for _, err := range s.Watch(t.Context()) {
			require.ErrorIs(t, err, pawl.ErrUnavailable)
		}
	})
	assert.Zero(t, log.count(pawl.EventWatchStarted)+log.count(pawl.EventWatchEnded), "a watch that did not start")
}

// The observer is told of each kind that was swept, and of failures.
func TestSweepIsObserved(t *testing.T) {
	log := new(eventLog)
	kind := pawl.Kind[counts]{Name: "swept", TTL: time.Minute}
	tap := newTap()
	bubble(t, pawl.Config{Store: tap, Kinds: []pawl.AnyKind{kind}, Observer: log}, func(t *testing.T, rt *pawl.Runtime) {
		sweeper, err := pawl.NewSweeper(rt, pawl.SweeperConfig{Tombstones: time.Hour})
		require.NoError(t, err)
		for _, id := range []string{"a", "b"} {
			seed(t, kind.Scope(rt, id), counts{N: 1})
		}
		sweep := func() map[string]pawl.Event {
			_, err := sweeper.Sweep(t.Context())
			out := map[string]pawl.Event{}
			for _, e := range log.of(pawl.EventSwept) {
				assert.Equal(t, pawl.Key{Kind: "swept"}, e.Key)
				assert.Equal(t, err != nil, e.Err != nil)
				out[e.Verb] = e
			}
			return out
		}
		time.Sleep(2 * time.Minute)
		did := sweep()
		require.Len(t, did, 2)
		assert.Equal(t, []int{2, 0}, []int{did["Clear"].Batch, did["Purge"].Batch})
		time.Sleep(2 * time.Hour)
		did = sweep()
		assert.Equal(t, []int{0, 2}, []int{did["Clear"].Batch, did["Purge"].Batch})
		_, err = kind.Scope(rt, "c").SetState(t.Context(), counts{N: 1})
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		tap.RefuseAll()
		did = sweep()
		require.Len(t, did, 1, "nothing is purged after a failure")
		require.Error(t, did["Clear"].Err)
	})
}

// A lease has one end for the observer, also if it is released after Close.
func TestLeaseEndsOnceForTheObserver(t *testing.T) {
	log := new(eventLog)
	persisted(t, pawl.Config{Observer: log}, func(t *testing.T, _ *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		l, err := s.Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, rt.Close(t.Context()))
		synctest.Wait()
		require.ErrorIs(t, log.find(pawl.EventLeaseLost).Err, pawl.ErrClosed)
		require.NoError(t, l.Release(t.Context()))
		assert.Equal(t, 1, log.count(pawl.EventLeaseAcquired))
		assert.Equal(t, 1, log.count(pawl.EventLeaseLost))
		assert.Zero(t, log.count(pawl.EventLeaseReleased))
	})
}
