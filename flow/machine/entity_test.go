package machine_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// A holder whose claim was taken over commits nothing, even if it has not noticed and the status is
// the claim status again. The store refuses its commits. Proves CLAIM-4, CLAIM-9.
func TestUnnoticedTakeover(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		d, other := open(t, store, settings{}), open(t, store, rescuers)
		d.pack(t, "1")
		began, finish := make(chan struct{}), make(chan struct{})
		ended := make(chan error)
		other.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
			close(began)
			<-finish
			return book(ctx, a, in)
		})
		d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
			// Release the lease in the store before the holder renews it.
			r := d.record(t, "1")
			_, err := store.Commit(t.Context(), persist.Commit{ID: "foreign.1", Guards: []persist.Guard{{Key: r.Key, Token: r.Lease.Token, Release: true}}})
			require.NoError(t, err)
			testkit.Eventually(t, func() bool {
				reverts, err := other.janitor.Sweep(t.Context())
				require.NoError(t, err)
				return len(reverts) == 1
			}, "reverted")
			go func() {
				out, err := other.fire(context.Background(), "1", "successor")
				if err == nil && out.Result != machine.Done {
					err = errors.New(out.Result.String())
				}
				ended <- err
			}()
			<-began
			require.NoError(t, ctx.Err(), "the holder has not noticed the takeover")
			require.Equal(t, "shipping", d.parcel(t, "1").Status)
			return book(ctx, a, in)
		})
		_, err := d.fire(t.Context(), "1", "late")
		var lost *machine.ClaimLostError
		require.ErrorAs(t, err, &lost)
		require.Equal(t, parcel{Status: "shipping"}, d.parcel(t, "1"), "the successor keeps its claim")
		close(finish)
		require.NoError(t, <-ended)
		require.Equal(t, parcel{Status: "shipped", Log: []string{"successor"}}, d.parcel(t, "1"))
		require.EqualValues(t, 1, d.shipped(t))
	})
}

// The status may have its own type, be a nested field, or a field of dynamic state.
func TestKindsOfStatusFields(t *testing.T) {
	type phase string
	type state struct {
		Phase *phase `json:"phase"`
	}
	type crate struct {
		State state `json:"state"`
	}
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	e := machine.NewEngine(rt, machine.Config{})
	e.AddJanitor(machine.JanitorConfig{Module: "depot"})
	w := shipping()
	w.Steps[0].Effects = nil
	nested := machine.Add(e, pawl.Kind[crate]{Name: "parcel", Label: "state.phase"}, w)
	machine.Handle(nested, "Ship", func(context.Context, *machine.Action[crate], machine.NoInput) error { return nil })
	machine.Handle(nested, "Return", func(context.Context, *machine.Action[crate], machine.NoInput) error { return nil })
	w.Name, w.Kind = "dynamic", "doc"
	dynamic := machine.Add(e, pawl.Kind[pawl.Doc]{Name: "doc", Label: "status"}, w)
	machine.Handle(dynamic, "Ship", func(context.Context, *machine.Action[pawl.Doc], any) error { return nil })
	machine.Handle(dynamic, "Return", func(context.Context, *machine.Action[pawl.Doc], any) error { return nil })
	require.NoError(t, e.Start(t.Context()))
	defer e.Stop(context.Background())

	_, err = nested.Create(t.Context(), "1", crate{})
	require.NoError(t, err)
	one, err := nested.Fire(t.Context(), machine.Trigger{ID: "1", Step: "ship", By: "admin"})
	require.NoError(t, err)
	require.Equal(t, machine.Done, one.Result)
	require.Equal(t, phase("shipped"), *one.Entity.State().State.Phase)

	_, err = dynamic.Create(t.Context(), "1", pawl.Doc{"weight": 7})
	require.NoError(t, err)
	other, err := dynamic.Fire(t.Context(), machine.Trigger{ID: "1", Step: "ship", By: "admin", Input: "anything"})
	require.NoError(t, err)
	require.Equal(t, machine.Done, other.Result)
	require.Equal(t, pawl.Doc{"weight": int64(7), "status": "shipped"}, other.Entity.State())
}
