package pawl_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// noOps are mutations that change nothing in fullBoard.
var (
	fullBoard = board{Title: "t", Count: 1, Tags: []string{"a"}, Notes: map[string]string{"k": "v"}}
	noOps     = map[string]pawl.Mutation{
		"Patch":           pawl.Patch{"title": "t", "count": 1, "tags": []string{"a"}, "notes": map[string]string{"k": "v"}},
		"empty Patch":     pawl.Patch{},
		"Set":             pawl.Set{State: fullBoard},
		"empty Push":      pawl.Push{Field: "tags"},
		"Inc by 0":        pawl.Inc{Field: "count"},
		"SetRecord":       pawl.SetRecord{Field: "notes", Key: "k", Value: "v"},
		"DeleteRecord":    pawl.DeleteRecord{Field: "notes", Key: "absent"},
		"Atomic":          pawl.Atomic(func(context.Context, *board) error { return nil }),
		"Atomic, rebuilt": pawl.Atomic(func(_ context.Context, b *board) error { *b = fullBoard; return nil }),
		"All, cancelling": pawl.All{pawl.Inc{Field: "count", By: 5}, pawl.Inc{Field: "count", By: -5}},
		"All, with Atomic": pawl.All{
			pawl.Inc{Field: "count", By: 5}, pawl.Atomic(func(_ context.Context, b *board) error { b.Count = 1; return nil }),
		},
		"empty All": pawl.All{},
	}
)

// A mutation that changes nothing writes nothing and returns the current state and version.
// Proves SCOPE-7.
func TestUnchanged(t *testing.T) {
	var events eventLog
	onPaths(t, func(t *testing.T, p path) {
		for name, m := range noOps {
			t.Run(name, func(t *testing.T) {
				s := scopeOf[board](p, name)
				seed(t, s, fullBoard)
				before, record := events.count(pawl.EventCommitted), p.record(t, s.Key())
				snap, err := s.Apply(t.Context(), m)
				require.NoError(t, err)
				require.EqualValues(t, 1, snap.Version)
				require.Equal(t, fullBoard, snap.State())
				requireState(t, p, s, 1, fullBoard)
				require.Equal(t, before, events.count(pawl.EventCommitted), "a Committed event without a change")
				require.EqualValues(t, 1, events.find(pawl.EventUnchanged).Version)
				after := p.record(t, s.Key())
				record.Now, after.Now = time.Time{}, time.Time{}
				require.Equal(t, record, after, "the record must not change, including its commit ids and time")
			})
		}
	}, func(c *pawl.Config) { c.Observer = &events })
}

// A mutation that changes nothing sends no commit to the store. Proves SCOPE-7.
func TestUnchangedSendsNoCommit(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		seed(t, s, fullBoard)
		for name, m := range noOps {
			_, err := s.Apply(t.Context(), m)
			require.NoError(t, err, name)
		}
		other := pawl.Session[board](p.another(t), "a")
		for name, m := range noOps {
			_, err := other.Apply(t.Context(), m)
			require.NoError(t, err, name)
		}
		require.NoError(t, pawl.Session[board](p.rt, "absent").Delete(t.Context()))
		_, err := pawl.Session[board](p.rt, "absent").Apply(t.Context(), pawl.Inc{Field: "count"})
		require.NoError(t, err)
		require.EqualValues(t, 1, p.store.Commits.Load())
	})
}

// A state that is set again changes nothing, although the store returns its JSON in another form:
// another process has only that form. Proves SCOPE-7.
func TestUnchangedInTheFormOfTheStore(t *testing.T) {
	type forms struct {
		Raw    json.RawMessage `json:"raw"`
		None   json.RawMessage `json:"none"`
		Number json.Number     `json:"number"`
		Empty  json.Number     `json:"empty"`
		Any    any             `json:"any"`
	}
	onStores(t, func(t *testing.T, p path) {
		want := forms{
			Raw: json.RawMessage(`{"b":1e2, "a":{"long":1.50,"x":"\u00e9"}}`), Number: "1e2",
			Any: map[string]any{"n": json.Number("1e400"), "m": json.Number("0.10")},
		}
		seed(t, pawl.Session[forms](p.rt, "a"), want)
		for name, m := range map[string]pawl.Mutation{
			"Set":   pawl.Set{State: want},
			"Patch": pawl.Patch{"raw": want.Raw, "number": want.Number, "any": want.Any},
			"Atomic": pawl.Atomic(func(_ context.Context, f *forms) error {
				*f = want
				return nil
			}),
		} {
			snap, err := pawl.Session[forms](p.another(t), "a").Apply(t.Context(), m)
			require.NoError(t, err, name)
			require.EqualValues(t, 1, snap.Version, name)
		}
		changed := want
		changed.Raw = json.RawMessage(`{"b":1e2, "a":{"long":1.51,"x":"\u00e9"}}`)
		snap, err := pawl.Session[forms](p.another(t), "a").SetState(t.Context(), changed)
		require.NoError(t, err)
		require.EqualValues(t, 2, snap.Version)
	})
}

