package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// forget deletes all records, even held ones, as an administrator might. That ends their leases.
func forget(t testing.TB, rt *pawl.Runtime) {
	t.Helper()
	kind := pawl.Kind[pawl.Doc]{Name: "idempotency"}
	n := 0
	for r, err := range kind.List(t.Context(), rt, pawl.Query{}) {
		require.NoError(t, err)
		require.NoError(t, kind.Scope(rt, r.ID).Delete(t.Context()))
		n++
	}
	require.Positive(t, n)
}

// The context of a handler that lost its lease ends, and its commits are refused. Its client learns
// that the outcome is unknown, whether the handler noticed or not. The key is free.
// Proves IDEM-6, IDEM-4.
func TestLostLease(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, other := runtimeOn(t, store), runtimeOn(t, store)
		for name, lease := range map[string]time.Duration{"noticed": 300 * time.Millisecond, "unnoticed": time.Hour} {
			g := newGate()
			s := serve(t, keysOn(t, rt, idempotency.Config{Lease: lease}).Middleware(g))
			steady := serve(t, keysOn(t, rt, idempotency.Config{Lease: time.Hour}).Middleware(g)) // for repeats whose lease must not be lost
			for i, respond := range []bool{false, true} {
				key := fmt.Sprint(name, i)
				first := s.async(key)
				r := g.in(t)
				forget(t, other)
				if name == "noticed" {
					<-r.Context().Done()
					var lost *pawl.LeaseLostError
					require.ErrorAs(t, context.Cause(r.Context()), &lost)
				}
				verdict := make(chan error, 1)
				g.next <- func(w http.ResponseWriter, r *http.Request) {
					if respond {
						verdict <- deposit(r.Context(), rt, nil, "never")
					} else {
						_, err := accounts.Scope(rt, "ann").IncState(r.Context(), "balance", 1)
						verdict <- err
					}
					w.WriteHeader(200)
				}
				a := <-first
				require.ErrorIs(t, <-verdict, pawl.ErrLeaseLost)
				require.Equal(t, 503, a.status)
				require.Equal(t, "IDEMPOTENCY_OUTCOME_UNKNOWN", a.code(t))
				require.Equal(t, "1", a.header.Get("Retry-After"))
				g.next <- say(200, "second")
				require.Equal(t, "second", steady.post(key).body)
				g.in(t)
				require.True(t, s.post(key).replayed())
				require.Zero(t, balance(t, rt))
			}
		}
	})
}

// A handler that lost its key answers while another handler has it. Only the other's response is
// stored. Proves IDEM-6.
func TestLateHandler(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		other := runtimeOn(t, store)
		late, g := newGate(), newGate()
		one := serve(t, keysOn(t, runtimeOn(t, store), idempotency.Config{Lease: time.Hour}).Middleware(late))
		two := serve(t, keysOn(t, other, idempotency.Config{Lease: time.Hour}).Middleware(g))
		first := one.async("k")
		late.in(t)
		forget(t, other)
		second := two.async("k")
		g.in(t)
		late.next <- say(200, "late")
		require.Equal(t, 503, (<-first).status)
		g.next <- say(200, "second")
		require.Equal(t, "second", (<-second).body)
		require.Equal(t, "second", one.post("k").body)
	})
}

// When the client leaves, the handler's context ends. Its response and its commits are stored
// nevertheless.
func TestClientLeaves(t *testing.T) {
	rt, keys := onMemory(t, idempotency.Config{})
	g := newGate()
	s := serve(t, keys.Middleware(g))
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := s.try(ctx, "POST", "/orders", "k", `{"item":7}`)
		gone <- err
	}()
	r := g.in(t)
	leave()
	require.Error(t, <-gone)
	<-r.Context().Done()
	require.ErrorIs(t, r.Context().Err(), context.Canceled)
	g.next <- func(w http.ResponseWriter, r *http.Request) {
		if err := deposit(context.WithoutCancel(r.Context()), rt, nil, "stored"); err != nil {
			panic(err)
		}
	}
	testkit.Eventually(t, func() bool { return s.post("k").body == "stored" })
	ctx, leave = context.WithCancel(t.Context()) // without a transaction
	go func() {
		_, err := s.try(ctx, "POST", "/orders", "l", `{"item":7}`)
		gone <- err
	}()
	r = g.in(t) // the repeats of "k" were replays
	leave()
	require.Error(t, <-gone)
	<-r.Context().Done()
	g.next <- say(200, "also stored")
	testkit.Eventually(t, func() bool { return s.post("l").body == "also stored" })
	require.Empty(t, g.entered)
}

