package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// account is the state that the handlers of these tests change.
type account struct {
	Balance int64 `json:"balance"`
}

var accounts = pawl.Kind[account]{Name: "account"}

func balance(t testing.TB, rt *pawl.Runtime) int64 {
	t.Helper()
	a, err := accounts.Scope(rt, "ann").State(t.Context())
	require.NoError(t, err)
	return a.Balance
}

// deposit adds one to the account and responds in the same transaction, which fails with fail if
// that is not nil.
func deposit(ctx context.Context, rt *pawl.Runtime, fail error, body any) error {
	return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := accounts.Scope(tx, "ann").IncState(ctx, "balance", 1); err != nil {
			return err
		}
		if err := idempotency.Respond(ctx, tx, http.StatusCreated, http.Header{"X-Receipt": {"7"}}, body); err != nil {
			return err
		}
		return fail
	})
}

// The handler's writes and its response are one commit. A committed response is sent, whatever else
// the handler does. Proves IDEM-6.
func TestRespond(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		g := newGate()
		rt, other := runtimeOn(t, store), runtimeOn(t, store)
		one := serve(t, keysOn(t, rt, idempotency.Config{}).Middleware(g))
		two := serve(t, keysOn(t, other, idempotency.Config{}).Middleware(g))
		g.next <- func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Lost", "1")
			if err := deposit(r.Context(), rt, nil, map[string]int{"receipt": 7}); err != nil {
				panic(err)
			}
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte(strings.Repeat("whatever", 100_000)))
			w.(http.Flusher).Flush()
		}
		for i, a := range []answer{one.post("k"), one.post("k"), two.post("k")} {
			require.Equal(t, 201, a.status)
			require.JSONEq(t, `{"receipt":7}`, a.body)
			require.Equal(t, "application/json", a.header.Get("Content-Type"))
			require.Equal(t, "7", a.header.Get("X-Receipt"))
			require.Empty(t, a.header.Get("X-Lost"))
			require.Equal(t, i > 0, a.replayed())
		}
		require.EqualValues(t, 1, balance(t, rt))

		// The transaction fails: nothing of it is stored, and the handler's own answer is sent.
		g.next <- func(w http.ResponseWriter, r *http.Request) {
			poor := errors.New("poor")
			if err := deposit(r.Context(), rt, poor, "no"); !errors.Is(err, poor) {
				panic(err)
			}
			http.Error(w, "poor", http.StatusPaymentRequired)
		}
		for _, a := range []answer{one.post("poor"), two.post("poor")} {
			require.Equal(t, 402, a.status)
			require.Equal(t, "poor\n", a.body)
		}

		// A second response is refused, together with its transaction.
		g.next <- func(w http.ResponseWriter, r *http.Request) {
			if err := deposit(r.Context(), rt, nil, "first"); err != nil {
				panic(err)
			}
			if err := deposit(r.Context(), rt, nil, "second"); !errors.Is(err, idempotency.ErrResponded) {
				panic(fmt.Sprint("second response: ", err))
			}
		}
		require.Equal(t, "first", one.post("twice").body)
		require.Equal(t, "first", two.post("twice").body)
		require.EqualValues(t, 2, balance(t, rt))
	})
}

// After the commit the work is not repeated, even if the handler panics or still runs.
// Proves IDEM-6.
func TestAfterRespond(t *testing.T) {
	store := memory.New()
	rt := runtimeOn(t, store)
	g := newGate()
	s := serve(t, keysOn(t, rt, idempotency.Config{}).Middleware(g))
	elsewhere := serve(t, keysOn(t, runtimeOn(t, store), idempotency.Config{}).Middleware(g))
	responded, leave := make(chan struct{}), make(chan struct{})
	g.next <- func(_ http.ResponseWriter, r *http.Request) {
		if err := deposit(r.Context(), rt, nil, "panicked"); err != nil {
			panic(err)
		}
		panic(http.ErrAbortHandler)
	}
	_, err := s.try(t.Context(), "POST", "/orders", "a", `{"item":7}`)
	require.Error(t, err)
	require.Equal(t, "panicked", s.post("a").body)
	g.next <- func(_ http.ResponseWriter, r *http.Request) {
		if err := deposit(r.Context(), rt, nil, "still running"); err != nil {
			panic(err)
		}
		close(responded)
		<-leave
	}
	first := s.async("b")
	<-responded
	require.Equal(t, "still running", s.post("b").body) // although the lease is held
	require.Equal(t, "still running", elsewhere.post("b").body)
	close(leave)
	require.Equal(t, "still running", (<-first).body)
	require.EqualValues(t, 2, balance(t, rt))
}

