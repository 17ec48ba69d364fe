package machine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

func init() {
	testkit.Child("shipper", shipperChild)
	testkit.Child("shippers", shippersChild)
}

// shipperChild fires one step and blocks forever at the protocol step that the parent named.
func shipperChild() error {
	d, _, err := childDepot(settings{config: machine.Config{Lease: shortLease}, runtime: pawl.Config{Holder: "victim"}})
	if err != nil {
		return err
	}
	d.tells(func(context.Context, *machine.Delivery[parcel]) error { select {} }) // the process dies before the delivery ends
	d.e.Observe(func(step string) {
		if step == os.Getenv(envStep) {
			testkit.Say("at %s", step)
			select {}
		}
	})
	testkit.Begin()
	_, err = d.fire(context.Background(), "1", "victim")
	return fmt.Errorf("the process was not killed: %w", err)
}

// Wherever in the protocol its process dies, an entity ends in a legal status, with the writes of
// exactly one body. Proves CLAIM-5, CLAIM-7, CLAIM-8, EFFECT-1.
func TestKilledAtEveryStep(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		for _, c := range []struct {
			step   string
			status string // left by the crash
		}{
			{"before claim", "packed"},
			{"after claim", "shipping"},
			{"in the body", "shipping"},
			{"before the commit", "shipping"},
			{"after the commit", "shipped"},
		} {
			t.Run(c.step, func(t *testing.T) {
				d := open(t, store, rescuers)
				ctx := t.Context()
				require.NoError(t, parcels.Scope(d.rt, "1").Delete(ctx))
				_, err := ledgers.Scope(d.rt, "all").SetState(ctx, ledger{})
				require.NoError(t, err)
				d.pack(t, "1")
				told := make(chan string, 10)
				d.tells(func(_ context.Context, e *machine.Delivery[parcel]) error {
					var in string
					require.NoError(t, e.Input(&in))
					told <- in
					return nil
				})

				p := testkit.Start(t, "shipper", stores.Env(location), envStep+"="+c.step)
				testkit.Ready(p)
				p.Expect("at " + c.step)
				p.Kill()

				require.Equal(t, c.status, d.parcel(t, "1").Status)
				if c.status == "shipping" {
					out, err := d.fire(ctx, "1", "too early")
					require.NoError(t, err)
					require.Equal(t, machine.ClaimFailed, out.Result, "no step can claim the entity before the janitor frees it")
					freed := 0
					testkit.Eventually(t, func() bool {
						reverts, err := d.janitor.Sweep(ctx)
						require.NoError(t, err)
						for _, r := range reverts {
							require.Equal(t, []string{"shipping", "1", "shipping", "packed", "victim"}, []string{r.Workflow, r.ID, r.From, r.To, r.Holder})
							require.GreaterOrEqual(t, r.Age, time.Millisecond)
							freed++
						}
						return freed > 0
					}, "the janitor reverts the claim")
					require.Equal(t, 1, freed)
				}
				want := "victim"
				if c.status != "shipped" {
					want = "rescuer"
					out, err := d.fire(ctx, "1", want)
					require.NoError(t, err)
					require.Equal(t, machine.Done, out.Result)
				}
				require.Equal(t, parcel{Status: "shipped", Log: []string{want}}, d.parcel(t, "1"))
				require.EqualValues(t, 1, d.shipped(t))
				require.Equal(t, want, testkit.Receive(t, told, "the after-effect was lost"), "exactly the after-effect of that commit")
			})
		}
	})
}

const randomParcels = 40

// shippersChild ships parcels one after another until it is killed.
func shippersChild() error {
	d, stop, err := childDepot(settings{config: machine.Config{Lease: shortLease}})
	if err != nil {
		return err
	}
	d.tells(count)
	testkit.Begin()
	for i := range randomParcels {
		id := fmt.Sprint("parcel-", i)
		out, err := d.fire(context.Background(), id, id)
		if err != nil {
			return err
		}
		testkit.Say("%s %s", id, out.Result)
	}
	return stop()
}

// Processes that ship parcels are killed at random moments. No acknowledged commit and no
// after-effect is lost. PAWL_KILLS sets the number of kills. Proves CLAIM-5, CLAIM-7, EFFECT-1.
func TestKilledAtRandomMoments(t *testing.T) {
	kills := testkit.Times(3, 3, "PAWL_KILLS")
	stores.EachShared(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		d := open(t, store, rescuers)
		d.tells(count)
		stuck := 0
		for n := range kills {
			ctx := t.Context()
			for i := range randomParcels {
				s := parcels.Scope(d.rt, fmt.Sprint("parcel-", i))
				require.NoError(t, s.Delete(ctx))
				d.pack(t, s.Key().ID)
			}
			before := d.shipped(t)
			p := testkit.Start(t, "shippers", stores.Env(location))
			testkit.Ready(p)
			said := 0
			for range rand.N(randomParcels - 5) {
				if _, ok := p.Next(); ok {
					said++
				}
			}
			time.Sleep(rand.N(10 * time.Millisecond)) // kill at any moment
			for _, line := range p.Kill() {
				require.True(t, strings.HasSuffix(line, " done"), line)
				said++
			}
			// The server may still execute the last statement of the killed process. The next sweep
			// reverts a claim committed that late.
			shipped := int64(0)
			testkit.Eventually(t, func() bool {
				reverts, err := d.janitor.Sweep(ctx)
				require.NoError(t, err)
				stuck += len(reverts)
				shipped = 0
				for i := range randomParcels {
					id := fmt.Sprint("parcel-", i)
					switch p := d.parcel(t, id); p.Status {
					case "shipping":
						return false
					case "shipped":
						shipped++
						require.Equal(t, []string{id}, p.Log)
					default:
						require.Equal(t, parcel{Status: "packed"}, p)
					}
				}
				return before+shipped == d.shipped(t)
			}, "kill ", n, ": all claims are free, and the ledger matches the parcels")
			require.GreaterOrEqual(t, shipped, int64(said), "acknowledged commits")
			require.LessOrEqual(t, shipped, int64(said)+1)
		}
		for left := len(d.letters(t)); left > 0; { // after many kills, files take long for all of them
			testkit.Eventually(t, func() bool {
				before := left
				left = len(d.letters(t))
				return left < before
			}, "more after-effects are delivered")
		}
		told, err := ledgers.Scope(d.rt, "told").State(t.Context())
		require.NoError(t, err)
		require.Equal(t, d.shipped(t), told.Shipped, "one after-effect for each commit")
		testkit.Figures(t, "%d kills, %d claims left behind", kills, stuck)
	})
}

// count is an after-effect that adds one to a counter in the commit that ends its delivery.
func count(_ context.Context, e *machine.Delivery[parcel]) error {
	e.OnCommit(func(ctx context.Context, tx *pawl.Tx) error {
		_, err := ledgers.Scope(tx, "told").IncState(ctx, "shipped", 1)
		return err
	})
	return nil
}
