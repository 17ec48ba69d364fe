package inspect_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// byAda names the author of all requests.
func byAda(*http.Request) string { return "ada" }

var hidden = regexp.MustCompile(`name="(\w+)" value="([^"]*)"`)

// confirm opens the page that confirms an action, and returns its form.
func (s *site) confirm(address string) url.Values {
	s.t.Helper()
	form := url.Values{}
	for _, found := range hidden.FindAllStringSubmatch(s.get(address).body, -1) {
		form.Set(found[1], html.UnescapeString(found[2]))
	}
	require.NotEmpty(s.t, form.Get("forgery"))
	return form
}

// do confirms an action and does it.
func (s *site) do(address string) answer {
	s.t.Helper()
	return s.send("POST", address, s.confirm(address), "Sec-Fetch-Site", "same-origin")
}

// alive reports whether a note exists.
func alive(t testing.TB, rt *pawl.Runtime, id string) bool {
	t.Helper()
	snap, err := notes.Scope(rt, id).Snapshot(t.Context())
	require.NoError(t, err)
	return snap.Exists()
}

const deleteA = "act?action=delete&id=a&kind=note"

// A document is deleted after a confirmation, at the version that was shown, and the log says by whom.
//
// Proves INSPECT-1.
func TestDelete(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		s := serve(t, rt, inspect.Config{Actions: []string{inspect.ActDelete}, Author: byAda})
		set(t, rt, "a", note{Title: "x"})
		require.Equal(t, []string{deleteA}, s.get(docOf("a")).links("act?"))
		form := s.confirm(deleteA)
		require.True(t, alive(t, rt, "a"), "a confirmation changes nothing")
		set(t, rt, "a", note{Title: "y"})
		require.Equal(t, 409, s.send("POST", deleteA, form).status, "the version has moved")
		require.True(t, alive(t, rt, "a"))
		done := s.do(deleteA)
		require.Equal(t, http.StatusSeeOther, done.status)
		require.Equal(t, "doc?id=a&kind=note", done.header.Get("Location"))
		require.False(t, alive(t, rt, "a"))
		require.Contains(t, s.log.String(), `msg="inspect: action" action=delete view="" scope=note/a version=2 author=ada`)
		require.Equal(t, 409, s.send("GET", deleteA, nil).status, "it is gone")
		require.Empty(t, s.get(docOf("a")).links("act?"))
	})
}

// The runtime does not learn a kind by a page: the program may define it later.
func TestDeleteOfUnknownKind(t *testing.T) {
	rt := inMemory(t)
	s := serve(t, rt, inspect.Config{Actions: []string{inspect.ActDelete}, Author: byAda})
	put(t, rt, persist.Write{Key: pawl.Key{Kind: "later", ID: "a"}, Doc: raw(t, note{})})
	require.Empty(t, s.get("doc?kind=later&id=a").links("act?"))
	require.Equal(t, 409, s.send("GET", "act?action=delete&kind=later&id=a", nil).status)
	require.Len(t, rt.Kinds(), 1)
}

// A lease is ended at once; its holder cannot commit any more. A newer lease is left alone.
//
// Proves INSPECT-1.
func TestRelease(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		s := serve(t, rt, inspect.Config{Actions: []string{inspect.ActRelease}, Author: byAda})
		const address = "act?action=release&kind=note&id=a"
		set(t, rt, "a", note{})
		require.Equal(t, 409, s.send("GET", address, nil).status, "there is no lease")
		lease, err := notes.Scope(rt, "a").Acquire(t.Context())
		require.NoError(t, err)
		old := s.confirm(address)
		require.Equal(t, http.StatusSeeOther, s.do(address).status)
		_, err = notes.Scope(rt, "a").IncState(lease.Context(), "n", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		_, err = notes.Scope(rt, "a").Acquire(t.Context())
		require.NoError(t, err)
		require.Equal(t, 403, s.send("POST", address, old).status, "the token of that page was replaced")
		now := s.confirm(address)
		now.Set("pin", old.Get("pin"))
		require.Equal(t, 409, s.send("POST", address, now).status, "it is another lease")
		require.NotEmpty(t, rt.Stats().Leases)
	})
}

// A request that does not come from the page that confirms it does nothing.
//
// Proves INSPECT-1.
func TestForgedRequests(t *testing.T) {
	rt := inMemory(t)
	set(t, rt, "a", note{})
	s := serve(t, rt, inspect.Config{Actions: []string{inspect.ActDelete}, Author: byAda})
	form := s.confirm(deleteA)
	without := func(name string) url.Values {
		f := url.Values{"forgery": form["forgery"], "pin": form["pin"]}
		f.Del(name)
		return f
	}
	require.Equal(t, 403, s.send("POST", deleteA, nil).status)
	require.Equal(t, 403, s.send("POST", deleteA, without("forgery")).status)
	require.Equal(t, 409, s.send("POST", deleteA, without("pin")).status)
	require.Equal(t, 403, s.send("POST", deleteA, form, "Sec-Fetch-Site", "cross-site").status)
	require.Equal(t, 403, s.send("POST", deleteA, form, "Origin", "https://evil.example").status)
	require.Equal(t, 403, s.send("POST", deleteA+"&forgery="+form.Get("forgery"), without("forgery")).status, "a link is no form")
	other := serve(t, rt, inspect.Config{Actions: []string{inspect.ActDelete}, Author: byAda})
	require.Equal(t, 403, other.send("POST", deleteA, form).status, "without the cookie")
	require.Equal(t, 403, other.send("POST", deleteA, form, "Cookie", "pawl-inspect=").status)
	form.Set("more", string(make([]byte, 1<<20)))
	require.Equal(t, 403, s.send("POST", deleteA, form).status, "a form that is too large")
	require.True(t, alive(t, rt, "a"))
	for _, cookie := range s.send("GET", deleteA, nil).header.Values("Set-Cookie") {
		require.Contains(t, cookie, "HttpOnly")
		require.Contains(t, cookie, "SameSite=Strict")
	}
}

