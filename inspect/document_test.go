package inspect_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// The page of a document shows the record with its metadata, whatever became of it.
func TestDocument(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		s := serve(t, rt, inspect.Config{})
		set(t, rt, "a", note{Title: "lamp", Status: "open", Due: time.Unix(1, 0)}, pawl.WithTTL(100*time.Hour))
		lease, err := notes.Scope(rt, "a").Acquire(t.Context(), pawl.HeldBy("worker 9"), pawl.LeaseFor(time.Hour))
		require.NoError(t, err)
		text := s.get(docOf("a")).text()
		for _, part := range []string{`"title": "lamp"`, "Version 2 (created as 1)", "Label open", "Due 1970-01-01 00:00:01 UTC", ", in 4d3h",
			"Lease worker 9, token 2, for another 59m", "Commits", "note · live"} {
			require.Contains(t, text, part)
		}
		require.JSONEq(t, `{"title":"lamp","status":"open","due":"1970-01-01T00:00:01Z"}`, s.get("raw?kind=note&id=a").body)
		require.NoError(t, lease.Release(t.Context()))
		require.Contains(t, s.get(docOf("a")).text(), "Lease none")

		require.NoError(t, notes.Scope(rt, "a").Delete(t.Context()))
		require.Contains(t, s.get(docOf("a")).text(), "note · deleted")
		set(t, rt, "b", note{}, pawl.WithTTL(time.Microsecond))
		require.Contains(t, s.get(docOf("b")).text(), "note · expired")
		put(t, rt, persist.Write{Key: pawl.Key{Kind: "note", ID: "c"}, Doc: raw(t, pawl.Doc{"future": 1}), Schema: 7})
		require.Contains(t, s.get(docOf("c")).text(), "its schema is 7, and this release knows 0")
		require.Contains(t, s.get(docOf("c")).text(), `"future": 1`)
	})
}

// Numbers are shown as they are, and a large document is cut on its page, not in its file.
func TestLargeDocument(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		s := serve(t, rt, inspect.Config{})
		doc := fmt.Sprintf(`{"big":%q,"n":12345678901234567890123}`, strings.Repeat("é", 400_000))
		put(t, rt, persist.Write{Key: pawl.Key{Kind: "note", ID: "a"}, Doc: json.RawMessage(doc)})
		page := s.get(docOf("a"))
		require.Less(t, len(page.body), 300_000)
		require.Contains(t, page.body, "Only the beginning is shown.")
		require.NotContains(t, page.body, `<span id="cut" hidden`)
		require.Contains(t, s.get("raw?kind=note&id=a").body, "12345678901234567890123")
	})
}

// events reads the live view of a document.
type events struct {
	t     testing.TB
	lines *bufio.Scanner
}

// follow opens the live view at an address.
func (s *site) follow(address string) *events {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	s.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", s.URL+"/pawl/"+address, nil)
	require.NoError(s.t, err)
	res, err := s.client.Do(r)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { cancel(); _ = res.Body.Close() })
	require.Equal(s.t, "text/event-stream", res.Header.Get("Content-Type"))
	require.Contains(s.t, res.Header.Get("Content-Security-Policy"), "default-src 'none'")
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 4<<20)
	return &events{s.t, lines}
}

// shown is what the live view sends.
type shown struct {
	Version uint64
	State   string
	Doc     string
	Changes []struct{ Path, Before, After string }
}

// until returns the event of a version, and its text.
func (e *events) until(version uint64) (out shown, text string) {
	e.t.Helper()
	for e.lines.Scan() {
		data, ok := strings.CutPrefix(e.lines.Text(), "data: ")
		if !ok {
			continue
		}
		out = shown{}
		require.NoError(e.t, json.Unmarshal([]byte(data), &out), data)
		if out.Version >= version {
			return out, data
		}
	}
	e.t.Fatalf("no event: %v", e.lines.Err())
	return out, ""
}

