package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// txStep is one verb of a random program.
type txStep struct {
	id   string
	what string
	m    pawl.Mutation // nil for "delete" and "look"
	opts []pawl.CallOption
}

// drawSteps draws a program of verbs on three scopes. Some of the verbs are refused.
func drawSteps(t *rapid.T) (steps []txStep) {
	for range rapid.IntRange(1, 8).Draw(t, "verbs") {
		s := txStep{id: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id")}
		n := rapid.Int64Range(-3, 3).Draw(t, "n")
		key := rapid.SampledFrom([]string{"k", "l"}).Draw(t, "key")
		s.what = rapid.SampledFrom([]string{"inc", "push", "patch", "set", "record", "unrecord", "wrong", "all", "function", "failing", "delete", "look"}).Draw(t, "verb")
		switch s.what {
		case "inc":
			s.m = pawl.Inc{Field: "balance", By: n}
		case "push":
			s.m = pawl.Push{Field: "log", Values: []any{key}}
		case "patch":
			s.m = pawl.Patch{"balance": n}
		case "set":
			s.m = pawl.Set{State: purse{Balance: n}}
		case "record":
			s.m = pawl.SetRecord{Field: "notes", Key: key, Value: fmt.Sprint(n)}
		case "unrecord":
			s.m = pawl.DeleteRecord{Field: "notes", Key: key}
		case "wrong":
			s.m = pawl.Push{Field: "balance", Values: []any{1}}
		case "all":
			s.m = pawl.All{pawl.Inc{Field: "balance", By: n}, pawl.Push{Field: "log", Values: []any{"all"}}}
		case "function":
			s.m = pawl.Atomic(func(_ context.Context, p *purse) error { p.Balance = 2*p.Balance + n; return nil })
		case "failing":
			s.m = pawl.Atomic(func(_ context.Context, p *purse) error { p.Balance = 77; return errPoor })
		}
		switch rapid.IntRange(0, 8).Draw(t, "condition") {
		case 0:
			s.opts = append(s.opts, pawl.IfAbsent())
		case 1:
			s.opts = append(s.opts, pawl.IfExists())
		case 2:
			s.opts = append(s.opts, pawl.IfVersion(uint64(rapid.IntRange(1, 4).Draw(t, "version"))))
		}
		steps = append(steps, s)
	}
	return steps
}

// run applies s to a scope of o. It returns the code of the error, or the state for "look".
func (s txStep) run(ctx context.Context, o pawl.Owner) string {
	scope := purses.Scope(o, s.id)
	var err error
	switch {
	case s.what == "look":
		var snap pawl.Snapshot[purse]
		if snap, err = scope.Snapshot(ctx); err == nil {
			return fmt.Sprint(snap.Version, snap.State())
		}
	case s.what == "delete":
		err = scope.Delete(ctx, s.opts...)
	default:
		_, err = scope.Apply(ctx, s.m, s.opts...)
	}
	if errors.Is(err, errPoor) {
		return "poor"
	}
	return pawl.Code(err)
}

// Verbs in a transaction have the same results as the same verbs one by one. A transaction that
// fails changes nothing.
//
// Proves TX-1, SCOPE-1.
func TestModelTransact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		together, oneByOne := openModel(rt), openModel(rt)
		defer func() {
			for _, r := range []*pawl.Runtime{together, oneByOne} {
				_ = r.Close(context.Background())
			}
		}()
		ctx := context.Background()
		for range rapid.IntRange(1, 6).Draw(rt, "transactions") {
			steps := drawSteps(rt)
			fails := rapid.IntRange(0, 3).Draw(rt, "fate") == 0
			var results []string
			err := pawl.Transact(ctx, together, func(ctx context.Context, tx *pawl.Tx) error {
				results = nil
				for _, s := range steps {
					results = append(results, s.run(ctx, tx))
				}
				if fails {
					return errPoor
				}
				return nil
			})
			if fails {
				require.ErrorIs(rt, err, errPoor)
			} else {
				require.NoError(rt, err)
				for i, s := range steps {
					require.Equal(rt, s.run(ctx, oneByOne), results[i], "%s on %s", s.what, s.id)
				}
			}
			for _, id := range []string{"a", "b", "c"} {
				want, err := purses.Scope(oneByOne, id).Snapshot(ctx)
				require.NoError(rt, err)
				got, err := purses.Scope(together, id).Snapshot(ctx)
				require.NoError(rt, err)
				require.Equal(rt, want.Exists(), got.Exists(), id)
				require.Equal(rt, want.Version, got.Version, id)
				require.Equal(rt, want.State(), got.State(), id)
			}
		}
	})
}

func openModel(t require.TestingT) *pawl.Runtime {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	return rt
}