// A mutation counts as unchanged only on the current state: a change by another process is seen.
// Proves SCOPE-7.
func TestUnchangedIsConfirmed(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		here, there := scopeOf[board](p, "a"), pawl.Session[board](p.another(t), "a")
		seed(t, here, fullBoard)
		_, err := there.PatchState(t.Context(), pawl.Patch{"title": "theirs"})
		require.NoError(t, err)
		// The runtime of here has cached version 1, on which this patch changes nothing.
		snap, err := here.PatchState(t.Context(), pawl.Patch{"title": "t"})
		require.NoError(t, err)
		require.EqualValues(t, 3, snap.Version, "the patch changes the current state")
		_, err = there.IncState(t.Context(), "count", 1)
		require.NoError(t, err)
		snap, err = here.PatchState(t.Context(), pawl.Patch{"title": "t"})
		require.NoError(t, err)
		require.EqualValues(t, 4, snap.Version, "the patch changes nothing, but the snapshot must be current")
		require.EqualValues(t, 2, snap.ReadOnly().Count)
		require.NoError(t, there.Delete(t.Context()))
		_, err = here.PatchState(t.Context(), pawl.Patch{"title": "t"})
		require.ErrorIs(t, err, pawl.ErrDeleted)
	})
}

// An error of a function counts only if the function ran on the current state.
// Proves SCOPE-7, SCOPE-4.
func TestErrorsAreConfirmed(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		here, there := scopeOf[board](p, "a"), pawl.Session[board](p.another(t), "a")
		seed(t, here, board{Count: 1})
		_, err := there.IncState(t.Context(), "count", 9)
		require.NoError(t, err)
		var saw []int64
		_, err = here.AtomicState(t.Context(), func(_ context.Context, b *board) error {
			saw = append(saw, b.Count)
			if b.Count < 10 {
				return errMutator
			}
			b.Count -= 10
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, []int64{1, 10}, saw)
		requireState(t, p, here, 3, board{})
	})
}

// A mutation that changes nothing renews the expiry and changes nothing else in the record.
// Proves SCOPE-7.
func TestUnchangedRenewsExpiry(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		kind := pawl.Kind[board]{Name: "expiring", TTL: time.Hour}
		s := kind.Scope(p.rt, "a")
		_, err := s.SetState(t.Context(), fullBoard, pawl.WithTTL(time.Minute))
		require.NoError(t, err)
		for name, m := range noOps {
			_, err := s.SetState(t.Context(), board{Title: name})
			require.NoError(t, err)
			_, err = s.SetState(t.Context(), fullBoard, pawl.WithTTL(time.Minute))
			require.NoError(t, err)
			before := p.record(t, s.Key())
			require.Equal(t, time.Minute, before.Expires.Sub(before.Updated))
			snap, err := s.Apply(t.Context(), m)
			require.NoError(t, err)
			require.Equal(t, before.Version, snap.Version)
			require.Equal(t, fullBoard, snap.State())
			after := p.record(t, s.Key())
			require.Greater(t, after.Expires.Sub(before.Expires), 50*time.Minute, name)
			after.Expires, after.Now, before.Now = before.Expires, time.Time{}, time.Time{}
			require.Equal(t, before, after, "only the expiry may change")
		}
	})
}