// The live view tells what changed, in this process and in another, and that the document is gone.
func TestLive(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		rt := openOn(t, stores.OpenFor(t, location))
		other := openOn(t, stores.OpenFor(t, location))
		s := serve(t, rt, inspect.Config{})
		set(t, rt, "a", note{Title: "lamp", N: 1})
		page := s.get(docOf("a"))
		at := strings.Index(page.body, `data-live="`) + len(`data-live="`)
		link := strings.ReplaceAll(page.body[at:at+strings.Index(page.body[at:], `"`)], "&amp;", "&")
		live := s.follow(link)
		testkit.Eventually(t, func() bool { return rt.Stats().Watchers == 1 }, "a watcher")
		set(t, rt, "a", note{Title: "lamp", N: 1, Secret: "x"})
		live.until(2) // what the next changes are compared with

		set(t, rt, "a", note{Title: "lamp", N: 2, Secret: "<b>"})
		got, _ := live.until(3)
		require.Equal(t, uint64(3), got.Version)
		require.Equal(t, "live", got.State)
		require.Len(t, got.Changes, 2)
		require.Equal(t, struct{ Path, Before, After string }{"n", "1", "2"}, got.Changes[0])
		require.Equal(t, struct{ Path, Before, After string }{"secret", `"x"`, `"<b>"`}, got.Changes[1])
		set(t, other, "a", note{Title: "chair", N: 2, Secret: "<b>"})
		got, _ = live.until(4)
		require.Equal(t, struct{ Path, Before, After string }{"title", `"lamp"`, `"chair"`}, got.Changes[0])
		require.NoError(t, notes.Scope(other, "a").Delete(t.Context()))
		got, _ = live.until(5)
		require.Equal(t, "deleted", got.State)
	})
}

// The live view follows a document that does not exist yet, of a kind that the runtime does not know.
// It registers no kind: a program may define that kind later.
func TestLiveOfUnknownKind(t *testing.T) {
	rt := inMemory(t)
	s := serve(t, rt, inspect.Config{})
	live := s.follow("live?kind=later&id=a")
	got, _ := live.until(0)
	require.Equal(t, "absent", got.State)
	later := pawl.Kind[note]{Name: "later", Label: "title", TTL: time.Hour}
	_, err := later.Scope(rt, "a").SetState(t.Context(), note{Title: "x"})
	require.NoError(t, err)
	got, _ = live.until(1)
	require.Contains(t, got.Doc, `"title": "x"`)
}

// A difference names the fields, and is bounded.
func TestLiveDifferences(t *testing.T) {
	rt := inMemory(t)
	s := serve(t, rt, inspect.Config{})
	docs := pawl.Kind[pawl.Doc]{Name: "doc"}
	write := func(d pawl.Doc) {
		_, err := docs.Scope(rt, "a").SetState(t.Context(), d)
		require.NoError(t, err)
	}
	write(pawl.Doc{"list": []any{1, 2}, "map": map[string]any{"a.b": 1}, "same": []any{1}, "text": strings.Repeat("y", 9000)})
	live := s.follow("live?kind=doc&id=a")
	live.until(1)
	write(pawl.Doc{"list": []any{1, 3, 4}, "map": map[string]any{"a.b": nil, "\u202e": true}, "same": []any{1}, "text": "z"})
	got, _ := live.until(2)
	changes := map[string][2]string{}
	for _, c := range got.Changes {
		changes[c.Path] = [2]string{c.Before, c.After}
	}
	require.Equal(t, [2]string{"2", "3"}, changes["list.1"])
	require.Equal(t, [2]string{"", "4"}, changes["list.2"])
	require.Equal(t, [2]string{"1", "null"}, changes[`map.a\.b`])
	require.Equal(t, [2]string{"", "true"}, changes[`map.\u{202e}`])
	require.Less(t, len(changes["text"][0]), 500)
	require.Len(t, changes, 5)
	many := pawl.Doc{}
	for i := range 300 {
		many[fmt.Sprint(i)] = i
	}
	write(many)
	got, _ = live.until(3)
	require.Len(t, got.Changes, 101)
	require.Equal(t, "and 204 more", got.Changes[100].Path)
}

