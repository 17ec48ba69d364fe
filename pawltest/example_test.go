package pawltest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/pawltest"
)

// purse is the state of the examples.
type purse struct {
	Coins int `json:"coins"`
}

var purses = pawl.Kind[purse]{Name: "purse"}

// A commit conflicts, and the next one loses its answer. Each mutation takes effect once.
func Example() {
	ctx := context.Background()
	var events pawltest.Recorder
	store := pawltest.NewStore()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{purses}, Observer: &events})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rt.Close(ctx)
	ann := purses.Scope(rt, "ann")
	if _, err := ann.SetState(ctx, purse{Coins: 10}); err != nil {
		fmt.Println(err)
		return
	}

	store.Next(pawltest.Conflict, nil, pawltest.LostAnswer) // nil: the commit after the conflict passes
	for range 2 {
		runs := 0
		snap, err := ann.AtomicState(ctx, func(_ context.Context, p *purse) error {
			runs++
			p.Coins--
			return nil
		})
		fmt.Println(snap.State().Coins, "coins,", runs, "runs,", err)
	}
	fmt.Println(events.Count(pawl.EventConflicted), "conflict")
	// Output:
	// 9 coins, 2 runs, <nil>
	// 8 coins, 1 runs, <nil>
	// 1 conflict
}

func ExampleStore_Down() {
	ctx := context.Background()
	store := pawltest.NewStore()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{purses}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rt.Close(ctx)
	ann := purses.Scope(rt, "ann")

	store.Down()
	_, err = ann.IncState(ctx, "coins", 5)
	fmt.Println(errors.Is(err, pawl.ErrUnavailable), pawl.IsRetryable(err), pawl.OutcomeUnknown(err))
	store.Up()
	_, err = ann.IncState(ctx, "coins", 5)
	fmt.Println(err)
	// Output:
	// true true false
	// <nil>
}

// A rival takes the last coin between the read and the commit.
func ExampleRival() {
	ctx := context.Background()
	store := pawltest.NewStore()
	here, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{purses}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer here.Close(ctx)
	elsewhere, err := pawl.Open(pawl.Config{Store: store.Below(), Kinds: []pawl.AnyKind{purses}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer elsewhere.Close(ctx)
	take := func(rt *pawl.Runtime) error {
		_, err := purses.Scope(rt, "ann").AtomicState(ctx, func(_ context.Context, p *purse) error {
			if p.Coins == 0 {
				return errors.New("no coin left")
			}
			p.Coins--
			return nil
		})
		return err
	}
	if _, err := purses.Scope(here, "ann").SetState(ctx, purse{Coins: 1}); err != nil {
		fmt.Println(err)
		return
	}

	store.Next(pawltest.Rival(func() error { return take(elsewhere) }))
	fmt.Println(take(here))
	// Output: no coin left
}
