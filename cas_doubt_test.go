package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// When the answer to a commit is lost, the commit id in the record decides whether the mutation
// runs again. Proves CAS-7.
func TestLostAnswersAreSettledByTheCommitID(t *testing.T) {
	lost := errors.New("connection reset")
	for _, c := range []struct {
		name          string
		applied       bool // before the answer was lost
		foreign       bool // another process wrote before the commit was sent again
		runs, commits int64
		n             int
	}{
		{"applied", true, false, 1, 2, 1},
		{"not applied", false, false, 1, 2, 1},
		{"applied, then a foreign write", true, true, 1, 2, 101},
		{"not applied, then a foreign write", false, true, 2, 3, 101},
	} {
		t.Run(c.name, func(t *testing.T) {
			persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
				h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
					h.Around(nil)
					if c.applied {
						_, err := commit()
						require.NoError(t, err)
					}
					if c.foreign {
						foreign(t, h, s.Key(), 100)
					}
					return time.Time{}, lost
				})
				var runs int64
				_, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error { runs++; b.N++; return nil })
				require.NoError(t, err)
				assert.Equal(t, c.runs, runs)
				assert.Equal(t, c.commits, h.Commits.Load())
				b, _ := s.State(t.Context())
				assert.Equal(t, c.n, b.N)
			})
		})
	}
}

// If no answer arrives within the budget, the outcome is unknown, and later mutations work.
// Proves CAS-7.
func TestUnknownOutcomeWhenTheBudgetEnds(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		lost := errors.New("connection reset")
		h.Around(func(persist.Commit, func() (time.Time, error)) (time.Time, error) { return time.Time{}, lost })
		start := time.Now()
		_, err := s.IncState(t.Context(), "n", 1)
		assert.Equal(t, 30*time.Second, time.Since(start))
		var unknown *pawl.UnknownOutcomeError
		require.ErrorAs(t, err, &unknown)
		assert.ErrorIs(t, err, lost)
		assert.True(t, pawl.OutcomeUnknown(err))
		h.Around(nil)
		snap, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err, "the scope accepts mutations again")
		assert.Equal(t, 1, snap.ReadOnly().N)
	})
}

// The answer to a creation is lost, and another process created the record with a higher version.
// Nothing was purged, so the lost creation did not land, and the mutation runs again.
//
// Proves CAS-6, CAS-7.
func TestCreationInDoubt(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := visits.Scope(p.rt, "a")
		var calls atomic.Int32
		p.store.OnCommit(func(ctx context.Context, c persist.Commit) error {
			if calls.Add(1) > 1 {
				return nil
			}
			_, err := p.store.Store.Commit(ctx, persist.Commit{ID: "foreign.1", Writes: []persist.Write{{Key: s.Key(), Version: 3, Doc: []byte(`{"n":3}`)}}})
			require.NoError(t, err)
			return errAnswerLost
		})
		snap, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		require.EqualValues(t, 4, snap.Version)
		require.Equal(t, 4, snap.ReadOnly().N)
	})
}

// The answer to a creation is lost, and a purge may have removed the evidence. The outcome is then
// unknown.
//
// Proves CAS-6.
func TestCreationInDoubtAfterAPurge(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s, other := visits.Scope(p.rt, "a"), visits.Scope(p.another(t), "other")
		for range 5 {
			_, err := other.IncState(ctx, "n", 1)
			require.NoError(t, err)
		}
		require.NoError(t, other.Delete(ctx))
		var calls atomic.Int32
		p.store.OnCommit(func(ctx context.Context, c persist.Commit) error {
			if calls.Add(1) > 1 {
				return nil
			}
			_, err := p.store.Store.(persist.Purger).Purge(ctx, persist.Query{})
			require.NoError(t, err)
			_, err = p.store.Store.Commit(ctx, persist.Commit{ID: "foreign.1", Writes: []persist.Write{{Key: s.Key(), Version: 9, Doc: []byte(`{"n":3}`)}}})
			require.NoError(t, err)
			return errAnswerLost
		})
		_, err := s.IncState(ctx, "n", 1)
		require.ErrorIs(t, err, pawl.ErrUnknownOutcome)
	})
}

