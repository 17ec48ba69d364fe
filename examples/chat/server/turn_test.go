package server

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// scripted is a model that returns the deltas of says for the number of steps so far.
type scripted struct {
	asked atomic.Int64
	says  func(steps int) []Delta
}

func (m *scripted) Answer(ctx context.Context, p Prompt) iter.Seq2[Delta, error] {
	m.asked.Add(1)
	return func(yield func(Delta, error) bool) {
		for _, d := range m.says(len(p.Steps)) {
			if !yield(d, nil) {
				return
			}
		}
	}
}

// calling returns a delta with one tool call.
func calling(name, args string) Delta { return Delta{Call: &Call{Name: name, Args: args}} }

// A turn that no document can hold fails, and its credit is returned. The next question is
// answered.
func TestTooLargeForADocument(t *testing.T) {
	large := strings.Repeat("x", pawl.DefaultMaxDoc*6/10)
	for name, deltas := range map[string][]Delta{
		"text at once":       {{Text: large + large}},
		"text that grows":    {{Text: large}, {Text: large}, {Text: large}},
		"escaped characters": {{Text: strings.Repeat("\x01", pawl.DefaultMaxDoc/4)}},
		"arguments":          {{Text: "so "}, calling("search", `{"queries":["`+large+large+`"]}`)},
		"tool name":          {calling(large, `{}`)},
		"search terms":       {calling("search", `{"queries":["`+large[:pawl.DefaultMaxDoc*4/10]+`"]}`)},
		"a receiver":         {calling("transfer", `{"to":"`+large+`","credits":1}`)},
		"a mail":             {calling("send_email", `{"to":"bob","text":"`+large+`"}`), calling("send_email", `{"to":"bob","text":"`+large+`"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, filepath.Join(t.TempDir(), "chat.db"), func(c *Config) { c.Lease = 10 * time.Second })
			model := &scripted{says: func(steps int) []Delta {
				if steps > 0 {
					return []Delta{{Text: "done"}}
				}
				return deltas
			}}
			s.model = model
			u := visit(t, s.url)
			session := u.newSession(s.url)
			u.ask(s.url, session, "hello")
			th := u.settled(s.url, session)
			require.LessOrEqual(t, model.asked.Load(), int64(2), "the model was asked too often")
			left := freeCredits - 1
			if th.Messages[1].Status == failed {
				left++
			}
			require.EqualValues(t, left, get[me](u, s.url+"/api/me").Credits)
			s.model = local{}
			u.ask(s.url, session, "count to 3")
			require.Equal(t, count(3), u.settled(s.url, session).Messages[3].Text)
		})
	}
}

// U+0000, which PostgreSQL cannot keep in a document, is refused in every field of a document, from
// users and from the model. No turn hangs, and no request is told to try again. An event can have it.
func TestCharactersThatStoresRefuse(t *testing.T) {
	onStores(t, func(t *testing.T, location string) {
		s := start(t, location)
		u := visit(t, s.url)
		session := u.newSession(s.url)
		for _, try := range [][3]string{
			{"POST", "/api/sessions/" + session + "/messages", `{"text":"a\u0000b"}`},
			{"PATCH", "/api/sessions/" + session, `{"title":"a\u0000b"}`},
			{"PUT", "/api/settings/name", `{"value":"a\u0000b"}`},
		} {
			status, body, _ := u.call(try[0], s.url+try[1], try[2])
			require.Equal(t, http.StatusUnprocessableEntity, status, "%v: %s", try, body)
		}
		for i, deltas := range [][]Delta{
			{{Text: "a\x00b"}}, // no text to show
			{calling("a\x00b", `{}`)},
			{calling("transfer", `{"to":"a\u0000b","credits":1}`)},
			{calling("transfer", `{"to":"","credits":1}`)},
			{calling("send_email", `{"to":"a\u0000b","text":"x"}`)},
			{calling("send_email", `{"to":"bob","text":"a\u0000b"}`)},
			{calling("search", `{"queries":["a\u0000b", ""]}`)},
			{calling("search", `{"queries":["", "`+strings.Repeat("x", 5000)+`"]}`)},
			{calling("charge_card", `{"amount":1e400}`), calling("search", strings.Repeat("[", 20000)), calling("x", "null")},
		} {
			s.model = &scripted{says: func(steps int) []Delta {
				if steps > 0 {
					return []Delta{{Text: "done"}}
				}
				return deltas
			}}
			u.ask(s.url, session, "hello")
			th := u.settled(s.url, session)
			want := done
			if i < 2 {
				want = failed
			}
			require.Equal(t, want, th.Messages[len(th.Messages)-1].Status, "%d", i)
		}
		s.model = local{}
		u.ask(s.url, session, "a\x00b") // the session has a title, so the text is only in an event
		th := u.settled(s.url, session)
		require.Equal(t, "a\x00b", th.Messages[len(th.Messages)-2].Text)
		require.Equal(t, done, th.Messages[len(th.Messages)-1].Status)
	})
}

// An accepted question does not expire before it is answered. Its turn expires afterwards.
func TestOpenTurnDoesNotExpire(t *testing.T) {
	onStores(t, func(t *testing.T, location string) {
		a := start(t, location)
		u := visit(t, a.url)
		session := u.newSession(a.url)
		turn := u.ask(a.url, session, "count to 3000")
		u.watch(a.url, turn, func(v turnView) bool { return len(v.Text) > 20 })
		require.NoError(t, a.end(time.Millisecond))

		b := start(t, location, func(c *Config) { c.Delay = 0 })
		record := func() persist.Record {
			r, err := b.rt.Store().Load(t.Context(), Turns.Scope(b.rt, turn).Key())
			require.NoError(t, err)
			return r
		}
		require.Zero(t, record().Expires, "an open turn must not expire")
		u.copyCookies(a.url, b.url)
		u.settled(b.url, session)
		require.NotZero(t, record().Expires)
	})
}

// A server is killed after the bank captured a charge, and the user stops the turn. The captured
// charge is credited, and a charge that had not started is not made.
func TestStopAfterTheBankWasAsked(t *testing.T) {
	onStores(t, func(t *testing.T, location string) {
		s := start(t, location)
		u := visit(t, s.url)
		session, user := u.newSession(s.url), get[me](u, s.url+"/api/me").User
		// The state that the killed server leaves behind.
		ids := flow.IDs{Request: "turn", Session: session, User: user, Org: orgOfGuests}
		call := func(i, amount int) Call {
			return Call{ID: fmt.Sprint("turn-0-", i), Name: "charge_card", Args: fmt.Sprintf(`{"amount":%d}`, amount)}
		}
		require.NoError(t, s.capture(t.Context(), user+"/turn-0-0", 7))
		for i, status := range []string{"new", "charging"} {
			_, err := Charges.Scope(s.rt, user+"/turn-0-0").SetState(t.Context(), Charge{User: user, Amount: 7, Status: status}, pawl.IfVersion(uint64(i)))
			require.NoError(t, err)
		}
		require.NoError(t, pawl.Transact(t.Context(), s.rt, func(ctx context.Context, tx *pawl.Tx) error {
			if _, err := Sessions.Scope(tx, session).SetState(ctx, Session{Owner: user, Turns: 1, Open: []OpenTurn{{"turn", 0}}}); err != nil {
				return err
			}
			_, err := Turns.Scope(tx, "turn").SetState(ctx, Turn{For: ids, Status: answering, Stop: true, Steps: []Step{{Calls: []Call{call(0, 7), call(1, 50)}}}})
			return err
		}))
		th := u.settled(s.url, session)
		require.Equal(t, stopped, th.Messages[0].Status)
		require.EqualValues(t, freeCredits+7, get[me](u, s.url+"/api/me").Credits)
		other, err := Charges.Scope(s.rt, user+"/turn-0-1").Snapshot(t.Context())
		require.NoError(t, err)
		require.False(t, other.Exists())
	})
}

// A turn whose charge loses its claim, but not its lease, is resumed. The charge is captured under
// one reference and credited once.
func TestClaimLostWhileTheBankIsAsked(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"), func(c *Config) { c.Delay = 50 * time.Millisecond })
	u := visit(t, s.url)
	session, user := u.newSession(s.url), get[me](u, s.url+"/api/me").User
	turn := u.ask(s.url, session, "charge 7")
	charge := Charges.Scope(s.rt, user+"/"+turn+"-0-0")
	testkit.EventuallyWithin(t, time.Minute, func() bool {
		_, err := charge.AtomicState(t.Context(), func(_ context.Context, ch *Charge) error {
			if ch.Status != "charging" {
				return pawl.ErrNotFound
			}
			ch.Status = "new"
			return nil
		}, pawl.IfExists())
		return err == nil
	})
	th := u.settled(s.url, session)
	require.Equal(t, done, th.Messages[1].Status)
	require.EqualValues(t, freeCredits-1+7, get[me](u, s.url+"/api/me").Credits)
}

// A stopped server leaves no connection to the model's service open.
func TestStopClosesModelConnections(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		emit(w, textEvent("Hello.")+finishEvent("stop")+doneEvent)
	}))
	defer service.Close()
	before := goleak.IgnoreCurrent()
	s := start(t, filepath.Join(t.TempDir(), "chat.db"), func(c *Config) { c.Model = newModel(t, service.URL) })
	u := visit(t, s.url)
	session := u.newSession(s.url)
	u.ask(s.url, session, "hello")
	require.Equal(t, "Hello.", u.settled(s.url, session).Messages[1].Text)
	require.NoError(t, s.end(time.Minute))
	u.client.CloseIdleConnections()
	require.NoError(t, goleak.Find(before))
}

// A request that fails with a conflict is told to retry. The retry runs again instead of replaying
// the stored refusal.
func TestConflictIsNotReplayed(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"))
	u := visit(t, s.url)
	first := true
	crowded := httptest.NewServer(s.known(s.keys.Middleware(handler(func(w http.ResponseWriter, r *http.Request) error {
		if first {
			first = false
			return &pawl.ConcurrentModificationError{}
		}
		return respond(w, http.StatusAccepted, "yes")
	}))))
	defer crowded.Close()
	u.copyCookies(s.url, crowded.URL)
	status, _, header := u.call("POST", crowded.URL+"/api/x", "", "Idempotency-Key", "one")
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, "1", header.Get("Retry-After"))
	status, body, _ := u.call("POST", crowded.URL+"/api/x", "", "Idempotency-Key", "one")
	require.Equal(t, http.StatusAccepted, status, body)
}

// A turn that has failed on too many servers ends as failed, and its credit is returned.
func TestTurnThatKillsItsServers(t *testing.T) {
	location := filepath.Join(t.TempDir(), "chat.db")
	a := start(t, location, func(c *Config) { c.Delay = time.Minute })
	u := visit(t, a.url)
	session := u.newSession(a.url)
	turn := u.ask(a.url, session, "hello")
	u.watch(a.url, turn, func(v turnView) bool { return v.Status == answering })
	_, err := Turns.Scope(a.rt, turn).PatchState(t.Context(), pawl.Patch{"tries": maxTries})
	require.NoError(t, err)
	require.NoError(t, a.end(time.Millisecond))
	b := start(t, location)
	u.copyCookies(a.url, b.url)
	th := u.settled(b.url, session)
	require.Equal(t, failed, th.Messages[1].Status)
	require.EqualValues(t, freeCredits, get[me](u, b.url+"/api/me").Credits)
}
