package idempotency_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// With Wait, repeats in any process wait for the first response. If the first request fails, one of
// them runs next; if it takes too long, they get 409. Proves IDEM-1, IDEM-2.
func TestWait(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		g := newGate()
		rt := runtimeOn(t, store)
		config := idempotency.Config{Wait: testkit.Patience}
		one := serve(t, keysOn(t, rt, config).Middleware(g))
		two := serve(t, keysOn(t, runtimeOn(t, store), config).Middleware(g))

		t.Run("for the response", func(t *testing.T) {
			first := one.async("a")
			g.in(t)
			repeats := []<-chan answer{one.async("a"), two.async("a"), two.async("a")}
			require.Equal(t, 422, two.send("POST", "/orders", "a", "another").status, "another payload is refused at once")
			g.next <- say(200, "answer")
			require.Equal(t, "answer", (<-first).body)
			for _, r := range repeats {
				a := <-r
				require.Equal(t, "answer", a.body)
				require.True(t, a.replayed())
			}
			require.Empty(t, g.entered)
		})
		t.Run("for a failure", func(t *testing.T) {
			first := one.async("b")
			g.in(t)
			repeat := two.async("b")
			g.next <- say(500, "failed")
			require.Equal(t, "failed", (<-first).body)
			g.in(t)
			g.next <- say(200, "second try")
			a := <-repeat
			require.Equal(t, "second try", a.body)
			require.False(t, a.replayed())
		})
		t.Run("for a transaction", func(t *testing.T) {
			first := one.async("c")
			g.in(t)
			repeat := two.async("c")
			leave, responded := make(chan struct{}), make(chan struct{})
			g.next <- func(_ http.ResponseWriter, r *http.Request) {
				if err := deposit(r.Context(), rt, nil, "deposited"); err != nil {
					panic(err)
				}
				close(responded)
				<-leave
			}
			<-responded
			require.Equal(t, "deposited", (<-repeat).body) // while the handler still runs
			close(leave)
			require.Equal(t, "deposited", (<-first).body)
		})
	})
}

// A repeat waits no longer than Wait and its client allow, and leaves the key unchanged.
// Proves IDEM-1.
func TestWaitTimeout(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{Wait: 50 * time.Millisecond})
	g := newGate()
	s := serve(t, keys.Middleware(g))
	first := s.async("k")
	g.in(t)
	a := s.post("k")
	require.Equal(t, 409, a.status)
	require.Equal(t, "IDEMPOTENCY_IN_PROGRESS", a.code(t))
	ctx, leave := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer leave()
	_, err := s.try(ctx, "POST", "/orders", "k", `{"item":7}`)
	require.Error(t, err)
	g.next <- say(200, "done")
	require.Equal(t, "done", (<-first).body)
	require.True(t, s.post("k").replayed())
	require.Empty(t, g.entered)
}

// Of many concurrent requests in two runtimes, waiting or not, one handler runs per key.
// Proves IDEM-2.
func TestManyConcurrentRequests(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		for _, wait := range []time.Duration{0, testkit.Patience} {
			var runs atomic.Int64
			config := idempotency.Config{Wait: wait}
			servers := []*server{
				serve(t, keysOn(t, runtimeOn(t, store), config).Middleware(counted(&runs))),
				serve(t, keysOn(t, runtimeOn(t, store), config).Middleware(counted(&runs))),
			}
			const crowd = 16
			var all sync.WaitGroup
			var firsts, repeats, refused atomic.Int64
			for i := range crowd {
				all.Go(func() {
					a, err := servers[i%2].try(context.Background(), "POST", "/orders", "crowd-"+wait.String(), "")
					switch {
					case err != nil:
					case a.status == 409:
						refused.Add(1)
					case a.replayed():
						repeats.Add(1)
					case a.body == "run 1 of ":
						firsts.Add(1)
					}
				})
			}
			all.Wait()
			require.EqualValues(t, 1, runs.Load())
			require.EqualValues(t, 1, firsts.Load())
			require.EqualValues(t, crowd-1, repeats.Load()+refused.Load())
			if wait > 0 {
				require.Zero(t, refused.Load())
			}
		}
	})
}

// counting is a store that counts its loads.
type counting struct {
	*memory.Store
	loads atomic.Int64
}

func (s *counting) Load(ctx context.Context, k persist.Key) (persist.Record, error) {
	s.loads.Add(1)
	return s.Store.Load(ctx, k)
}

// A waiting repeat gets the response when it is committed, before the lease is released.
// Proves IDEM-1.
func TestWaitGetsCommittedResponse(t *testing.T) {
	store := &counting{Store: memory.New()}
	rt := runtimeOn(t, store.Store)
	g := newGate()
	one := serve(t, keysOn(t, rt, idempotency.Config{}).Middleware(g))
	two := serve(t, keysOn(t, runtimeOn(t, store), idempotency.Config{Wait: testkit.Patience}).Middleware(g))
	first := one.async("k")
	g.in(t)
	repeat := two.async("k")
	// The repeat asks for the lease, reads the record, and then watches it.
	testkit.Eventually(t, func() bool { return store.loads.Load() >= 3 })
	leave := make(chan struct{})
	g.next <- func(_ http.ResponseWriter, r *http.Request) {
		if err := deposit(r.Context(), rt, nil, "deposited"); err != nil {
			panic(err)
		}
		<-leave
	}
	a := <-repeat
	close(leave)
	require.Equal(t, "deposited", a.body)
	require.True(t, a.replayed())
	require.Equal(t, "deposited", (<-first).body)
}
