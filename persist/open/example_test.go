package open_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/open"
)

func ExampleStore() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "open")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	location := "sqlite:" + filepath.Join(folder, "chat.db")

	_, err = open.Store(ctx, location, open.Options{Existing: true})
	fmt.Println("missing:", errors.Is(err, persist.ErrMissingStore))

	store, err := open.Store(ctx, location, open.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println("created:", store.Close())

	_, err = open.Store(ctx, "chat.db", open.Options{})
	fmt.Println(err)
	// Output:
	// missing: true
	// created: <nil>
	// open: bad location of a store: "chat.db" has no scheme; for an SQLite file write "sqlite:chat.db"
}

// A program adds the scheme of another store.
func ExampleSchemes() {
	schemes := open.Standard()
	schemes["memory"] = func(context.Context, string, open.Options) (persist.Store, error) { return memory.New(), nil }

	store, err := schemes.Open(context.Background(), "memory:1", open.Options{})
	fmt.Println(store != nil, err)
	// Output: true <nil>
}