// What is redacted is on no page: not in lists, documents, files, views, confirmations and changes.
//
// Proves INSPECT-3.
func TestRedact(t *testing.T) {
	onStores(t, func(t *testing.T, rt *pawl.Runtime) {
		redact := func(key pawl.Key, path pawl.Field, value any) (any, bool) {
			switch path {
			case "title":
				return map[string]any{"hidden": true}, true
			case "status", "secret", "n", "inner":
				return "hidden", true
			}
			return nil, false
		}
		s := serve(t, rt, inspect.Config{Redact: redact, Actions: []string{inspect.ActDelete}, Author: func(*http.Request) string { return "ada" },
			Views: []inspect.View{{Name: "notes", Query: persist.Query{Kind: "note"}, Columns: []string{"Title", "Secret", "Label"},
				Row: func(_ context.Context, r inspect.Record) ([]string, error) {
					return []string{r.Text("title"), r.Text("secret"), r.Label + string(r.Doc) + fmt.Sprint(r.Number("n"))}, nil
				}}}})
		set(t, rt, "a", note{Title: "tiger", Status: "tiger", Secret: "tiger", N: 4711})
		put(t, rt, persist.Write{Key: pawl.Key{Kind: "note", ID: "b"}, Doc: json.RawMessage(`{"inner":{"tiger":[{"tiger":4711}]},"other":"seen"}`)})
		for _, address := range []string{"", "kind?kind=note", docOf("a"), docOf("b"), "raw?kind=note&id=a", "raw?kind=note&id=b", "view?name=notes", "act?action=delete&kind=note&id=a"} {
			body := s.get(address).body
			require.NotContains(t, body, "tiger", address)
			require.NotContains(t, body, "4711", address)
		}
		require.Contains(t, s.get(docOf("b")).text(), `"inner": "hidden", "other": "seen"`)
		live := s.follow("live?kind=note&id=a")
		_, text := live.until(1)
		require.NotContains(t, text, "tiger")
		set(t, rt, "a", note{Title: "tiger 2", Status: "tiger 2", Secret: "tiger 2", N: 4711, Due: time.Unix(1, 0)})
		got, text := live.until(2)
		require.NotContains(t, text, "tiger")
		require.NotContains(t, text, "4711")
		require.Len(t, got.Changes, 1)
		require.Equal(t, "due", got.Changes[0].Path)
	})
}

// A field of an entry of a list is hidden, and the path names the entry.
//
// Proves INSPECT-3.
func TestRedactedEntries(t *testing.T) {
	rt := inMemory(t)
	s := serve(t, rt, inspect.Config{Redact: func(key pawl.Key, path pawl.Field, value any) (any, bool) { return "xxx", path == "cards.1.number" }})
	put(t, rt, persist.Write{Key: pawl.Key{Kind: "note", ID: "a"}, Doc: json.RawMessage(`{"cards":[{"number":"1"},{"number":"tiger"}]}`)})
	for _, address := range []string{docOf("a"), "raw?kind=note&id=a"} {
		require.NotContains(t, s.get(address).body, "tiger")
		require.Contains(t, s.get(address).body, "xxx")
	}
}

// A label and a due time are copies of fields. They are hidden with these, also if the runtime does not
// know the kind and so not the fields, and a list by labels does not tell them.
//
// Proves INSPECT-3.
func TestRedactedCopies(t *testing.T) {
	rt := inMemory(t)
	hide := func(key pawl.Key, path pawl.Field, value any) (any, bool) {
		return "xxx", path == "status" || path == "at"
	}
	s := serve(t, rt, inspect.Config{Redact: hide, Views: []inspect.View{{Name: "later", Query: persist.Query{Kind: "later"}, Columns: []string{"Due"},
		Row: func(_ context.Context, r inspect.Record) ([]string, error) {
			return []string{r.Label + r.Due.String()}, nil
		}}}})
	put(t, rt, persist.Write{Key: pawl.Key{Kind: "later", ID: "a"}, Doc: json.RawMessage(`{"status":"tiger","at":"1999"}`), Label: "tiger", Due: time.Unix(922372036, 0)})
	put(t, rt, persist.Write{Key: pawl.Key{Kind: "later", ID: "b"}, Doc: json.RawMessage(`{"title":"lamp"}`), Label: "open"})
	set(t, rt, "a", note{Status: "tiger"})
	for _, address := range []string{"kind?kind=later", "doc?kind=later&id=a", "kind?kind=note", docOf("a"), "view?name=later", "kind?kind=later&state=due"} {
		body := s.get(address).body
		require.NotContains(t, body, "tiger", address)
		require.NotContains(t, body, "1999", address)
	}
	require.Contains(t, s.get("kind?kind=later").text(), "open", "nothing of this document is hidden")
	require.Empty(t, s.get("kind?kind=later&label=tiger").ids(t))
	require.Empty(t, s.get("kind?kind=note&label=tiger").ids(t))
	require.Equal(t, []string{"b"}, s.get("kind?kind=later&label=open").ids(t))
}