// Actions are off, and their links are not shown, unless the configuration names them and the author
// is known.
//
// Proves INSPECT-1.
func TestActionsAreOff(t *testing.T) {
	rt := inMemory(t)
	set(t, rt, "a", note{})
	for _, c := range []inspect.Config{{}, {Actions: []string{inspect.ActRelease}, Author: byAda}} {
		s := serve(t, rt, c)
		require.Empty(t, s.get(docOf("a")).links("act?"))
		require.Equal(t, 403, s.send("GET", deleteA, nil).status)
		require.Equal(t, 403, s.send("POST", deleteA, nil).status)
	}
	s := serve(t, rt, inspect.Config{Actions: []string{inspect.ActDelete}, Author: func(*http.Request) string { return "" }})
	require.Equal(t, 403, s.send("GET", deleteA, nil).status)
}

// custom returns a view of notes with one action.
func custom(do func(context.Context, persist.Record) error) inspect.View {
	return inspect.View{Name: "notes", Query: persist.Query{Kind: "note"}, Columns: []string{"Title"},
		Row:     func(_ context.Context, r inspect.Record) ([]string, error) { return []string{r.Text("title")}, nil },
		Actions: []inspect.Action{{Name: "poke", Do: do}}}
}

// An action that fails says whether anything was done, and is logged.
func TestActionFails(t *testing.T) {
	rt := inMemory(t)
	set(t, rt, "a", note{Title: "lamp"})
	put(t, rt, persist.Write{Key: pawl.Key{Kind: "other", ID: "a"}, Doc: raw(t, note{})})
	const address = "act?action=poke&view=notes&kind=note&id=a"
	for _, test := range []struct {
		err    error
		status int
		text   string
	}{
		{nil, http.StatusSeeOther, ""},
		{pawl.ErrNotFound, 404, "Nothing was done"},
		{&pawl.UnknownOutcomeError{Cause: errors.New("tiger")}, 500, "may have been done, or not"},
		{errors.New("tiger"), 503, "The action failed: INTERNAL"},
	} {
		s := serve(t, rt, inspect.Config{Views: []inspect.View{custom(func(context.Context, persist.Record) error { return test.err })}, Actions: []string{"poke"}, Author: byAda})
		require.Len(t, s.get("view?name=notes").links("act?"), 1)
		a := s.do(address)
		require.Equal(t, test.status, a.status)
		require.Contains(t, a.text(), test.text)
		require.NotContains(t, a.body, "tiger")
		require.Contains(t, s.log.String(), "author=ada")
		require.Equal(t, 404, s.send("GET", "act?action=poke&view=notes&kind=other&id=a", nil).status, "a view acts on its kind only")
		require.Equal(t, 404, s.send("GET", "act?action=poke&kind=note&id=a", nil).status)
	}
}

// An action of a view is done on no document that the view leaves out.
//
// Proves INSPECT-1.
func TestActionOutsideItsView(t *testing.T) {
	rt := inMemory(t)
	set(t, rt, "eu/1", note{Title: "lamp"})
	set(t, rt, "us/1", note{Title: "lamp"})
	done := 0
	v := custom(func(context.Context, persist.Record) error { done++; return nil })
	narrow := []func(*inspect.View){
		func(v *inspect.View) { v.Query.Prefix = "eu/" },
		func(v *inspect.View) { v.Query.From, v.Query.Before = "eu", "ev" },
		func(v *inspect.View) { v.Keep = func(r persist.Record) bool { return r.ID == "eu/1" } },
		func(v *inspect.View) { v.Query.Labels = []string{"eu"} },
	}
	for i, change := range narrow {
		view := v
		change(&view)
		s := serve(t, rt, inspect.Config{Views: []inspect.View{view}, Actions: []string{"poke"}, Author: byAda})
		require.Equal(t, 409, s.send("GET", "act?action=poke&view=notes&kind=note&id=us%2F1", nil).status)
		if i < 3 {
			require.Equal(t, http.StatusSeeOther, s.do("act?action=poke&view=notes&kind=note&id=eu%2F1").status)
		}
	}
	require.Equal(t, 3, done)
}

