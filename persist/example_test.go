package persist_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// move copies all documents from one store to another, with their versions. Nobody may write to
// either meanwhile.
func move(ctx context.Context, from, to persist.Store) error {
	moved := 0
	for q := (persist.Query{}); ; {
		page, err := from.List(ctx, q)
		if err != nil {
			return err
		}
		for _, r := range page.Records {
			w := persist.Write{Key: r.Key, Version: r.Version, Doc: r.Doc, Schema: r.Schema, Label: r.Label, Due: r.Due}
			if !r.Expires.IsZero() {
				w.TTL = r.Expires.Sub(r.Now)
			}
			moved++
			if _, err := to.Commit(ctx, persist.Commit{ID: fmt.Sprintf("move.%d", moved), Writes: []persist.Write{w}}); err != nil {
				return err
			}
		}
		if page.Next == "" {
			return nil
		}
		q.After = page.Next
	}
}

// Moving from one store to another is copying records.
func ExampleStore_List() {
	ctx := context.Background()
	from, to := memory.New(), memory.New()
	key := persist.Key{Kind: "session", ID: "ann"}
	for version := range uint64(3) {
		w := persist.Write{Key: key, Expected: version, Version: version + 1, Doc: json.RawMessage(fmt.Sprintf(`{"n":%d}`, version+1))}
		if _, err := from.Commit(ctx, persist.Commit{ID: fmt.Sprintf("w.%d", version), Writes: []persist.Write{w}}); err != nil {
			panic(err)
		}
	}
	err := move(ctx, from, to)
	r, _ := to.Load(ctx, key)
	fmt.Println(err, r.Version, string(r.Doc))
	// Output: <nil> 3 {"n":3}
}
