package machine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// forgetful is a store that loses the answers to the commits that end an action.
type forgetful struct {
	persist.Store
	lose    int  // number of answers to lose
	execute bool // execute the commits whose answers are lost
}

var errLost = errors.New("the answer was lost")

func (f *forgetful) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	final := slices.ContainsFunc(c.Writes, func(w persist.Write) bool { return w.Label == "shipped" })
	if !final || f.lose == 0 {
		return f.Store.Commit(ctx, c)
	}
	f.lose--
	if f.execute {
		_, _ = f.Store.Commit(ctx, c)
	}
	return time.Time{}, errLost
}

// A final commit whose answer is lost is settled and happens once. If it cannot be settled, the
// error says so, and the entity has all of the action's writes or none. Proves CLAIM-5, CLAIM-6.
func TestLostAnswers(t *testing.T) {
	for _, c := range []struct {
		name    string
		lose    int
		execute bool
		unknown bool
		want    parcel
	}{
		{"lost once, committed", 1, true, false, parcel{Status: "shipped", Log: []string{"x"}}},
		{"lost once, not committed", 1, false, false, parcel{Status: "shipped", Log: []string{"x"}}},
		{"lost for good, committed", 1 << 30, true, true, parcel{Status: "shipped", Log: []string{"x"}}},
		{"lost for good, not committed", 1 << 30, false, true, parcel{Status: "packed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := open(t, &forgetful{Store: memory.New(), lose: c.lose, execute: c.execute}, settings{config: machine.Config{
				Commit: pawl.Retry{First: time.Millisecond, Max: time.Millisecond, Within: 2 * time.Second},
			}})
			d.pack(t, "1")
			bodies := 0
			d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
				bodies++
				return book(ctx, a, in)
			})
			out, err := d.fire(t.Context(), "1", "x")
			require.Equal(t, c.unknown, pawl.OutcomeUnknown(err), "%v", err)
			if c.unknown {
				require.Equal(t, "UNKNOWN_OUTCOME", pawl.Code(err), "not a lost claim, which commits nothing")
			} else {
				require.NoError(t, err)
				require.Equal(t, machine.Done, out.Result)
			}
			require.Equal(t, 1, bodies)
			require.Equal(t, c.want, d.parcel(t, "1"))
			require.EqualValues(t, len(c.want.Log), d.shipped(t))
			require.Zero(t, d.record(t, "1").Lease)
		})
	}
}
