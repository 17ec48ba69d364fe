package document_test

import (
	"fmt"
	"reflect"
	"time"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/state"
	"github.com/pawl-go/pawl/persist"
)

// An older release, whose type has no field "email", changes a document and keeps that field.
func ExampleDraft() {
	type user struct {
		Visits int `json:"visits"`
	}
	users, _ := state.Of(reflect.TypeFor[user]())
	key := persist.Key{Kind: "user", ID: "ann"}
	base := document.Of(persist.Record{Key: key, Version: 7, Updated: time.Now(), Doc: []byte(`{"visits":1,"email":"ann@example.com"}`)})

	view, _ := document.Decode(users, base.Raw)
	draft := document.NewDraft(base)
	draft.Replace(view, users, &user{Visits: view.State.(*user).Visits + 1}, 0)
	w, _, _ := draft.Write(key, 0, 1<<20)

	fmt.Printf("%d -> %d: %s\n", w.Expected, w.Version, w.Doc)
	// Output: 7 -> 8: {"email":"ann@example.com","visits":2}
}
