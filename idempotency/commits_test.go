package idempotency_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// TestCommits: a first request is two commits: the claim, and the response, which also gives the
// lease back. With Respond, the second one is the handler's own. A transaction is one, and a replay
// none.
//
// Proves IDEM-1.
func TestCommits(t *testing.T) {
	stores.EachCounted(t, func(t *testing.T, location string) {
		rt := runtimeOn(t, stores.OpenFor(t, location))
		keys := keysOn(t, rt, idempotency.Config{})
		count := stores.Commits(t, location)
		costs := func(what string, want int, do func()) {
			t.Helper()
			before := count()
			do()
			require.Equal(t, want, count()-before, what)
		}
		op := idempotency.Op{Name: "op", Key: "1"}
		do := func() {
			_, _, err := idempotency.Do(t.Context(), keys, op, func(context.Context) (int, error) { return 1, nil })
			require.NoError(t, err)
		}
		costs("Do", 2, do)
		costs("a replay of Do", 0, do)

		type wallet struct{ Cents int }
		inTx := idempotency.Op{Name: "tx", Key: "1"}
		doTx := func() {
			_, _, err := idempotency.DoTx(t.Context(), keys, inTx, func(ctx context.Context, tx *pawl.Tx) (int, error) {
				_, err := pawl.Kind[wallet]{Name: "wallet"}.Scope(tx, "a").IncState(ctx, "Cents", 1)
				return 1, err
			})
			require.NoError(t, err)
		}
		costs("DoTx", 1, doTx)
		costs("a replay of DoTx", 0, doTx)

		served := make(chan struct{}, 1) // the middleware has returned: a lease is given back after the response was sent
		through := func(h http.HandlerFunc) *server {
			inside := keys.Middleware(h)
			return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				inside.ServeHTTP(w, r)
				served <- struct{}{}
			}))
		}
		s := through(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
		ask := func() {
			require.Equal(t, http.StatusCreated, s.post("k").status)
			<-served
		}
		costs("a request", 2, ask)
		costs("a replay of a request", 0, ask)

		responding := through(func(_ http.ResponseWriter, r *http.Request) { _ = deposit(r.Context(), rt, nil, "done") })
		costs("a request with Respond", 2, func() {
			require.Equal(t, "done", responding.post("r").body)
			<-served
		})
	})
}
