package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/sqlite"
)

func Example() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "pawl")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	store, err := sqlite.Open(ctx, filepath.Join(folder, "state.db"), sqlite.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	greeting := persist.Key{Kind: "greeting", ID: "en"}
	create := persist.Commit{
		ID:     "example.1",
		Writes: []persist.Write{{Key: greeting, Version: 1, Doc: []byte(`{"text":"hello"}`)}},
	}
	_, err = store.Commit(ctx, create)
	fmt.Println(err)

	_, err = store.Commit(ctx, create) // the key exists already
	var conflict *persist.Conflict
	if errors.As(err, &conflict) {
		fmt.Println(conflict.Winners[0].Version, string(conflict.Winners[0].Doc))
	}
	// Output:
	// <nil>
	// 1 {"text":"hello"}
}
