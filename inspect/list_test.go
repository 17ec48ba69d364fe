package inspect_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// fill writes n notes with three statuses, in a few commits.
func fill(t *testing.T, rt *pawl.Runtime, n int) (ids []string) {
	t.Helper()
	var c persist.Commit
	for i := range n {
		status := []string{"open", "done", "lost"}[i%3]
		key := pawl.Key{Kind: "note", ID: fmt.Sprintf("n-%04d", i)}
		ids = append(ids, key.ID)
		c.Writes = append(c.Writes, persist.Write{Key: key, Version: 1, Doc: raw(t, note{Title: "t", Status: status}), Label: status})
		if len(c.Writes) == 200 || i == n-1 {
			c.ID = fmt.Sprintf("fill.%d", i)
			_, err := rt.Store().Commit(t.Context(), c)
			require.NoError(t, err)
			c = persist.Commit{}
		}
	}
	return ids
}

// walk returns the ids of all pages of a list.
func walk(t *testing.T, s *site, address string) (ids []string) {
	t.Helper()
	for range 100 {
		page := s.get(address)
		ids = append(ids, page.ids(t)...)
		next := []string{}
		for _, link := range append(page.links("kind?"), page.links("view?")...) {
			if strings.Contains(link, "after=") {
				next = append(next, link)
			}
		}
		if len(next) == 0 {
			return ids
		}
		require.Len(t, next, 1)
		address = next[0]
	}
	t.Fatal("the list does not end")
	return nil
}

// The pages of a list have every document once, in order, and every filter works on every store.
func TestList(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		ids, s := fill(t, rt, 130), serve(t, rt, inspect.Config{})
		require.Contains(t, s.get("").text(), "note more than 100")
		require.Equal(t, ids, walk(t, s, "kind?kind=note"))
		require.Equal(t, ids[120:], walk(t, s, "kind?kind=note&prefix=n-012"))
		require.Equal(t, ids[126:], walk(t, s, "kind?kind=note&from=n-0126"))
		require.Len(t, walk(t, s, "kind?kind=note&label=done"), 43)
		require.Equal(t, ids[129], walk(t, s, "kind?kind=note&reverse=1")[0])
		require.Empty(t, walk(t, s, "kind?kind=nothing"))
		require.Empty(t, walk(t, s, "kind?kind=note&state=due"))

		due := notes.Scope(rt, "due")
		_, err := due.SetState(t.Context(), note{Due: time.Unix(1, 0)})
		require.NoError(t, err)
		require.Equal(t, []string{"due"}, walk(t, s, "kind?kind=note&state=due"))
		require.NoError(t, due.Delete(t.Context()))
		require.Equal(t, []string{"due"}, walk(t, s, "kind?kind=note&state=deleted"))
		lease, err := notes.Scope(rt, ids[125]).Acquire(t.Context(), pawl.HeldBy("worker 9"))
		require.NoError(t, err)
		defer lease.Release(t.Context())
		require.Equal(t, ids[125:126], walk(t, s, "kind?kind=note&state=held"))
		require.Contains(t, s.get("kind?kind=note&state=held").text(), "worker 9")
		set(t, rt, "brief", note{}, pawl.WithTTL(time.Microsecond))
		require.Equal(t, []string{"brief"}, walk(t, s, "kind?kind=note&state=expired"))
	})
}