// A renewal that conflicts with another process runs again on the newer state. Proves SCOPE-7.
func TestRenewalIsConfirmed(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		kind := pawl.Kind[board]{Name: "expiring", TTL: time.Hour}
		here, there := kind.Scope(p.rt, "a"), kind.Scope(p.another(t), "a")
		seed(t, here, fullBoard)
		_, err := there.PatchState(t.Context(), pawl.Patch{"title": "theirs"})
		require.NoError(t, err)
		snap, err := here.PatchState(t.Context(), pawl.Patch{"count": 1})
		require.NoError(t, err)
		require.EqualValues(t, 2, snap.Version)
		require.Equal(t, "theirs", snap.ReadOnly().Title)
		snap, err = here.PatchState(t.Context(), pawl.Patch{"title": "t"})
		require.NoError(t, err)
		require.EqualValues(t, 3, snap.Version)
	})
}

// A transaction renews the expiry like a mutation outside a transaction.
//
// Proves SCOPE-7.
func TestTTLInATransaction(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	a := purses.Scope(rt, "a")
	_, err := a.SetState(t.Context(), purse{Balance: 1}, pawl.WithTTL(time.Hour))
	require.NoError(t, err)
	_, err = purses.Scope(other, "a").SetState(t.Context(), purse{Balance: 2}, pawl.WithTTL(time.Hour))
	require.NoError(t, err)
	require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_ = pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) error {
			_, _ = a.In(tx).PatchState(ctx, pawl.Patch{"balance": 1}, pawl.WithTTL(9*time.Hour))
			return errors.New("undo")
		})
		_, err := a.In(tx).PatchState(ctx, pawl.Patch{"balance": 2}, pawl.WithTTL(5*time.Hour))
		return err
	}))
	r, err := store.Load(t.Context(), a.Key())
	require.NoError(t, err)
	require.EqualValues(t, 2, r.Version)
	require.InDelta(t, 5*time.Hour, r.Expires.Sub(r.Now), float64(time.Minute))
}

// When the store fails, a mutation that changes nothing returns an error. Proves SCOPE-7.
func TestUnchangedWhenTheStoreFails(t *testing.T) {
	p := paths(t)[1]
	s := scopeOf[board](p, "a")
	seed(t, s, fullBoard)
	p.store.OnLoad(func(context.Context, ...persist.Key) error { return persist.ErrUnavailable })
	for name, m := range noOps {
		_, err := s.Apply(t.Context(), m)
		var unavailable *pawl.UnavailableError
		require.ErrorAs(t, err, &unavailable, name)
		require.Equal(t, s.Key(), unavailable.Scope)
		require.ErrorIs(t, err, persist.ErrUnavailable)
		require.True(t, pawl.IsRetryable(err))
	}
	p.store.OnLoad(nil)
	p.store.OnCommit(func(context.Context, persist.Commit) error { return persist.ErrUnavailable })
	_, err := s.Apply(t.Context(), noOps["Set"], pawl.WithTTL(time.Hour))
	require.ErrorIs(t, err, pawl.ErrUnavailable)
	p.store.OnCommit(nil)
	requireState(t, p, s, 1, fullBoard)
}

// An unchanged mutation with a TTL is confirmed on a container with a custom Persist.
// Proves SCOPE-7.
func TestUnchangedWithTTLOnACustomPersist(t *testing.T) {
	o := &ownPersist{snap: pawl.NewSnapshot(counts{N: 1}, 1, time.Now())}
	var c pawl.Container[counts]
	opts := pawl.ContainerOptions[counts]{Name: "own", Persist: o}
	_, err := pawl.ApplyMutation(t.Context(), &c, opts, pawl.Inc{Field: "n", By: 1})
	require.NoError(t, err)
	o.snap = pawl.NewSnapshot(counts{N: 7}, 3, time.Now()) // another writer committed
	snap, err := pawl.ApplyMutation(t.Context(), &c, opts, pawl.Patch{"n": 2}, pawl.WithTTL(time.Hour))
	require.NoError(t, err)
	assert.EqualValues(t, 4, snap.Version, "the container answered from its stale cache")
}

// ownPersist is a Persist that keeps one snapshot in memory.
type ownPersist struct{ snap pawl.Snapshot[counts] }

func (o *ownPersist) Load(context.Context) (pawl.Snapshot[counts], error) { return o.snap, nil }

func (o *ownPersist) Commit(_ context.Context, expected uint64, next pawl.Snapshot[counts]) (pawl.Snapshot[counts], error) {
	if o.snap.Version != expected {
		return o.snap, pawl.ErrConflict
	}
	o.snap = next
	return next, nil
}
