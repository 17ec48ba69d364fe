package pawl_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// TestLeaseLine: many wait for one lease, two runtimes take part, and there is never more than one holder.
//
// Proves STORE-13.
func TestLeaseLine(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		runtimes := []*pawl.Runtime{p.rt, p.another(t)}
		var holders, most atomic.Int32
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				err := ships.Scope(runtimes[i%2], "argo").Hold(t.Context(), func(ctx context.Context, l *pawl.Lease) error {
					if n := holders.Add(1); n > most.Load() {
						most.Store(n)
					}
					defer holders.Add(-1)
					_, err := ships.Scope(runtimes[i%2], "argo").IncState(ctx, "miles", 1)
					return err
				}, pawl.WaitForLease())
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, most.Load())
		s, err := ships.Scope(p.rt, "argo").State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 40, s.Miles)
	})
}

// TestArrivalOrder: those who wait in one process get the lease in the order in which they came.
//
// Proves STORE-13.
func TestArrivalOrder(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		var got []int
		done := make(chan error, 50)
		for i := range 50 {
			go func() {
				done <- s.Hold(context.Background(), func(ctx context.Context, l *pawl.Lease) error {
					got = append(got, i)
					_, err := s.IncState(ctx, "n", 1)
					return err
				}, pawl.WaitForLease())
			}()
			synctest.Wait()
		}
		for range 50 {
			require.NoError(t, <-done)
		}
		for i, who := range got {
			require.Equal(t, i, who)
		}
	})
}

// TestWaitersLeaveTheLine: whoever stops waiting is withdrawn, wherever in the line, and the others are served in order of arrival.
//
// Proves STORE-13.
func TestWaitersLeaveTheLine(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		held, err := s.Acquire(t.Context())
		require.NoError(t, err)
		var waiting []<-chan acquired
		var leave []context.CancelFunc
		for range 6 {
			ctx, cancel := context.WithCancel(context.Background())
			leave, waiting = append(leave, cancel), append(waiting, acquireWith(ctx, s, pawl.WaitForLease()))
		}
		_, err = s.Acquire(t.Context())
		var busy *pawl.HeldError
		require.ErrorAs(t, err, &busy, "nobody who does not wait gets ahead of those who do")
		for _, i := range []int{0, 3, 5} { // the head, one in the middle, the last
			leave[i]()
			var left *pawl.CanceledError
			require.ErrorAs(t, (<-waiting[i]).err, &left)
			require.Equal(t, pawl.PhaseQueued, left.Phase)
			synctest.Wait()
		}
		require.NoError(t, held.Release(t.Context()))
		for _, i := range []int{1, 2, 4} {
			got := <-waiting[i]
			require.NoError(t, got.err)
			require.Greater(t, got.lease.Token(), held.Token())
			synctest.Wait()
			for _, j := range []int{1, 2, 4} {
				require.Empty(t, waiting[j], "%d has it, %d too", i, j)
			}
			held = got.lease
			require.NoError(t, held.Release(t.Context()))
			leave[i]()
		}
		l, err := s.Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))
	})
}

// Who waits for a lease, what they hear, and what becomes of them when the runtime closes.

// hinting is a store that gives hints, as the shared ones do.
type hinting struct {
	*stores.Tap
	mu    sync.Mutex
	wakes map[int]func(persist.Hint)
	next  int

	afterLoad func(persist.Key)
}

func (h *hinting) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	r, err := h.Tap.Load(ctx, key)
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
	at, err := h.Tap.Commit(ctx, c)
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
			store := &hinting{Tap: newTap()}
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
			waiting := acquire(pawl.Session[counts](there, "a"), pawl.WaitForLease())
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
			h := newTap()
			var store persist.Store = stores.Bare{Store: h} // without hints, whatever h can do
			if hints {
				store = &hinting{Tap: h}
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
						}, pawl.WaitForLease()))
					}
				})
			}
			synctest.Wait()
			for range 5 {
				before, meanwhile := turns.Load(), int64(0)
				require.NoError(t, pawl.Session[counts](alone, "a").Hold(context.Background(), func(context.Context, *pawl.Lease) error {
					meanwhile = turns.Load() - before
					return nil
				}, pawl.WaitForLease()))
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