// A page reads a bounded number of records, and never those of all kinds.
//
// Proves INSPECT-4.
func TestListIsBounded(t *testing.T) {
	store := &recorded{Store: stores.OpenFor(t, stores.SQLite.New(t))}
	rt := openOn(t, store)
	fill(t, rt, 1300)
	s := serve(t, rt, inspect.Config{Views: []inspect.View{inspect.Calls("note", nil)}})
	for _, address := range []string{"", "kind?kind=note", "kind?kind=note&state=held", "kind?kind=note&state=due", "kind?kind=note&state=expired", "kind?kind=note&label=done", "view?name=calls-note"} {
		store.queries = nil
		page := s.get(address)
		require.NotEmpty(t, store.queries, address)
		read := 0
		for _, q := range store.queries {
			require.NotEmpty(t, q.Kind, address)
			require.Positive(t, q.Limit, address)
			read += q.Limit
		}
		require.LessOrEqual(t, read, 1000, address)
		if strings.Contains(address, "held") {
			require.Contains(t, page.text(), "1000 documents were read")
			require.Contains(t, page.text(), "Next page")
		}
	}
}

// Requests that no page can answer get 400 or 404 and a sentence.
func TestBadRequests(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		s := serve(t, rt, inspect.Config{})
		long := strings.Repeat("x", 5000)
		for address, status := range map[string]int{
			"nothing":                             404,
			"kind":                                400,
			"kind?kind=":                          400,
			"kind?kind=note&kind=other":           400,
			"kind?kind=%ff":                       400,
			"kind?kind=a%00b":                     400,
			"kind?kind=" + long:                   400,
			"kind?kind=note&state=odd":            400,
			"kind?kind=note&after=odd":            400,
			"kind?kind=note&state=due&after=bm8=": 400,
			"doc":                                 400,
			"doc?kind=note&id=%ff":                400,
			"doc?kind=note&id=%00":                400,
			"doc?kind=note&id=" + long:            400,
			"doc?kind=note&id=absent":             404,
			"raw?kind=note&id=absent":             404,
			"live?kind=note&id=%ff":               400,
			"live?kind=note&id=%01":               400,
			"view":                                404,
			"view?name=odd":                       404,
			"act":                                 404,
			"act?action=delete&kind=note&id=a":    403,
		} {
			a := s.send("GET", address, nil)
			require.Equal(t, status, a.status, "%.80s: %s", address, a.text())
		}
		require.Equal(t, 405, s.send("POST", "", nil).status)
		require.Equal(t, 405, s.send("DELETE", "act", nil).status)
		require.Equal(t, 405, s.send("POST", "live?kind=note&id=a", nil).status)
		require.Empty(t, rt.Stats().Watchers)
	})
}

// A store that is down is a page that says so, without details; they are logged.
func TestStoreIsDown(t *testing.T) {
	store := &recorded{Store: stores.OpenFor(t, stores.Memory.New(t))}
	rt := openOn(t, store)
	set(t, rt, "a", note{})
	s := serve(t, rt, inspect.Config{Views: []inspect.View{inspect.Runs(nil)}, Actions: []string{inspect.ActDelete}, Author: func(*http.Request) string { return "ada" }})
	store.mu.Lock()
	store.down = errors.New("dial tcp 10.0.0.7: user pawl, password tiger")
	store.mu.Unlock()
	for _, address := range []string{"", "kind?kind=note", "kind?kind=note&state=held", docOf("a"), "raw?kind=note&id=a", "view?name=runs", "act?action=delete&kind=note&id=a"} {
		a := s.send("GET", address, nil)
		require.Equal(t, 503, a.status, address)
		require.Contains(t, a.text(), "The store does not answer.")
		require.NotContains(t, a.body, "tiger")
	}
	require.Contains(t, s.log.String(), "tiger")
	require.Equal(t, 200, s.send("GET", "queues", nil).status)
	a := s.send("GET", "live?kind=note&id=a", nil)
	require.Contains(t, a.body, `{"code":"UNAVAILABLE"}`)
	require.NotContains(t, a.body, "tiger")
}

// A closed runtime, and one without a store.
func TestWithoutStore(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	s := serve(t, rt, inspect.Config{})
	_, err = pawl.Memory[note](rt, "a").SetState(t.Context(), note{})
	require.NoError(t, err)
	require.Contains(t, s.get("").text(), "memory in memory")
	require.Equal(t, 404, s.send("GET", "kind?kind=note", nil).status)
	require.Equal(t, 404, s.send("GET", docOf("a"), nil).status)
	require.NoError(t, rt.Close(t.Context()))
	require.Contains(t, s.get("queues").text(), "All queues are idle.")
}

