package fs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/fs"
)

func Example() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "pawl")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	store, err := fs.Open(ctx, filepath.Join(folder, "state"), fs.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	// Money moves from one account to another in one commit, whatever crashes.
	move := persist.Commit{ID: "example.1", Writes: []persist.Write{
		{Key: persist.Key{Kind: "account", ID: "ann"}, Version: 1, Doc: []byte(`{"cents":70}`)},
		{Key: persist.Key{Kind: "account", ID: "bob"}, Version: 1, Doc: []byte(`{"cents":30}`)},
	}}
	_, err = store.Commit(ctx, move)
	fmt.Println(err)

	page, err := store.List(ctx, persist.Query{Kind: "account"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, record := range page.Records {
		fmt.Println(record.Key, record.Version, string(record.Doc))
	}
	_, err = os.Stat(filepath.Join(folder, "state", "records", "account", "ann.json"))
	fmt.Println(err)
	// Output:
	// <nil>
	// account/ann 1 {"cents":70}
	// account/bob 1 {"cents":30}
	// <nil>
}