// New refuses a configuration that cannot be meant.
func TestNewPanics(t *testing.T) {
	rt := inMemory(t)
	ok := custom(func(context.Context, persist.Record) error { return nil })
	twice := ok
	twice.Actions = append(twice.Actions, twice.Actions...)
	for name, f := range map[string]func(){
		"runtime":        func() { inspect.New(nil, inspect.Config{}) },
		"empty view":     func() { inspect.New(rt, inspect.Config{Views: []inspect.View{{}}}) },
		"same view":      func() { inspect.New(rt, inspect.Config{Views: []inspect.View{ok, ok}}) },
		"same action":    func() { inspect.New(rt, inspect.Config{Views: []inspect.View{twice}}) },
		"unknown action": func() { inspect.New(rt, inspect.Config{Actions: []string{"poke"}, Author: byAda}) },
		"no author":      func() { inspect.New(rt, inspect.Config{Actions: []string{inspect.ActDelete}}) },
	} {
		require.Panics(t, f, name)
	}
	require.NotPanics(t, func() {
		inspect.New(rt, inspect.Config{Views: []inspect.View{ok}, Actions: []string{"poke"}, Author: byAda})
	})
}

// stick leaves a stuck function in an in-memory scope. It ends with release, or with the test.
func stick(t testing.TB, rt *pawl.Runtime, id string) (release func()) {
	t.Helper()
	ctx, release := context.WithCancel(context.Background())
	t.Cleanup(release)
	var ran atomic.Bool
	for budget := time.Millisecond; !ran.Load(); budget *= 2 { // until the function starts within it
		_, err := pawl.Memory[note](rt, id).AtomicState(t.Context(), func(context.Context, *note) error { ran.Store(true); <-ctx.Done(); return nil }, pawl.WithTimeout(budget))
		require.ErrorIs(t, err, pawl.ErrTimeout)
	}
	testkit.Eventually(t, func() bool {
		return slices.ContainsFunc(rt.Stats().Queues, func(q pawl.QueueStats) bool { return q.Scope.ID == id && len(q.Running) == 1 && q.Running[0].Stuck })
	}, "the function is beyond its budget")
	return release
}

// A stuck function is given up after a confirmation, and the scope goes on.
//
// Proves INSPECT-1.
func TestAbandon(t *testing.T) {
	rt := inMemory(t)
	s := serve(t, rt, inspect.Config{Actions: []string{inspect.ActAbandon}, Author: byAda})
	set(t, rt, "a", note{})
	require.Empty(t, s.get(docOf("a")).links("act?"), "a document is not a function")
	require.Equal(t, 409, s.send("GET", "act?action=abandon&kind=note&id=a", nil).status)
	stick(t, rt, "<stuck>")
	address := s.get("queues").links("act?")[0]
	require.Contains(t, s.get(address).text(), "Function Atomic")
	require.Equal(t, 403, s.send("POST", address, nil).status)
	require.Equal(t, 409, s.send("GET", address+"1", nil).status, "another moment")
	require.Len(t, rt.Stats().Queues, 1)
	form := s.confirm(address)
	done := s.send("POST", address, form)
	require.Equal(t, http.StatusSeeOther, done.status)
	require.Equal(t, "queues", done.header.Get("Location"))
	require.Empty(t, rt.Stats().Queues)
	require.Contains(t, s.log.String(), `msg="inspect: action" action=abandon scope=memory/<stuck>`)
	require.Contains(t, s.log.String(), `author=ada`)
	require.Equal(t, 409, s.send("POST", address, form).status, "it is given up already")

	off := serve(t, rt, inspect.Config{})
	stick(t, rt, "b")
	require.Empty(t, off.get("queues").links("act?"))
	require.Contains(t, off.get("queues").text(), "stuck")
}

// A client that sends its form slowly is answered after Config.Timeout, and nothing is done.
//
// Proves INSPECT-1.
func TestSlowForm(t *testing.T) {
	rt := inMemory(t)
	set(t, rt, "a", note{})
	s := serve(t, rt, inspect.Config{Actions: []string{inspect.ActDelete}, Author: byAda, Timeout: 100 * time.Millisecond})
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(testkit.Patience)))
	_, err = fmt.Fprintf(conn, "POST /pawl/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nforgery=", deleteA)
	require.NoError(t, err)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, 403, res.StatusCode)
	require.True(t, alive(t, rt, "a"))
}

// Only the last segment of a path counts, and no path leads out of the embedded files.
//
// Proves INSPECT-2.
func TestPaths(t *testing.T) {
	rt := inMemory(t)
	set(t, rt, "a", note{})
	s := serve(t, rt, inspect.Config{})
	for path, status := range map[string]int{
		"x/y/style.css": 200, "..%2fstyle.css": 400, "assets%2fapp.js": 200, "%2e%2e%2finspect.go": 404, "layout.html": 404,
		"style.css%00": 404, "doc%2f": 200, "kind%3fkind=note": 404, "%2f%2fevil.example%2f": 200, "act%2f..%2fdoc?kind=note&id=a": 200,
	} {
		a := s.send("GET", path, nil)
		require.Equal(t, status, a.status, path)
		require.NotContains(t, a.body, "{{", path)
		require.NotContains(t, a.body, "package inspect", path)
	}
}
