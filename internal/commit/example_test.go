package commit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// The store applies a commit, but its answer is lost. Sent again, the commit is refused because the
// version has moved. The record shows its id, so the commit is not repeated.
func ExampleSend() {
	ctx := context.Background()
	store := memory.New()
	answers := 0
	route := commit.Route{Store: store, Commit: func(ctx context.Context, c persist.Commit) (time.Time, error) {
		at, err := store.Commit(ctx, c)
		if answers++; answers == 1 {
			return time.Time{}, errors.New("connection cut")
		}
		return at, err
	}}
	key := persist.Key{Kind: "session", ID: "a"}
	c := persist.Commit{ID: "writer.1", Writes: []persist.Write{{Key: key, Version: 1, Doc: []byte(`{"n":1}`)}}}

	v := commit.Send(ctx, route, commit.Backoff{First: time.Millisecond, Max: time.Second}, c, []commit.Base{{Absent: true}})

	r, _ := store.Load(ctx, key)
	fmt.Println(v.Kind, "after", answers, "answers, at version", r.Version)
	// Output: landed after 2 answers, at version 1
}