// A commit lands without an answer, and its record is then deleted and purged. The outcome is
// unknown, and the mutation is not applied again. Proves CAS-7.
func TestCommitInDoubtWhoseRecordWasPurged(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			h.Around(nil)
			_, err := commit() // lands as version 2
			require.NoError(t, err)
			_, err = h.Store.Commit(t.Context(), persist.Commit{ID: "foreign.1", Writes: []persist.Write{{Key: s.Key(), Expected: 2, Version: 3, Deleted: true}}})
			require.NoError(t, err)
			_, err = h.Purge(t.Context(), persist.Query{Kind: s.Key().Kind})
			require.NoError(t, err)
			return time.Time{}, errors.New("connection lost")
		})
		_, err = s.IncState(t.Context(), "n", 1)
		assert.True(t, pawl.OutcomeUnknown(err), "the commit was applied, but the evidence is gone")
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		assert.False(t, snap.Exists(), "the mutation was applied again")
	})
}

// As above, but another process creates the record again before the commit is sent again.
// Proves CAS-7.
func TestCommitInDoubtWhoseRecordWasPurgedAndRecreated(t *testing.T) {
	for _, existed := range []bool{true, false} {
		persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			v := uint64(1)
			if existed {
				_, err := s.IncState(t.Context(), "n", 1)
				require.NoError(t, err)
				v = 2
			}
			h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				h.Around(nil)
				_, err := commit() // lands as version v
				require.NoError(t, err)
				_, err = h.Store.Commit(t.Context(), persist.Commit{ID: "foreign.1", Writes: []persist.Write{{Key: s.Key(), Expected: v, Version: v + 1, Deleted: true}}})
				require.NoError(t, err)
				_, err = h.Purge(t.Context(), persist.Query{Kind: s.Key().Kind})
				require.NoError(t, err)
				_, err = h.Store.Commit(t.Context(), persist.Commit{ID: "foreign.2", Writes: []persist.Write{{Key: s.Key(), Version: v + 2, Doc: encode(t, counts{N: 100})}}})
				require.NoError(t, err)
				return time.Time{}, errors.New("connection lost")
			})
			_, err := s.IncState(t.Context(), "n", 1)
			assert.True(t, pawl.OutcomeUnknown(err), "existed %v: the commit was applied, but the evidence is gone: %v", existed, err)
			b, err := s.State(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 100, b.N, "the mutation was applied again")
		})
	}
}

// A commit lands without an answer, and the record no longer lists its writer. The outcome is
// unknown, and the mutation is not applied again. Proves CAS-7.
func TestCommitInDoubtWhoseWriterWasForgotten(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		foreign := func(id string) {
			r, err := h.Store.Load(t.Context(), s.Key())
			require.NoError(t, err)
			b := decode[counts](t, r)
			b.N += 1000
			_, err = h.Store.Commit(t.Context(), persist.Commit{ID: id,
				Writes: []persist.Write{{Key: s.Key(), Expected: r.Version, Version: r.Version + 1, Doc: encode(t, b)}}})
			require.NoError(t, err)
		}
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		foreign("foreign1.0")
		_, err = s.Snapshot(t.Context()) // the next commit follows a version that this runtime has read
		require.NoError(t, err)
		var lost atomic.Bool
		h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			at, err := commit()
			if err != nil || !lost.CompareAndSwap(false, true) {
				return at, err
			}
			for i := range persist.KeptWriters { // enough writers to push this runtime off the record's list
				foreign(fmt.Sprintf("foreign%d.1", i))
			}
			_, err = s.IncState(t.Context(), "n", 100) // a later commit lists this runtime again
			require.NoError(t, err)
			return time.Time{}, errors.New("connection lost")
		})
		began := make(chan struct{})
		second := make(chan error, 1)
		go func() {
			<-began
			_, err := s.IncState(t.Context(), "n", 0)
			second <- err
		}()
		_, err = s.AtomicState(t.Context(), func(_ context.Context, b *counts) error {
			close(began)
			require.NoError(t, <-second) // this function has left the queue, so the queue is free
			b.N += 10
			return nil
		})
		assert.True(t, pawl.OutcomeUnknown(err))
		b, err := s.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 17111, b.N, "the mutation counts once")
	})
}
