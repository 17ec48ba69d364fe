package cursor_test

import (
	"fmt"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// A store writes the position of the last record of a page into Page.Next, and starts the next page
// after it.
func Example() {
	q := persist.Query{Kind: "order"}
	last := persist.Record{Key: persist.Key{Kind: "order", ID: "17"}}
	page := persist.Page{Records: []persist.Record{last}, Next: cursor.Of(q, last).String()}

	q.After = page.Next
	after, err := cursor.Parse(q)
	fmt.Println(after.Kind, after.ID, err)
	q.After = "something else"
	_, err = cursor.Parse(q)
	fmt.Println(err)
	// Output:
	// order 17 <nil>
	// persist: Query.After is not the Next of a page
}
