package hints_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// A store sends the hint of each change to its hub, and its Watch is that of the hub.
func Example() {
	var hub hints.Hub
	key := persist.Key{Kind: "order", ID: "17"}
	before, after := persist.Record{Key: key, Version: 1}, persist.Record{Key: key, Version: 2}

	err := hub.Watch(context.Background(), func(h persist.Hint) {
		switch {
		case h == persist.Hint{}:
			fmt.Println("anything may have changed")
			if hint, ok := hints.Of(before, after); ok {
				hub.Send(hint)
			}
		default:
			fmt.Println(h.Key, h.Version)
			hub.Close()
		}
	})
	fmt.Println(errors.Is(err, persist.ErrClosed))
	// Output:
	// anything may have changed
	// order/17 2
	// true
}
