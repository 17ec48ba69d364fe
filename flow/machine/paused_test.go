//go:build unix

package machine_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

func init() { testkit.Child("pausing", pausingChild) }

// pausingChild is paused in its body, and reports the outcome when it resumes.
func pausingChild() error {
	d, _, err := childDepot(settings{config: machine.Config{Lease: shortLease}, runtime: pawl.Config{Holder: "paused"}})
	if err != nil {
		return err
	}
	d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
		testkit.Say("in the body")
		<-ctx.Done() // only the lost lease ends the context
		testkit.Say("context ended by a lost lease: %v", errors.Is(context.Cause(ctx), pawl.ErrLeaseLost))
		if os.Getenv(envName) == "tries" { // like a body that ignores its context
			_, err := ledgers.Scope(d.rt, "all").IncState(context.WithoutCancel(ctx), "shipped", 1)
			testkit.Say("write in the body: %s", pawl.Code(err))
		}
		return book(ctx, a, in)
	})
	testkit.Begin()
	_, err = d.fire(context.Background(), "1", "paused")
	testkit.Say("%s", pawl.Code(err))
	testkit.Begin() // wait for the parent
	return nil
}

// A process that is paused for longer than its lease finds its claim taken over. Its context ends,
// and it commits nothing. Proves CLAIM-4, CLAIM-9.
func TestPausedHolder(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		d := open(t, store, rescuers)
		d.pack(t, "1")
		p := testkit.Start(t, "pausing", stores.Env(location), envName+"=tries")
		testkit.Ready(p)
		p.Expect("in the body")
		p.Pause(stores.Unlocked(store))
		freed := 0
		testkit.Eventually(t, func() bool {
			reverts, err := d.janitor.Sweep(t.Context())
			require.NoError(t, err)
			freed += len(reverts)
			return freed > 0
		}, "the janitor reverts the claim")
		woken := make(chan struct{})
		d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error { // the old body continues beside the new one
			p.Resume()
			for _, want := range []string{"context ended by a lost lease: true", "write in the body: LEASE_LOST", "CLAIM_LOST"} {
				p.Expect(want)
			}
			close(woken)
			return book(ctx, a, in)
		})
		out, err := d.fire(t.Context(), "1", "successor")
		require.NoError(t, err)
		require.Equal(t, machine.Done, out.Result)
		<-woken
		require.Equal(t, parcel{Status: "shipped", Log: []string{"successor"}}, d.parcel(t, "1"))
		require.EqualValues(t, 1, d.shipped(t))
		p.Kill()
	})
}
