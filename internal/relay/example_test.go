package relay_test

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl/internal/relay"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

func Example() {
	ctx := context.Background()
	store := relay.New(memory.New(), func(ctx context.Context, call relay.Call, next func(context.Context) error) error {
		fmt.Println(call.Method)
		return next(ctx)
	})
	defer store.Close()

	_, err := store.Commit(ctx, persist.Commit{
		ID:     "example.1",
		Writes: []persist.Write{{Key: persist.Key{Kind: "greeting", ID: "en"}, Version: 1, Doc: []byte(`{}`)}},
	})
	fmt.Println(err)
	versions, err := store.Versions(ctx, []persist.Key{{Kind: "greeting", ID: "en"}})
	fmt.Println(versions, err)
	// Output:
	// Commit
	// <nil>
	// Versions
	// [1] <nil>
}
