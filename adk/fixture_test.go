package adk_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

const (
	appName = "shop"
	userID  = "ann"
)

var policies = map[string]adk.Config{"WholeSession": {}, "ByKey": {Policy: adk.ByKey}}

// open returns a service on the store at a location. Two of them behave like two processes.
func open(t testing.TB, location string, c adk.Config) *adk.Service {
	t.Helper()
	return openOn(t, stores.OpenFor(t, location), c, pawl.Config{})
}

// openOn returns a service on a store. Pc holds further settings of the runtime.
func openOn(t testing.TB, store persist.Store, c adk.Config, pc pawl.Config) *adk.Service {
	t.Helper()
	pc.Store, pc.Kinds = store, adk.Kinds()
	rt, err := pawl.Open(pc)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(testkit.Within(t, testkit.Patience))) })
	s, err := adk.New(rt, c)
	require.NoError(t, err)
	return s
}

// each runs test on every store.
func each(t *testing.T, c adk.Config, test func(t *testing.T, s *adk.Service)) {
	t.Helper()
	stores.Each(t, func(t *testing.T, location string) { test(t, open(t, location, c)) })
}

func create(t testing.TB, s session.Service, id string, state map[string]any) session.Session {
	t.Helper()
	return createFor(t, s, userID, id, state)
}

func createFor(t testing.TB, s session.Service, user, id string, state map[string]any) session.Session {
	t.Helper()
	r, err := s.Create(t.Context(), &session.CreateRequest{AppName: appName, UserID: user, SessionID: id, State: state})
	require.NoError(t, err)
	return r.Session
}

func get(t testing.TB, s session.Service, id string) session.Session {
	t.Helper()
	return getBy(t, s, &session.GetRequest{SessionID: id})
}

// getBy completes a request by the names of the app and of the user.
func getBy(t testing.TB, s session.Service, req *session.GetRequest) session.Session {
	t.Helper()
	req.AppName = appName
	if req.UserID == "" {
		req.UserID = userID
	}
	r, err := s.Get(t.Context(), req)
	require.NoError(t, err)
	return r.Session
}

func remove(t testing.TB, s session.Service, id string) {
	t.Helper()
	require.NoError(t, s.Delete(t.Context(), &session.DeleteRequest{AppName: appName, UserID: userID, SessionID: id}))
}

// event returns an event with a state delta.
func event(id string, delta map[string]any) *session.Event {
	e := session.NewEvent(context.Background(), "invocation")
	e.ID, e.Author, e.Actions.StateDelta = id, "tool", delta
	return e
}

// smallDocs is a limit of documents with which an event of a kilobyte is stored in pieces.
const smallDocs = 4096

// inEntries returns an event that takes at least n entries with smallDocs.
func inEntries(id string, n int) *session.Event {
	e := event(id, nil)
	e.Content = genai.NewContentFromText(strings.Repeat("x", n*smallDocs/4), "user")
	return e
}

func appendTo(t testing.TB, s session.Service, on session.Session, e *session.Event) {
	t.Helper()
	require.NoError(t, s.AppendEvent(t.Context(), on, e))
}

// ids returns the ids of the events of a session.
func ids(s session.Session) []string {
	all := []string{}
	for e := range s.Events().All() {
		all = append(all, e.ID)
	}
	return all
}

// state returns the state of a session.
func state(s session.Session) map[string]any {
	all := map[string]any{}
	for k, v := range s.State().All() {
		all[k] = v
	}
	return all
}

// at is a time with a number of seconds, for events in an order.
func at(second int) time.Time { return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC) }
