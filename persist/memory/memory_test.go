package memory_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/persisttest"
)

func open(string) (persist.Store, error) { return memory.New(), nil }

func TestMain(m *testing.M) {
	testkit.Main(func() int { return persisttest.Main(m, open) })
}

// Proves STORE-1.
func TestConformance(t *testing.T) {
	persisttest.Run(t, open, persisttest.Options{Volatile: true})
}

func Example() {
	ctx := context.Background()
	store := memory.New()
	defer store.Close()

	greeting := persist.Key{Kind: "greeting", ID: "en"}
	_, err := store.Commit(ctx, persist.Commit{
		ID:     "example.1",
		Writes: []persist.Write{{Key: greeting, Version: 1, Doc: []byte(`{"text":"hello"}`)}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	record, err := store.Load(ctx, greeting)
	fmt.Println(record.Version, string(record.Doc), err)
	// Output: 1 {"text":"hello"} <nil>
}
