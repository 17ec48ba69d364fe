package stores

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/pawl-go/pawl/persist"
)

// Unlocked returns a function that fails if another process holds a lock that a user of store's
// records could need: that of a record, that of lists, or that of commits of several records. It is
// for testkit.Process.Pause. It adds two records of kind "unlocked" and changes no other.
func Unlocked(store persist.Store) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		page, err := store.List(ctx, persist.Query{Limit: 1000})
		if err != nil {
			return err
		}
		id := rand.Text()
		allowed, refused := persist.Commit{ID: id + ".1"}, persist.Commit{ID: id + ".2"}
		for _, name := range []string{"a", "b"} { // two need the lock that a list has
			key := persist.Key{Kind: "unlocked", ID: id + "-" + name}
			allowed.Writes = append(allowed.Writes, persist.Write{Key: key, Version: 1, Doc: []byte("{}")})
		}
		for _, r := range page.Records {
			allowed.Guards = append(allowed.Guards, persist.Guard{Key: r.Key, Read: true, Version: r.Version})
			refused.Writes = append(refused.Writes, persist.Write{Key: r.Key, Expected: r.Version + 1, Version: r.Version + 2, Doc: []byte("{}")})
		}
		if _, err := store.Commit(ctx, allowed); err != nil || len(page.Records) == 0 {
			return err
		}
		_, err = store.Commit(ctx, refused) // a writer locks a record more strictly than a reader
		if conflict := (*persist.Conflict)(nil); errors.As(err, &conflict) {
			return nil
		}
		return errors.Join(errors.New("a commit for a later version was not refused"), err)
	}
}
