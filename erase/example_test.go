package erase_test

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/erase"
	"github.com/pawl-go/pawl/persist/memory"
)

// A user closes the account: everything about the user is listed, and then deleted.
func Example() {
	ctx := context.Background()
	store := memory.New()
	rt, err := pawl.Open(pawl.Config{Store: store})
	if err != nil {
		panic(err)
	}
	defer rt.Close(ctx)
	for _, id := range []string{"ann", "ann/laptop", "anna"} {
		if _, err := pawl.Session[pawl.Doc](rt, id).SetState(ctx, pawl.Doc{"title": "Hi"}); err != nil {
			panic(err)
		}
	}

	parts, err := erase.Parts(ctx, store, erase.Subject{IDs: []string{"ann"}, Prefixes: []string{"ann/"}, Principals: []string{"ann"}})
	if err != nil {
		panic(err)
	}
	for found, err := range erase.List(ctx, store, parts) {
		fmt.Println("found", found.Key, found.Left, err)
	}
	report, err := erase.Erase(ctx, store, parts, erase.Options{})
	fmt.Println("deleted", report.Deleted, "left", len(report.Left), err)
	// Output:
	// found session/ann/laptop  <nil>
	// found session/ann  <nil>
	// deleted 2 left 0 <nil>
}