// Respond refuses invalid responses, and contexts without a request.
func TestRespondRefuses(t *testing.T) {
	rt, keys := onMemory(t, idempotency.Config{MaxBody: 100})
	g := newGate()
	s := serve(t, keys.Middleware(g))
	respond := func(ctx context.Context, status int, body any) error {
		return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error { return idempotency.Respond(ctx, tx, status, nil, body) })
	}
	require.ErrorIs(t, respond(t.Context(), 200, nil), idempotency.ErrNoRequest)
	var limit *pawl.LimitError
	var argument *pawl.ArgumentError
	result := make(chan error, 4)
	g.next <- func(w http.ResponseWriter, r *http.Request) {
		result <- respond(r.Context(), 103, nil)
		result <- respond(r.Context(), 200, strings.Repeat("x", 101))
		result <- respond(r.Context(), 200, func() {})
		w.(http.Flusher).Flush()
		result <- respond(r.Context(), 200, "late")
	}
	s.post("k")
	require.ErrorAs(t, <-result, &argument)
	require.ErrorAs(t, <-result, &limit)
	require.Error(t, <-result)
	require.ErrorIs(t, <-result, idempotency.ErrResponded)
	for _, failed := range []bool{false, true} { // without a key
		g.next <- func(w http.ResponseWriter, r *http.Request) {
			var fail error
			if failed {
				fail = errors.New("failed")
			}
			if deposit(r.Context(), rt, fail, "not stored") != nil {
				http.Error(w, "failed", 500)
			}
		}
		a := s.send("POST", "/", "", "")
		require.Equal(t, map[bool]int{false: 201, true: 500}[failed], a.status)
	}
	require.EqualValues(t, 1, balance(t, rt))
}

// The response is part of the caller's own database transaction, and commits or rolls back with it.
// Proves IDEM-6.
func TestRespondThroughCallersTransaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	store, err := sqlite.Open(t.Context(), path, sqlite.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	db, err := sql.Open(sqlite.Driver, "file:"+path+"?_txlock=immediate&_synchronous=FULL&_pragma=synchronous(FULL)&_busy_timeout=10000&_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	rt := runtimeOn(t, store)
	g := newGate()
	s := serve(t, keysOn(t, rt, idempotency.Config{}).Middleware(g))
	for _, commits := range []bool{true, false} {
		g.next <- func(w http.ResponseWriter, r *http.Request) {
			theirs, err := db.BeginTx(r.Context(), nil)
			if err != nil {
				panic(err)
			}
			err = pawl.Transact(r.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := accounts.Scope(tx, "ann").IncState(ctx, "balance", 1); err != nil {
					return err
				}
				return idempotency.Respond(ctx, tx, 201, nil, "committed")
			}, pawl.CommitThrough(store.Join(theirs)))
			if err == nil && commits {
				err = theirs.Commit()
			} else {
				_ = theirs.Rollback()
			}
			if err != nil {
				panic(err)
			}
			http.Error(w, "rolled back", http.StatusConflict)
		}
		key := fmt.Sprint(commits)
		want := map[bool]string{true: "committed", false: "rolled back\n"}[commits]
		require.Equal(t, want, s.post(key).body)
		require.Equal(t, want, s.post(key).body)
		require.EqualValues(t, 1, balance(t, rt))
	}
}

// deaf is a store that executes commits but loses their answers.
type deaf struct {
	*memory.Store
	from  atomic.Int64 // number of the first commit whose answer is lost; 0 loses none
	count atomic.Int64
}

func (s *deaf) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	at, err := s.Store.Commit(ctx, c)
	if from := s.from.Load(); from > 0 && s.count.Add(1) >= from {
		return time.Time{}, errors.New("the answer was lost")
	}
	return at, err
}

// If the handler does not know the outcome of its transaction, the middleware looks it up and
// answers accordingly. Proves IDEM-6.
func TestRespondInDoubt(t *testing.T) {
	store := &deaf{Store: memory.New()}
	rt, err := pawl.Open(pawl.Config{Store: store, Retry: pawl.Retry{Within: 50 * time.Millisecond}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	g := newGate()
	s := serve(t, keysOn(t, rt, idempotency.Config{Lease: time.Minute}).Middleware(g))
	g.next <- func(w http.ResponseWriter, r *http.Request) {
		store.from.Store(1)
		err := deposit(r.Context(), rt, nil, "deposited")
		store.from.Store(0)
		if !pawl.OutcomeUnknown(err) {
			panic(fmt.Sprint("not in doubt: ", err))
		}
		http.Error(w, err.Error(), pawl.HTTPStatus(err))
	}
	require.Equal(t, "deposited", s.post("k").body)
	require.Equal(t, "deposited", s.post("k").body)
	require.EqualValues(t, 1, balance(t, rt))
}

// Work that goes on after its handler has panicked, without the leases of the request, cannot respond any
// more: a repeat may be running, or the key may be used for another payload. Proves IDEM-6.
func TestLateRespondIsRefused(t *testing.T) {
	for _, next := range []string{`{"item":7}`, `{"item":8}`} {
		rt, keys := onMemory(t, idempotency.Config{})
		var runs atomic.Int64
		var late context.Context
		s := serve(t, keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) == 1 {
				late = pawl.WithoutLeases(context.WithoutCancel(r.Context()))
				panic(http.ErrAbortHandler)
			}
			assert.ErrorIs(t, deposit(late, rt, nil, "late"), pawl.ErrLeaseLost)
			assert.NoError(t, deposit(r.Context(), rt, nil, "second"))
		})))
		_, err := s.try(t.Context(), "POST", "/orders", "k", `{"item":7}`)
		require.Error(t, err)
		if next != `{"item":7}` {
			_, err = keys.Erase(t.Context(), "ann")
			require.NoError(t, err)
		}
		for range 2 {
			a := s.send("POST", "/orders", "k", next)
			require.Equal(t, http.StatusCreated, a.status, a.body)
			require.Equal(t, "second", a.body)
		}
		require.EqualValues(t, 2, runs.Load())
		require.EqualValues(t, 1, balance(t, rt))
	}
}
