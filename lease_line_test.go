package pawl_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// Who waits for a lease, what they hear, and what becomes of them when the runtime closes.

// hinting is a store that gives hints, as the shared ones do.
type hinting struct {
	*hooked
	mu    sync.Mutex
	wakes map[int]func(persist.Hint)
	next  int

	afterLoad func(persist.Key)
}

func (h *hinting) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	r, err := h.hooked.Load(ctx, key)
	h.mu.Lock()
	after := h.afterLoad
	h.mu.Unlock()
	if after != nil {
		after(key)
	}
	return r, err
}

func (h *hinting) Watch(ctx context.Context, wake func(persist.Hint)) error {
	h.mu.Lock()
	if h.wakes == nil {
		h.wakes = map[int]func(persist.Hint){}
	}
	h.next++
	me := h.next
	h.wakes[me] = wake
	wake(persist.Hint{})
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.wakes, me)
	return ctx.Err()
}

func (h *hinting) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	at, err := h.hooked.Commit(ctx, c)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, wake := range h.wakes {
			for _, key := range c.Keys() {
				wake(persist.Hint{Key: key})
			}
		}
	}
	return at, err
}

// TestReleaseIsHeard: who waits in another process hears of a release at once where the store gives hints, also when it comes between the refusal
// and the first listening.
//
// Proves STORE-13.
func TestReleaseIsHeard(t *testing.T) {
	for _, early := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := &hinting{hooked: newHooked()}
			here, err := pawl.Open(pawl.Config{Store: store})
			require.NoError(t, err)
			there, err := pawl.Open(pawl.Config{Store: store})
			require.NoError(t, err)
			ctx := t.Context()
			watching, stop := context.WithCancel(ctx)
			changes := pawl.Session[counts](there, "watched").Changes(watching) // its hub hears already
			<-changes
			synctest.Wait()
			held, err := pawl.Session[counts](here, "a").Acquire(ctx)
			require.NoError(t, err)
			var once sync.Once
			if early {
				store.mu.Lock()
				store.afterLoad = func(key persist.Key) { // that it is held is known, and on its way
					if key.ID == "a" {
						once.Do(func() { require.NoError(t, held.Release(ctx)) })
					}
				}
				store.mu.Unlock()
			}
			began := time.Now()
			waiting := acquire(pawl.Session[counts](there, "a"), pawl.Wait())
			if !early {
				time.Sleep(3 * time.Second)
				began = time.Now()
				require.NoError(t, held.Release(ctx))
			}
			got := <-waiting
			require.NoError(t, got.err)
			require.Less(t, time.Since(began), time.Second)
			require.NoError(t, got.lease.Release(ctx))
			stop()
			require.NoError(t, here.Close(ctx))
			require.NoError(t, there.Close(ctx))
		})
	}
}

// TestNobodyKeepsItToThemselves: a process in which many wait hands the lease on to its own, but not for good: others come in between.
//
// Proves STORE-13.
func TestNobodyKeepsItToThemselves(t *testing.T) {
	for _, hints := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			h := newHooked()
			var store persist.Store = struct{ persist.Store }{h} // without hints, whatever h can do
			if hints {
				store = &hinting{hooked: h}
			}
			busy, err := pawl.Open(pawl.Config{Store: store})
			require.NoError(t, err)
			alone, err := pawl.Open(pawl.Config{Store: store})
			require.NoError(t, err)
			var over atomic.Bool
			var turns atomic.Int64
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					for !over.Load() {
						require.NoError(t, pawl.Session[counts](busy, "a").Hold(context.Background(), func(context.Context, *pawl.Lease) error {
							turns.Add(1)
							time.Sleep(time.Millisecond)
							return nil
						}, pawl.Wait()))
					}
				})
			}
			synctest.Wait()
			for range 5 {
				before, meanwhile := turns.Load(), int64(0)
				require.NoError(t, pawl.Session[counts](alone, "a").Hold(context.Background(), func(context.Context, *pawl.Lease) error {
					meanwhile = turns.Load() - before
					return nil
				}, pawl.Wait()))
				if hints {
					require.Less(t, meanwhile, int64(100), "it had to wait for that many others")
				} else {
					require.Less(t, meanwhile, int64(5000), "it had to wait for that many others, and for its next look")
				}
			}
			over.Store(true)
			wg.Wait()
			require.NoError(t, busy.Close(t.Context()))
			require.NoError(t, alone.Close(t.Context()))
		})
	}
}