// A deadline set outside the middleware applies to the handler.
func TestDeadlines(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{})
	g := newGate()
	s := serve(t, http.TimeoutHandler(keys.Middleware(g), 50*time.Millisecond, "too late"))
	a := s.post("k")
	require.Equal(t, 503, a.status)
	require.Equal(t, "too late", a.body)
	var r *http.Request
	testkit.Eventually(t, func() bool {
		select {
		case r = <-g.entered:
			return true
		default: // the deadline may come before the handler runs
			s.post("k")
			return false
		}
	})
	_, ok := r.Context().Deadline()
	require.True(t, ok)
	<-r.Context().Done()
	require.ErrorIs(t, context.Cause(r.Context()), context.DeadlineExceeded)
	g.next <- say(200, "finished")
	testkit.Eventually(t, func() bool { return s.post("k").body == "finished" })
}

// Without the store no handler runs. If the store fails while a handler runs, the client gets no
// response that was not stored.
func TestStoreUnavailable(t *testing.T) {
	store := &broken{Store: memory.New()}
	rt, err := pawl.Open(pawl.Config{Store: store, Retry: pawl.Retry{Within: 20 * time.Millisecond}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	g := newGate()
	s := serve(t, keysOn(t, rt, idempotency.Config{Lease: time.Second}).Middleware(g))
	store.down.Store(true)
	a := s.post("k")
	require.Equal(t, 503, a.status)
	require.Equal(t, "UNAVAILABLE", a.code(t))
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.Empty(t, g.entered)
	store.down.Store(false)
	g.next <- func(w http.ResponseWriter, r *http.Request) {
		store.down.Store(true)
		w.WriteHeader(200)
	}
	a = s.post("k")
	require.Equal(t, 503, a.status)
	require.Equal(t, "IDEMPOTENCY_OUTCOME_UNKNOWN", a.code(t))
	store.down.Store(false)
	g.next <- say(200, "later")
	testkit.Eventually(t, func() bool { return s.post("k").body == "later" })
}

// broken is a store that can be switched off.
type broken struct {
	*memory.Store
	down atomic.Bool
}

var errDown = fmt.Errorf("%w: %w", persist.ErrUnavailable, errors.New("down"))

func (s *broken) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if s.down.Load() {
		return time.Time{}, errDown
	}
	return s.Store.Commit(ctx, c)
}

func (s *broken) Load(ctx context.Context, k persist.Key) (persist.Record, error) {
	if s.down.Load() {
		return persist.Record{}, errDown
	}
	return s.Store.Load(ctx, k)
}

// A key can be used again once its record has expired, and after the sweeper removed it. A handler
// may take longer than that. Proves IDEM-3.
func TestExpiry(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := runtimeOn(t, store)
		const ttl = 200 * time.Millisecond
		g := newGate()
		s := serve(t, keysOn(t, rt, idempotency.Config{TTL: ttl, Lease: time.Second}).Middleware(g))
		first := s.async("k")
		g.in(t)
		<-time.After(2 * ttl) // the key does not expire while its handler runs
		require.Equal(t, 409, s.post("k").status)
		g.next <- say(200, "1")
		require.Equal(t, "1", (<-first).body)
		for n := 2; n < 5; n++ {
			if n == 3 {
				sweeper, err := pawl.NewSweeper(rt, pawl.SweeperConfig{Interval: 10 * time.Millisecond})
				require.NoError(t, err)
				require.NoError(t, sweeper.Start(t.Context()))
				defer func() { require.NoError(t, sweeper.Stop(context.Background())) }()
			}
			g.next <- say(200, fmt.Sprint(n))
			testkit.Eventually(t, func() bool {
				a := s.send("POST", "/orders", "k", fmt.Sprint("payload ", n))
				return a.status == 200 && a.body == fmt.Sprint(n)
			})
		}
	})
}

// A handler does not start when the lease of its key ran out before the answer of the store arrived.
// The client is told that nothing was done, and a repeat runs the handler. Do is the same.
// Proves CLAIM-19.
func TestNoHandlerUnderALostLease(t *testing.T) {
	const lease = 100 * time.Millisecond
	tap := &stores.Tap{Store: memory.New()}
	keys := keysOn(t, runtimeOn(t, tap), idempotency.Config{Lease: lease})
	var ran atomic.Int64
	s := serve(t, keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		ran.Add(1)
		w.WriteHeader(http.StatusCreated)
	})))
	op := idempotency.Op{Name: "op", Key: "k"}
	do := func() error {
		_, _, err := idempotency.Do(t.Context(), keys, op, func(context.Context) (int64, error) { return ran.Add(1), nil })
		return err
	}
	tap.OnCommitted(func(c persist.Commit, at time.Time, err error) (time.Time, error) {
		if len(c.Writes) > 0 && c.Writes[0].Acquire != nil {
			time.Sleep(2 * lease)
		}
		return at, err
	})
	a := s.post("k")
	require.Equal(t, 503, a.status)
	require.Equal(t, "LEASE_LOST", a.code(t))
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.ErrorIs(t, do(), pawl.ErrLeaseLost)
	require.Zero(t, ran.Load())
	tap.OnCommitted(nil)
	require.Equal(t, 201, s.post("k").status)
	require.NoError(t, do())
	require.EqualValues(t, 2, ran.Load())
}
