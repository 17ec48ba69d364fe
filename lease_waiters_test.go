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

// With many waiters in two runtimes, there is never more than one holder.
//
// Proves STORE-13.
func TestOneHolderAtATime(t *testing.T) {
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

// Waiters of one process get the lease in order of arrival.
//
// Proves STORE-13.
func TestLeaseWaitersInArrivalOrder(t *testing.T) {
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
		for i, waiter := range got {
			require.Equal(t, i, waiter)
		}
	})
}

// A waiter that leaves is withdrawn from any place in the line. The others keep their order.
//
// Proves STORE-13.
func TestLeaseWaitersLeaveTheLine(t *testing.T) {
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
		require.ErrorAs(t, err, &busy, "a caller that does not wait must not overtake waiters")
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
				require.Empty(t, waiting[j], "waiters %d and %d both have the lease", i, j)
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

// Waiters that arrive after others have left the line are served, too.
//
// Proves STORE-13.
func TestLeaseWaitersAfterOthersLeft(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		held, err := s.Acquire(t.Context())
		require.NoError(t, err)
		wait := func() (<-chan acquired, func()) {
			ctx, cancel := context.WithCancel(context.Background())
			got := acquireWith(ctx, s, pawl.WaitForLease())
			synctest.Wait()
			return got, func() { cancel(); synctest.Wait() }
		}
		first, firstLeaves := wait()
		second, secondLeaves := wait()
		third, thirdLeaves := wait()
		firstLeaves()
		require.Error(t, (<-first).err)
		last, lastLeaves := wait()
		thirdLeaves()
		require.Error(t, (<-third).err)
		for _, next := range []<-chan acquired{second, last} {
			require.NoError(t, held.Release(t.Context()))
			got := <-next
			require.NoError(t, got.err)
			held = got.lease
		}
		require.NoError(t, held.Release(t.Context()))
		secondLeaves()
		lastLeaves()
	})
}

// hinting is a store that gives hints, as shared stores do.
type hinting struct {
	*stores.Tap
	mu    sync.Mutex // protects the fields below
	wakes map[int]func(persist.Hint)
	next  int

	afterLoad func(persist.Key) // called when a Load returns; nil: nothing
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

// With a store that gives hints, a waiter in another process gets a released lease at once, even if
// the release comes after its first attempt but before it listens for hints.
//
// Proves STORE-13.
func TestReleaseWakesWaitersElsewhere(t *testing.T) {
	for _, early := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := &hinting{Tap: newTap()}
			here, err := pawl.Open(pawl.Config{Store: store})
			require.NoError(t, err)
			there, err := pawl.Open(pawl.Config{Store: store})
			require.NoError(t, err)
			ctx := t.Context()
			watching, stop := context.WithCancel(ctx)
			changes := pawl.Session[counts](there, "watched").Changes(watching) // there already listens for hints
			<-changes
			synctest.Wait()
			held, err := pawl.Session[counts](here, "a").Acquire(ctx)
			require.NoError(t, err)
			var once sync.Once
			if early {
				store.mu.Lock()
				store.afterLoad = func(key persist.Key) { // the record read here still shows the lease as held
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

// A process whose callers pass a lease on lets other processes have it at times. This is so with many
// waiters, with a new one that arrives shortly before each turn ends, and with commits of the holder.
//
// Proves STORE-13.
func TestProcessesShareALease(t *testing.T) {
	for _, test := range []struct {
		hints     bool
		callers   int
		turn, gap time.Duration
		commits   bool // in the middle of each turn
	}{
		{true, 10, time.Millisecond, 0, false},
		{false, 10, time.Millisecond, 0, false},
		{true, 2, 60 * time.Millisecond, 55 * time.Millisecond, false},
		{false, 2, 300 * time.Millisecond, 290 * time.Millisecond, false},
		{true, 2, 100 * time.Millisecond, 20 * time.Millisecond, true},
		{false, 2, 600 * time.Millisecond, 20 * time.Millisecond, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newTap()
			var store persist.Store = stores.Bare{Store: h} // hides the hints of h
			if test.hints {
				store = &hinting{Tap: h}
			}
			crowded, err := pawl.Open(pawl.Config{Store: store})
			require.NoError(t, err)
			alone, err := pawl.Open(pawl.Config{Store: store})
			require.NoError(t, err)
			var over atomic.Bool
			var wg sync.WaitGroup
			for range test.callers {
				wg.Go(func() {
					for !over.Load() {
						require.NoError(t, pawl.Session[counts](crowded, "a").Hold(context.Background(), func(ctx context.Context, _ *pawl.Lease) (err error) {
							time.Sleep(test.turn / 2)
							if test.commits { // which wakes those that wait for the lease
								_, err = pawl.Session[counts](crowded, "a").IncState(ctx, "n", 1)
							}
							time.Sleep(test.turn / 2)
							return err
						}, pawl.WaitForLease()))
						time.Sleep(test.gap)
					}
				})
			}
			synctest.Wait()
			for range 5 {
				asked, got := time.Now(), time.Time{}
				require.NoError(t, pawl.Session[counts](alone, "a").Hold(context.Background(), func(context.Context, *pawl.Lease) error {
					got = time.Now()
					return nil
				}, pawl.WaitForLease()))
				// The crowd passes the lease on for half a second. Then it pauses, for as long as the lone
				// waiter needs to hear that the lease is free or to ask.
				require.Less(t, got.Sub(asked), 900*time.Millisecond+test.turn, "the lone waiter waited for too long: %+v", test)
			}
			over.Store(true)
			wg.Wait()
			require.NoError(t, crowded.Close(t.Context()))
			require.NoError(t, alone.Close(t.Context()))
		})
	}
}

// STORE-13: A process that needs a lease again and again does not wait when the lease was free
// long enough for others in between.
func TestNoPauseForALeaseThatWasFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := pawl.Open(pawl.Config{Store: &hinting{Tap: newTap()}})
		require.NoError(t, err)
		for range 30 {
			asked := time.Now()
			lease, err := pawl.Session[counts](rt, "a").Acquire(t.Context())
			require.NoError(t, err)
			require.Zero(t, time.Since(asked), "the lease was free")
			require.NoError(t, lease.Release(t.Context()))
			time.Sleep(60 * time.Millisecond)
		}
		require.NoError(t, rt.Close(t.Context()))
	})
}