// hostile are ids that break pages that do not escape. The last ones cannot be written by Pawl.
var hostile = []string{
	`<script>alert(1)</script>`, `"'><img src=x onerror=alert(1)>`, `a/b/../c?x=1&y=2#z`, `a b+c%20d`, `\`, `..`, `{{.}}`, "javascript:alert(1)",
	"日本語-ünïcode-😀", "turned \u202e around", strings.Repeat("x", pawl.MaxID), "a\x01\nb\x7f",
}

// Ids and documents of any content are shown as text, and their links lead to them.
//
// Proves INSPECT-2.
func TestHostileContent(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		s := serve(t, rt, inspect.Config{Kinds: []string{`<b>"kind"</b>`}})
		for i, id := range hostile {
			doc := raw(t, map[string]any{"</pre><script>x</script>": id, "n": i, "turned": "\u202e", "deep": map[string]any{"a": []any{id}}})
			put(t, rt, persist.Write{Key: pawl.Key{Kind: "note", ID: id}, Doc: doc, Label: `<img src="x">`})
		}
		first := s.get("")
		require.NotContains(t, first.body, "<b>")
		list := s.get("kind?kind=note")
		require.ElementsMatch(t, hostile, list.ids(t))
		require.NotContains(t, list.body, "\u202e")
		for _, link := range list.links("doc?") {
			u, err := url.Parse(link)
			require.NoError(t, err)
			page := s.get(link)
			for _, part := range []string{"<script>", "<img", "onerror=alert(1)>", "\u202e", "\x01"} {
				require.NotContains(t, page.body, part)
			}
			require.Contains(t, page.text(), `\u202e`)
			if id := u.Query().Get("id"); !strings.ContainsAny(id, "\u202e\x01") {
				require.Contains(t, page.text(), id)
				require.Contains(t, page.body, "data-live=\"live?")
			}
			require.Equal(t, "attachment; filename=\"document.json\"", s.get(page.links("raw?")[0]).header.Get("Content-Disposition"))
		}
	})
}

// Every response forbids what the pages do not need, and the pages need nothing from elsewhere.
//
// Proves INSPECT-2.
func TestHeaders(t *testing.T) {
	rt := inMemory(t)
	set(t, rt, "a", note{})
	s := serve(t, rt, inspect.Config{Views: []inspect.View{inspect.Runs(nil), inspect.Idempotency()}})
	for _, address := range []string{"", "kind?kind=note", docOf("a"), "queues", "view?name=runs", "odd", "style.css", "app.js", "raw?kind=note&id=a"} {
		a := s.send("GET", address, nil)
		require.Contains(t, a.header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'; style-src 'self'", address)
		require.Contains(t, a.header.Get("Content-Security-Policy"), "form-action 'self'; base-uri 'none'; frame-ancestors 'none'", address)
		require.Equal(t, "DENY", a.header.Get("X-Frame-Options"))
		require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"))
		require.Equal(t, "no-referrer", a.header.Get("Referrer-Policy"))
		if !strings.Contains(a.header.Get("Content-Type"), "html") {
			continue
		}
		require.Equal(t, "no-store", a.header.Get("Cache-Control"))
		for _, part := range []string{"<style", " style=", " onclick=", "//", "<script>"} {
			require.NotContains(t, strings.ToLower(a.body), part, address)
		}
		for _, link := range a.links("") {
			require.NotRegexp(t, `^(/|[a-z]+:)`, link)
		}
	}
	require.Contains(t, s.get("style.css").header.Get("Content-Type"), "text/css")
	require.Contains(t, s.get("app.js").header.Get("Content-Type"), "text/javascript")
}
