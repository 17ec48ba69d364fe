package browser

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

var inspectScreenshot = flag.String("inspect-screenshot", "", "write the picture for docs/inspect.md to this file")

// note is the state of the documents in the tests of package inspect.
type note struct {
	Title  string    `json:"title"`
	Status string    `json:"status,omitempty"`
	Due    time.Time `json:"due,omitzero"`
	N      int       `json:"n,omitempty"`
}

var notes = pawl.Kind[note]{Name: "note", Label: "status", Due: "due"}

// inside is a program with the pages of package inspect.
type inside struct {
	t   *testing.T
	rt  *pawl.Runtime
	url string
	log lines
}

// program starts a program with a store in memory.
func program(t *testing.T, c inspect.Config) *inside {
	t.Helper()
	browser(t) // skips the test if there is none
	p := &inside{t: t}
	var err error
	p.rt, err = pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{notes}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	c.Logger = slog.New(slog.NewTextHandler(&p.log, nil))
	mux := http.NewServeMux()
	mux.Handle("/pawl/", inspect.New(p.rt, c))
	server := httptest.NewServer(mux)
	p.url = server.URL + "/pawl/"
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, p.rt.Close(ctx))
	})
	return p
}

// set writes a note.
func (p *inside) set(id string, n note, opts ...pawl.CallOption) {
	p.t.Helper()
	_, err := notes.Scope(p.rt, id).SetState(p.t.Context(), n, opts...)
	require.NoError(p.t, err)
}

// doc returns the address of a note's page.
func (p *inside) doc(id string) string {
	return p.url + "doc?" + (url.Values{"kind": {"note"}, "id": {id}}).Encode()
}

// visit opens a tab without cookies on a page of package inspect.
func visit(t *testing.T, address string) *tab {
	t.Helper()
	tb := guest(t, "about:blank")
	tb.visit(address)
	return tb
}

// visit goes to a page and asserts that it is whole, and that it has loaded nothing but the two files
// that belong to it.
func (tb *tab) visit(address string) {
	tb.t.Helper()
	tb.do(chromedp.Navigate(address))
	tb.until(`document.readyState === "complete" && document.querySelector("h1")`, "the page "+address)
	require.Empty(tb.t, eval[[]string](tb, `performance.getEntriesByType("resource").map(e => e.name).concat(Array.from(document.scripts, s => s.src))
		.filter(name => !/^(style\.css|app\.js|live\?.*)$/.test(name.slice(new URL(".", location).href.length)) || !name.startsWith(new URL(".", location).href))`), address)
	require.NotEmpty(tb.t, eval[string](tb, `getComputedStyle(document.body).getPropertyValue("--accent")`), "the style of %s", address)
}

// ids returns the ids of the documents that the page lists.
func (tb *tab) ids() []string {
	tb.t.Helper()
	return eval[[]string](tb, `Array.from(document.querySelectorAll("tbody th a"), a => new URL(a.href).searchParams.get("id"))`)
}

// follow clicks on an element and waits for the page that it leads to.
func (tb *tab) follow(selector string) {
	tb.t.Helper()
	eval[bool](tb, `window.left = false, true`)
	tb.do(chromedp.Click(selector))
	tb.until(`window.left === undefined && document.readyState === "complete"`, "another page after "+selector)
}

const liveNow = `document.getElementById("live").textContent === "following changes"`

// Every page of the chat server's inspection loads without an error, and nothing from elsewhere. The
// pages are read-only. A document follows the conversation.
func TestInspectChat(t *testing.T) {
	t.Parallel()
	s := serve(t, "", "-inspect", slowly)
	chat := guest(t, s.url())
	chat.say("charge 5; email bob@example.com hello; search pawl ratchet lease")
	chat.ends(1, "done")
	root := s.url() + "pawl/"
	tb := visit(t, root)
	seen, open := map[string]bool{root: true}, []string{root}
	for len(open) > 0 && len(seen) < 40 {
		tb.visit(open[0])
		open = open[1:]
		require.False(t, eval[bool](tb, `Boolean(document.querySelector("a[href^=act], form[method=post]"))`), "the pages are read-only")
		for _, link := range eval[[]string](tb, `Array.from(document.querySelectorAll("a[href]"), a => a.href.split("#")[0]).filter(h => !h.includes("/raw?"))`) {
			if !seen[link] {
				seen[link] = true
				open = append(open, link)
			}
		}
	}
	require.Greater(t, len(seen), 20)
	for _, want := range []string{"queues", "kind?kind=session", "kind?kind=charge", "view?name=calls-chat", "view?name=idempotency", "view?name=streams-thread"} {
		require.True(t, seen[root+want], want)
	}
	require.Equal(t, 403, eval[int](tb, `fetch("act?action=delete&kind=session&id=a", {method: "POST"}).then(r => r.status)`))
	tb.allow("403")

	tb.visit(root + "kind?kind=session")
	tb.visit(root + "doc?" + (url.Values{"kind": {"session"}, "id": tb.ids()[:1]}).Encode())
	tb.until(liveNow, "the live view")
	chat.say("count to 5")
	tb.until(`document.querySelectorAll("#changes li ins").length > 0`, "a difference")
	chat.ends(2, "done")
}

