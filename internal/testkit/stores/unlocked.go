package stores

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/pawl-go/pawl/persist"
)

// Unlocked returns a function that fails if another process holds a lock that a user of store's
// records could need: that of a record, that of lists, or that of commits of several records. It is
// for testkit.Process.Pause, and is called before the process is stopped: the records are those of now.
// The function adds two records of kind "unlocked" and changes no other.
func Unlocked(store persist.Store) func(ctx context.Context) error {
	page, listErr := store.List(context.Background(), persist.Query{Limit: 1000})
	return func(ctx context.Context) error {
		if listErr != nil {
			return listErr
		}
		if _, err := store.List(ctx, persist.Query{Kind: "unlocked"}); err != nil {
			return err
		}
		id := rand.Text()
		allowed, refused := persist.Commit{ID: id + ".1"}, persist.Commit{ID: id + ".2"}
		for _, name := range []string{"a", "b"} { // two need the lock that a list has
			key := persist.Key{Kind: "unlocked", ID: id + "-" + name}
			allowed.Writes = append(allowed.Writes, persist.Write{Key: key, Version: 1, Doc: []byte("{}")})
		}
		const never = 1 << 40 // a version that no record has
		for _, r := range page.Records {
			refused.Writes = append(refused.Writes, persist.Write{Key: r.Key, Expected: never, Version: never + 1, Doc: []byte("{}")})
		}
		if _, err := store.Commit(ctx, allowed); err != nil || len(page.Records) == 0 {
			return err
		}
		_, err := store.Commit(ctx, refused) // a writer locks a record more strictly than a reader
		if conflict := (*persist.Conflict)(nil); errors.As(err, &conflict) {
			return nil
		}
		return errors.Join(errors.New("a commit for a later version was not refused"), err)
	}
}