// TestCloseEndsLeases: Close ends the contexts of leases, turns away who waits for one or is about to get one, and waits for Hold's functions. What it
// leaves in the store runs out.
//
// Proves STORE-13.
func TestCloseEndsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHooked()
		rt, err := pawl.Open(pawl.Config{Store: h})
		require.NoError(t, err)
		ctx := context.Background()
		scope := func(id string) pawl.Scope[counts] { return pawl.Session[counts](rt, id) }
		held, err := scope("a").Acquire(ctx)
		require.NoError(t, err)
		waiting := []<-chan acquired{acquire(scope("a"), pawl.Wait()), acquire(scope("a"), pawl.Wait())}
		free := make(chan struct{})
		run := make(chan error, 1)
		var inside error
		go func() {
			run <- scope("b").Hold(ctx, func(ctx context.Context, l *pawl.Lease) error {
				<-free
				_, inside = scope("b").IncState(context.WithoutCancel(ctx), "n", 1)
				return nil
			})
		}()
		synctest.Wait()
		open, entered := h.gate()
		about := acquire(scope("c"), pawl.Wait())
		<-entered
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		var busy *pawl.BusyError
		require.ErrorAs(t, rt.Close(short), &busy)
		verbs := map[string]string{}
		for _, r := range busy.Running {
			verbs[r.Scope.ID] = r.Verb
		}
		require.Equal(t, map[string]string{"b": "Hold", "c": "Acquire"}, verbs)
		require.ErrorIs(t, context.Cause(held.Context()), pawl.ErrLeaseLost)
		require.ErrorIs(t, context.Cause(held.Context()), pawl.ErrClosed)
		for _, w := range waiting {
			require.ErrorIs(t, (<-w).err, pawl.ErrClosed)
		}
		open()
		require.ErrorIs(t, (<-about).err, pawl.ErrClosed)
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- rt.Close(ctx) }()
		synctest.Wait()
		require.Empty(t, closed, "a function runs")
		close(free)
		var lost *pawl.LeaseLostError
		require.ErrorAs(t, <-run, &lost)
		require.Error(t, inside)
		require.NoError(t, <-closed)
		_, err = scope("d").Acquire(ctx, pawl.Wait())
		require.ErrorIs(t, err, pawl.ErrClosed)
		r, err := h.Store.Load(ctx, scope("c").Key())
		require.NoError(t, err)
		require.Zero(t, r.Lease, "nobody has got it")
		h.onCommit = nil
		next := rt2(t, h)
		began := time.Now()
		l, err := pawl.Session[counts](next, "a").Acquire(ctx, pawl.Wait())
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(began), pawl.DefaultLease+time.Second)
		require.NoError(t, l.Release(ctx))
		require.NoError(t, next.Close(ctx))
	})
}

// TestLeaseEvents: an observer hears of every lease that is taken, given back and lost, with its token.
//
// Proves STORE-13.
func TestLeaseEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHooked()
		var mu sync.Mutex
		var heard []pawl.Event
		rt, err := pawl.Open(pawl.Config{Store: h, Observer: pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Type >= pawl.LeaseAcquired {
				heard = append(heard, e)
			}
		})})
		require.NoError(t, err)
		s := pawl.Session[counts](rt, "a")
		require.NoError(t, s.Hold(t.Context(), func(context.Context, *pawl.Lease) error { return nil }))
		l, err := s.Acquire(t.Context())
		require.NoError(t, err)
		elsewhere := rt2(t, h)
		other := usurp(t, elsewhere, "a")
		<-l.Context().Done() // by the next renewal
		synctest.Wait()      // the work is stopped first; then the observer hears why
		var lost *pawl.LeaseLostError
		require.ErrorAs(t, context.Cause(l.Context()), &lost)
		require.Equal(t, "another", lost.Holder)
		require.NoError(t, l.Release(t.Context()))
		_, err = s.Acquire(t.Context())
		var held *pawl.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, "another", held.Holder)
		require.Equal(t, other.Token(), held.Token)
		require.NoError(t, other.Release(t.Context()))
		down := errors.New("the network is down")
		l, err = s.Acquire(t.Context())
		require.NoError(t, err)
		h.onCommit = func(persist.Commit, func() (time.Time, error)) (time.Time, error) { return time.Time{}, down }
		err = l.Release(t.Context())
		require.ErrorIs(t, err, pawl.ErrUnavailable)
		require.ErrorIs(t, err, down)
		h.onCommit = nil
		mu.Lock()
		defer mu.Unlock()
		want := []pawl.Event{
			{Type: pawl.LeaseAcquired, Version: 1}, {Type: pawl.LeaseReleased, Version: 1},
			{Type: pawl.LeaseAcquired, Version: 2}, {Type: pawl.LeaseLost, Version: 2},
			{Type: pawl.LeaseAcquired, Version: 5}, {Type: pawl.LeaseReleased, Version: 5},
		}
		require.Len(t, heard, len(want))
		for i, e := range heard {
			require.Equal(t, want[i].Type, e.Type, i)
			require.Equal(t, want[i].Version, e.Version, i)
			require.Equal(t, s.Key(), e.Key)
			require.Equal(t, i == 3 || i == 5, e.Err != nil, i)
		}
		require.NoError(t, elsewhere.Close(t.Context()))
		require.NoError(t, rt.Close(t.Context()))
	})
}