// A document shows what changed as it changes, and that it is gone. The lease counts down, and its end
// and its renewal are shown although they are no version.
func TestInspectLive(t *testing.T) {
	t.Parallel()
	p := program(t, inspect.Config{})
	p.set("a", note{Title: "lamp", N: 1})
	tb := visit(t, p.doc("a"))
	tb.until(liveNow, "the live view")
	p.set("a", note{Title: "<b>chair</b>", N: 1, Status: "open"})
	tb.until(`document.querySelectorAll("#changes li").length === 1`, "the difference")
	require.Equal(t, "version 2\nstatus\n\"open\"\ntitle\n\"lamp\"\n\"<b>chair</b>\"", eval[string](tb, `document.querySelector("#changes li").innerText`))
	require.Equal(t, []string{"title", `"lamp"`, `"<b>chair</b>"`}, eval[[]string](tb, `Array.from(document.querySelectorAll("#changes li > *"), e => e.textContent).slice(2)`))
	require.Contains(t, eval[string](tb, `document.getElementById("doc").textContent`), "<b>chair</b>")

	lease, err := notes.Scope(p.rt, "a").Acquire(t.Context(), pawl.HeldBy("worker <9>"), pawl.LeaseFor(4*time.Second))
	require.NoError(t, err)
	left := func() time.Duration {
		d, err := time.ParseDuration(eval[string](tb, `document.querySelector("#facts [data-left]")?.textContent ?? "1h"`))
		require.NoError(t, err)
		return d
	}
	tb.until(`document.getElementById("facts").innerText.includes("worker <9>")`, "the lease")
	first := left()
	require.LessOrEqual(t, first, 4*time.Second)
	tb.until(fmt.Sprintf(`parseInt(document.querySelector("#facts [data-left]").textContent) < %d`, int(first.Seconds())), "a countdown")
	tb.until(fmt.Sprintf(`parseInt(document.querySelector("#facts [data-left]").textContent) >= %d`, int(first.Seconds())-1), "the renewed lease")
	lease.Abandon() // it is not renewed any more
	tb.until(`document.getElementById("facts").innerText.includes("ran out")`, "the end of the lease")
	require.Equal(t, 1, eval[int](tb, `document.querySelectorAll("#changes li").length`), "a lease changes no field")

	require.NoError(t, notes.Scope(p.rt, "a").Delete(t.Context()))
	tb.until(`document.getElementById("state").textContent === "deleted" && document.getElementById("doc").textContent === ""`, "the deletion")
}

// The lists are filtered by the form, and read page by page.
func TestInspectLists(t *testing.T) {
	t.Parallel()
	p := program(t, inspect.Config{})
	var want []string
	for i := range 120 {
		id := fmt.Sprintf("n-%03d", i)
		want = append(want, id)
		p.set(id, note{Title: "t", Status: []string{"open", "done"}[i%2]})
	}
	p.set("late", note{Due: time.Unix(1, 0)})
	p.set("brief", note{}, pawl.WithTTL(time.Microsecond))
	p.set("gone", note{})
	require.NoError(t, notes.Scope(p.rt, "gone").Delete(t.Context()))
	_, err := notes.Scope(p.rt, "n-077").Acquire(t.Context(), pawl.LeaseFor(time.Hour))
	require.NoError(t, err)
	tb := visit(t, p.url)
	require.Contains(t, eval[string](tb, `document.querySelector("tbody").innerText`), "more than 100")
	tb.follow(`tbody a`)
	first := tb.ids()
	require.Len(t, first, 50)
	tb.follow(`a[rel=next]`)
	second := tb.ids()
	tb.follow(`a[rel=next]`)
	require.Equal(t, append([]string{"late"}, want...), append(append(first, second...), tb.ids()...))
	require.False(t, eval[bool](tb, `Boolean(document.querySelector("a[rel=next]"))`))

	filter := func(set string) []string {
		t.Helper()
		tb.visit(p.url + "kind?kind=note")
		eval[bool](tb, `(f => { `+set+`; return true })(document.querySelector("form.filter").elements)`)
		tb.follow(`form.filter button`)
		return tb.ids()
	}
	require.Equal(t, want[70:80], filter(`f.prefix.value = "n-07"`))
	require.Equal(t, want[115:], filter(`f.from.value = "n-115"`))
	require.Equal(t, []string{"n-110", "n-112", "n-114", "n-116", "n-118"}, filter(`f.prefix.value = "n-11"; f.label.value = "open"`))
	require.Equal(t, "n-119", filter(`f.reverse.checked = true`)[0])
	require.Equal(t, []string{"late"}, filter(`f.state.value = "due"`))
	require.Equal(t, []string{"brief"}, filter(`f.state.value = "expired"`))
	require.Equal(t, []string{"gone"}, filter(`f.state.value = "deleted"`))
	require.Equal(t, []string{"n-077"}, filter(`f.state.value = "held"`))
	require.Contains(t, eval[string](tb, `document.querySelector("tbody").innerText`), "59m")
	require.Equal(t, "held", eval[string](tb, `document.querySelector("select").value`), "the form keeps the filter")
	require.Empty(t, filter(`f.prefix.value = "nothing"`))
}

