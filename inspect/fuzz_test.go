package inspect_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/persist/memory"
)

// A request with any path and query is answered with a page, a redirect or an error of the client. What
// it says is never part of a page as HTML.
func FuzzRequest(f *testing.F) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, rt.Close(context.Background())) })
	for _, id := range []string{"a", "b/c", "<b>"} {
		_, err := notes.Scope(rt, id).SetState(context.Background(), note{Title: id, Status: "open"})
		require.NoError(f, err)
	}
	h := inspect.New(rt, inspect.Config{Logger: slog.New(slog.DiscardHandler)})
	f.Add("", "")
	f.Add("kind", "kind=note&label=open&state=due&reverse=1&after=x")
	f.Add("doc", "kind=note&id=%3Cb%3E")
	f.Add("raw", "kind=note&id=b%2Fc")
	f.Add("live", "kind=note&id=a")
	f.Add("queues", "name=%00&from=-1")
	f.Add("view", "name=x")
	f.Add("act", "view=x&id=a")
	f.Add("../kind//", "%zz&a;b&kind=<script>alert(1)</script>")
	f.Fuzz(func(t *testing.T, path, query string) {
		const mark = "<x-mark>" // a tag that no page has
		for _, query := range []string{query, query + "&kind=" + url.QueryEscape(mark), strings.ReplaceAll(query, "=", "="+url.QueryEscape(mark))} {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // of a page that follows changes
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/pawl/", nil)
			r.URL.Path, r.URL.RawQuery = "/pawl/"+path, query
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			late := w.Code == http.StatusServiceUnavailable && ctx.Err() != nil // on a busy machine
			cancel()
			require.True(t, w.Code < 500 || late, "%q %q: %d %s", path, query, w.Code, w.Body)
			require.NotContains(t, w.Body.String(), mark)
		}
	})
}
