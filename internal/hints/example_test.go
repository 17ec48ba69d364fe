package hints_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/pawl-go/pawl/internal/hints"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// A listener is woken when a record of its kind changes, by any writer to the store.
func Example() {
	store := memory.New()
	hub := hints.New(hints.Config{
		Store: store,
		Load: func(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
			return store.LoadAll(ctx, keys)
		},
		Timeout: time.Second,
		Backoff: func(failures int) time.Duration { return time.Second },
		Logger:  slog.Default,
	})
	defer hub.Close()

	woken := make(chan struct{}, 10)
	stop := hub.ListenKind("ship", func() { woken <- struct{}{} })
	defer stop()
	<-woken // the first hint says that any record may have changed

	key := persist.Key{Kind: "ship", ID: "argo"}
	_, err := store.Commit(context.Background(), persist.Commit{
		ID: "w.1", Writes: []persist.Write{{Key: key, Version: 1, Doc: []byte(`{}`)}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	<-woken
	fmt.Println("a ship has changed; hints arrive:", hub.Hears())
	// Output: a ship has changed; hints arrive: true
}