// Actions are confirmed and logged. Another site can neither send nor frame them.
func TestInspectActions(t *testing.T) {
	t.Parallel()
	p := program(t, inspect.Config{Actions: []string{inspect.ActDelete, inspect.ActRelease, inspect.ActAbandon}, Author: func(*http.Request) string { return "ada" }})
	for _, id := range []string{"a", "b"} {
		p.set(id, note{Title: "lamp"})
	}
	lease, err := notes.Scope(p.rt, "a").Acquire(t.Context(), pawl.LeaseFor(time.Hour))
	require.NoError(t, err)
	tb := visit(t, p.doc("a"))
	tb.follow(`a[href*="action=release"]`)
	require.NoError(t, lease.Context().Err(), "a confirmation does nothing")
	tb.follow(`form button`)
	require.Equal(t, "a", eval[string](tb, `document.querySelector("h1").textContent`), "back to the document")
	_, err = notes.Scope(p.rt, "a").IncState(lease.Context(), "n", 1)
	require.ErrorIs(t, err, pawl.ErrLeaseLost)
	tb.follow(`a[href*="action=delete"]`)
	tb.follow(`a.button`) // go back
	require.Equal(t, "live", eval[string](tb, `document.getElementById("state").textContent`))
	tb.follow(`a[href*="action=delete"]`)
	tb.follow(`form button`)
	require.Equal(t, "deleted", eval[string](tb, `document.getElementById("state").textContent`))
	require.Contains(t, p.log.String(), "action=release view=\"\" scope=note/a version=2 author=ada")
	require.Contains(t, p.log.String(), "action=delete view=\"\" scope=note/a version=2 author=ada")

	p.stick("stuck")
	tb.visit(p.url + "queues")
	tb.follow(`a[href*="action=abandon"]`)
	tb.follow(`form button`)
	require.Contains(t, eval[string](tb, `document.body.innerText`), "All queues are idle.")
	require.Contains(t, p.log.String(), "action=abandon scope=memory/stuck")

	target := p.url + "act?action=delete&kind=note&id=b"
	tb.visit(target)
	token := eval[string](tb, `document.querySelector("[name=forgery]").value`)
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!doctype html><title>evil</title><link rel="icon" href="data:,"><iframe src="%[1]s"></iframe>
			<form id="f" method="post" action="%[1]s"><input name="pin" value="1"><input name="forgery" value="%[2]s"></form>`, target, token)
	}))
	t.Cleanup(evil.Close)
	other := tb.another("about:blank") // with the cookies of tb
	other.allow("frame")
	other.allow("403")
	// Another host than that of the pages: the cookies of 127.0.0.1 are sent to all of its ports.
	for _, address := range []string{strings.Replace(evil.URL, "127.0.0.1", "localhost", 1), evil.URL} {
		other.do(chromedp.Navigate(address))
		other.until(`document.title === "evil" && document.readyState === "complete"`, "the other site")
		require.True(t, eval[bool](other, `(d => !d || !d.body?.innerText)(document.querySelector("iframe").contentDocument)`), "the frame is empty")
		eval[bool](other, `document.getElementById("f").submit(), true`)
		other.until(`document.querySelector("h1")?.textContent === "Forbidden"`, "the refusal")
	}
	snap, err := notes.Scope(p.rt, "b").Snapshot(t.Context())
	require.NoError(t, err)
	require.True(t, snap.Exists())
}

// stick leaves a stuck function in an in-memory scope, which ends with the test.
func (p *inside) stick(id string) {
	p.t.Helper()
	release := make(chan struct{})
	p.t.Cleanup(func() { close(release) })
	var ran atomic.Bool
	for budget := time.Millisecond; !ran.Load(); budget *= 2 { // until the function starts within it
		_, err := pawl.Memory[note](p.rt, id).AtomicState(p.t.Context(), func(context.Context, *note) error { ran.Store(true); <-release; return nil }, pawl.WithTimeout(budget))
		require.ErrorIs(p.t, err, pawl.ErrTimeout)
	}
}

// Ids and documents of any content do no harm: they are text, on every page and in the live view.
func TestInspectHostile(t *testing.T) {
	t.Parallel()
	p := program(t, inspect.Config{Kinds: []string{`<script>hacked=1</script>`}, Actions: []string{inspect.ActDelete}, Author: func(*http.Request) string { return "<i>" }})
	hostile := []string{
		`<script>hacked=1</script>`, `"'><img src=x onerror=hacked=1>`, `</pre></textarea><svg onload=hacked=1>`, "javascript:hacked=1",
		"a/b/../c?x=1&y=2#z", "turned \u202e around \u2066", strings.Repeat("x", pawl.MaxID), "{{.}}${hacked=1}", "日本語-😀", "line\u2028end", "\ufeff", "a\x01\n\x1b[31mb\x7f",
	}
	write := func(id string, version uint64, doc any) {
		t.Helper()
		data, err := json.Marshal(doc)
		require.NoError(t, err)
		_, err = p.rt.Store().Commit(t.Context(), persist.Commit{ID: fmt.Sprintf("foreign.%d", version), Writes: []persist.Write{
			{Key: pawl.Key{Kind: "note", ID: id}, Expected: version - 1, Version: version, Doc: data, Label: "<b onclick=hacked=1>"}}})
		require.NoError(t, err)
	}
	for _, id := range hostile {
		write(id, 1, map[string]any{id: id, "binary": string([]byte{0, 1, 2, 0xff, 0xfe, 27})})
	}
	write("large", 1, map[string]any{"text": strings.Repeat("<script>hacked=1</script>", 1<<20/25)})
	tab := visit(t, p.url)
	check := func(where string) {
		t.Helper()
		require.Equal(t, []any{"undefined", 1.0, 0.0}, eval[[]any](tab, `[typeof window.hacked, document.scripts.length, document.querySelectorAll("img, svg, iframe, main b, main i, [onclick], [onerror]").length]`), where)
	}
	check("the kinds")
	tab.visit(p.url + "kind?kind=note")
	check("the list")
	require.ElementsMatch(t, append([]string{"large"}, hostile...), tab.ids())
	require.NotContains(t, eval[string](tab, `document.body.innerText`), "\u202e")
	for _, id := range tab.ids() {
		tab.visit(p.doc(id))
		check(id)
		if !strings.ContainsAny(id, "\x01") {
			tab.until(liveNow, "the live view")
			write(id, 2, map[string]any{id + "2": id, "list": []any{id, map[string]any{id: "\u202e"}}})
			tab.until(`document.querySelector("#changes li ins")`, "the difference")
			check("the live view of " + id)
		}
		tab.visit(p.url + "act?action=delete&" + (url.Values{"kind": {"note"}, "id": {id}}).Encode())
		check("the confirmation of " + id)
	}
}

// TestInspectScreenshot writes the picture of docs/inspect.md to the file that -inspect-screenshot names.
func TestInspectScreenshot(t *testing.T) {
	if *inspectScreenshot == "" {
		t.Skip("-inspect-screenshot is not set")
	}
	s := serve(t, "", "-inspect", slowly)
	chat := guest(t, s.url())
	chat.say("count to 7")
	chat.ends(1, "done")
	tb := visit(t, s.url()+"pawl/kind?kind=session")
	tb.do(chromedp.EmulateViewport(1200, 760, chromedp.EmulateScale(1)))
	tb.visit(s.url() + "pawl/doc?" + (url.Values{"kind": {"session"}, "id": tb.ids()[:1]}).Encode())
	tb.until(liveNow, "the live view")
	chat.say("count to 30")
	tb.until(`document.querySelectorAll("#changes li").length >= 2 || document.querySelectorAll("#changes ins").length >= 3`, "differences")
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	require.NoError(t, err)
	require.Less(t, len(picture), 200<<10)
	require.NoError(t, os.WriteFile(*inspectScreenshot, picture, 0o644))
	chat.ends(2, "done")
}
