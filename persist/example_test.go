package persist_test

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// Copy moves an application to another store. Its writers are stopped, and start again with the new
// store.
func ExampleCopy() {
	ctx := context.Background()
	from, to := memory.New(), memory.New()
	ann := persist.Key{Kind: "session", ID: "ann"}
	bob := persist.Key{Kind: "session", ID: "bob"}
	for i, w := range []persist.Write{
		{Key: ann, Version: 1, Doc: []byte(`{"n":1}`)},
		{Key: ann, Expected: 1, Version: 2, Doc: []byte(`{"n":2}`), Label: "open"},
		{Key: bob, Version: 1, Doc: []byte(`{"n":1}`)},
		{Key: bob, Expected: 1, Version: 2, Deleted: true},
	} {
		if _, err := from.Commit(ctx, persist.Commit{ID: fmt.Sprintf("w.%d", i), Writes: []persist.Write{w}}); err != nil {
			fmt.Println(err)
		}
	}

	report, err := persist.Copy(ctx, from, to, persist.CopyOptions{})
	fmt.Println("copied", report.Copied, "verified", report.Verified, err)
	for _, key := range []persist.Key{ann, bob} {
		r, err := to.Load(ctx, key)
		fmt.Println(r.Key, r.Version, r.Label, r.Deleted, r.Commits, err)
	}

	// A second run copies only the records that differ.
	report, err = persist.Copy(ctx, from, to, persist.CopyOptions{})
	fmt.Println("copied", report.Copied, "unchanged", report.Unchanged, err)
	// Output:
	// copied 2 verified 2 <nil>
	// session/ann 2 open false [w.0 w.1] <nil>
	// session/bob 2  true [w.2 w.3] <nil>
	// copied 0 unchanged 2 <nil>
}