// A label and a due time that another release took from fields of its own are hidden if any part of
// the document is. A document of a newer schema has fields that Redact does not know, and is not shown
// at all. Proves INSPECT-3.
func TestRedactedDocumentsOfOtherReleases(t *testing.T) {
	memos := pawl.Kind[note]{Name: "memo", Label: "status", Due: "due", Upgrades: []pawl.Upgrade{func(d pawl.Doc) error { return nil }}}
	rt, err := pawl.Open(pawl.Config{Store: stores.OpenFor(t, stores.Memory.New(t)), Kinds: []pawl.AnyKind{memos}})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	s := serve(t, rt, inspect.Config{Redact: func(_ pawl.Key, path pawl.Field, value any) (any, bool) {
		return "xxx", path == "secret"
	}, Views: []inspect.View{{Name: "memos", Query: persist.Query{Kind: "memo"}, Columns: []string{"Text"},
		Row: func(_ context.Context, r inspect.Record) ([]string, error) {
			return []string{r.Label + r.Due.String() + r.Text("keyword")}, nil
		}}}})
	year := time.Date(1999, 1, 2, 0, 0, 0, 0, time.UTC)
	put(t, rt, persist.Write{Key: pawl.Key{Kind: "memo", ID: "label"}, Schema: 1, Doc: json.RawMessage(`{"status":"open","secret":"tiger"}`), Label: "tiger"})
	put(t, rt, persist.Write{Key: pawl.Key{Kind: "memo", ID: "due"}, Schema: 0, Doc: json.RawMessage(`{"secret":"1999-01-02T00:00:00Z"}`), Due: year})
	put(t, rt, persist.Write{Key: pawl.Key{Kind: "memo", ID: "newer"}, Schema: 2, Doc: json.RawMessage(`{"status":"lion","keyword":"lion"}`), Label: "lion", Due: year})
	put(t, rt, persist.Write{Key: pawl.Key{Kind: "memo", ID: "own"}, Schema: 1, Doc: json.RawMessage(`{"status":"open","secret":"tiger"}`), Label: "open"})
	for _, address := range []string{"kind?kind=memo", "doc?kind=memo&id=label", "doc?kind=memo&id=due", "doc?kind=memo&id=newer", "view?name=memos"} {
		body := s.get(address).body
		for _, secret := range []string{"tiger", "lion", "1999"} {
			require.NotContains(t, body, secret, address)
		}
	}
	require.Equal(t, 422, s.send("GET", "raw?kind=memo&id=newer", nil).status)
	require.Equal(t, []string{"own"}, s.get("kind?kind=memo&label=open").ids(t))
	require.Empty(t, s.get("kind?kind=memo&label=tiger").ids(t))
	require.Contains(t, s.get("doc?kind=memo&id=newer").text(), "newer release")
}

// The page of the process shows what waits, what runs and what is stuck, and the leases.
func TestQueues(t *testing.T) {
	rt := inMemory(t)
	s := serve(t, rt, inspect.Config{})
	require.Contains(t, s.get("queues").text(), "All queues are idle.")
	require.Contains(t, s.get("queues").text(), "This process holds no lease.")
	lease, err := notes.Scope(rt, "<leased>").Acquire(t.Context(), pawl.HeldBy("me"))
	require.NoError(t, err)
	defer lease.Release(t.Context())
	release := stick(t, rt, "<stuck>")
	done := make(chan error, 1)
	go func() {
		_, err := pawl.Memory[note](rt, "<stuck>").IncState(context.Background(), "n", 1)
		done <- err
	}()
	testkit.Eventually(t, func() bool { q := rt.Stats().Queues; return len(q) == 1 && q[0].Waiting == 1 }, "a waiter")
	text := s.get("queues").text()
	require.Regexp(t, `memory/<stuck> in memory 1 [\d.]+m?s 1 Atomic for [\d.]+m?s stuck`, text)
	require.Contains(t, text, "note/<leased> me 1 2")
	release()
	require.NoError(t, testkit.Receive(t, done))
}
