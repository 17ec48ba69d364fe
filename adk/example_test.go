package adk_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/persist/memory"
	"google.golang.org/adk/v2/session"
)

// A Service takes the place of session.InMemoryService. Two sessions change the credits of one user:
// the one that read an old number is refused.
func Example() {
	ctx := context.Background()
	store := memory.New() // or sqlite.Open, fs.Open, postgres.Open
	defer store.Close()

	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: adk.Kinds()})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(ctx)
	sessions, err := adk.New(rt, adk.Config{}) // for runner.Config.SessionService
	if err != nil {
		log.Fatal(err)
	}

	open := func(id string, state map[string]any) session.Session {
		r, err := sessions.Create(ctx, &session.CreateRequest{AppName: "shop", UserID: "ann", SessionID: id, State: state})
		if err != nil {
			log.Fatal(err)
		}
		return r.Session
	}
	spend := func(s session.Session, amount float64) error {
		credits, err := s.State().Get("user:credits")
		if err != nil {
			return err
		}
		e := session.NewEvent(ctx, "turn")
		e.Actions.StateDelta = map[string]any{"user:credits": credits.(float64) - amount, "user:orders": adk.Inc(1)}
		return sessions.AppendEvent(ctx, s, e)
	}

	open("first", map[string]any{"user:credits": 10})
	phone, laptop := open("phone", nil), open("laptop", nil)
	fmt.Println(spend(phone, 7))
	fmt.Println(errors.Is(spend(laptop, 7), adk.ErrStale)) // it has read 10
	// Output:
	// <nil>
	// true
}
