package pawl_test

import (
	"context"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/require"
)

type chore struct {
	Status string `json:"status"`
	N      int    `json:"n"`
}

// chores have a label, and no field for the due time.
var chores = pawl.Kind[chore]{Name: "chore", Label: "status"}

// WithDueIn sets the due time relative to the store's time of the commit, until the next change.
// Proves STORE-8.
func TestDueIn(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := chores.Scope(p.rt, "a")
		// due checks that the due time is d after the commit of version; d 0 means never.
		due := func(version uint64, d time.Duration) {
			t.Helper()
			r := p.record(t, s.Key())
			require.Equal(t, version, r.Version)
			if d == 0 {
				require.True(t, r.Due.IsZero(), r.Due)
				return
			}
			require.Equal(t, r.Updated.Add(d), r.Due)
		}
		_, err := s.SetState(ctx, chore{Status: "open"}, pawl.WithDueIn(time.Hour))
		require.NoError(t, err)
		due(1, time.Hour)
		_, err = s.PatchState(ctx, pawl.Patch{"status": "open"}, pawl.WithDueIn(time.Minute))
		require.NoError(t, err)
		due(2, time.Minute)
		want := p.record(t, s.Key()).Due
		_, err = s.PatchState(ctx, pawl.Patch{"status": "open"})
		require.NoError(t, err)
		l, err := s.Acquire(ctx)
		require.NoError(t, err)
		r := p.record(t, s.Key())
		require.EqualValues(t, 3, r.Version)
		require.Equal(t, want, r.Due, "a lease alone keeps the due time")
		require.NoError(t, l.Release(ctx))
		_, err = s.IncState(ctx, "n", 1)
		require.NoError(t, err)
		due(4, 0)

		require.NoError(t, pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			if _, err := s.In(tx).IncState(ctx, "n", 1, pawl.WithDueIn(time.Second)); err != nil {
				return err
			}
			_, err := s.In(tx).IncState(ctx, "n", 1, pawl.WithDueIn(2*time.Second))
			return err
		}))
		due(6, 2*time.Second)
		require.NoError(t, pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := s.In(tx).PatchState(ctx, pawl.Patch{"status": "open"}, pawl.WithDueIn(time.Hour))
			return err
		}))
		due(7, time.Hour)

		l, err = s.Acquire(ctx, pawl.WithMutation(pawl.Patch{"status": "busy"}, pawl.WithDueIn(0)))
		require.NoError(t, err)
		due(8, time.Microsecond)
		require.NoError(t, l.Release(ctx))
		var found []string
		for snap, err := range chores.List(ctx, p.rt, pawl.Query{Due: true}) {
			require.NoError(t, err)
			found = append(found, snap.ID)
		}
		require.Equal(t, []string{"a"}, found)

		_, err = chores.Scope(p.rt, "absent").PatchState(ctx, pawl.Patch{}, pawl.WithDueIn(time.Hour))
		require.NoError(t, err)
		require.True(t, p.record(t, chores.Scope(p.rt, "absent").Key()).Absent(), "an absent scope stays absent")
		err = pawl.Transact(ctx, p.rt, func(context.Context, *pawl.Tx) error { return nil }, pawl.WithDueIn(time.Hour))
		var argument *pawl.ArgumentError
		require.ErrorAs(t, err, &argument)
		_, err = pawl.Memory[chore](p.rt, "a").SetState(ctx, chore{}, pawl.WithDueIn(time.Hour))
		require.ErrorIs(t, err, pawl.ErrNotPersisted)
	})
}

// WithDueIn takes the place of the kind's Due field for one change. Proves STORE-8.
func TestDueInBesideTheDueField(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s, at := errands.Scope(p.rt, "a"), time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
		_, err := s.SetState(t.Context(), errand{Due: at}, pawl.WithDueIn(time.Hour))
		require.NoError(t, err)
		r := p.record(t, s.Key())
		require.Equal(t, r.Updated.Add(time.Hour), r.Due)
		_, err = s.IncState(t.Context(), "runs", 1)
		require.NoError(t, err)
		require.Equal(t, at, p.record(t, s.Key()).Due.UTC())
	})
}
