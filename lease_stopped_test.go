//go:build unix

package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func init() { testkit.Child("stopped", stoppedChild) }

const (
	stoppedHolders = 14 // per process
	stoppedLease   = time.Second
)

// stoppedWant is how many holders to stop while they write, by store; PAWL_KILLS overrides it.
// Plain files take longest: a holder is often stopped while it has a lock.
var stoppedWant = map[string]int{"sqlite": 90, "fs": 42, "postgres": 70}

func stoppedLock(rt pawl.Owner, i int) pawl.Scope[logbook] {
	return logbooks.Scope(rt, fmt.Sprint("lock-", i))
}

func stoppedBook(rt pawl.Owner, i int) pawl.Scope[logbook] {
	return logbooks.Scope(rt, fmt.Sprint("book-", i))
}

// fenceReporter reports when a write was refused because of a lease.
type fenceReporter struct{ persist.Store }

func (s fenceReporter) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	at, err := s.Store.Commit(ctx, c)
	if fenced := (*persist.Fenced)(nil); len(c.Writes) > 0 && errors.As(err, &fenced) {
		testkit.Say("fenced")
	}
	return at, err
}

// LoadAll makes fenceReporter a persist.Reader, as every store of these tests is.
func (s fenceReporter) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	return s.Store.(persist.Reader).LoadAll(ctx, keys)
}

// stoppedChild holds leases and writes under them, until it is killed.
func stoppedChild() error {
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	rt, err := pawl.Open(pawl.Config{Store: fenceReporter{store}})
	if err != nil {
		return err
	}
	testkit.Begin()
	testkit.Say("pid %d", os.Getpid())
	failed := make(chan error)
	for i := range stoppedHolders {
		go func() {
			for {
				if err := stoppedHold(rt, i); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}

// stoppedHold holds a lease until it is lost. It reports how many writes under the lease were
// acknowledged, and how many are in doubt.
func stoppedHold(rt *pawl.Runtime, i int) error {
	l, err := stoppedLock(rt, i).Acquire(context.Background(), pawl.WaitForLease(), pawl.LeaseFor(stoppedLease))
	if errors.Is(err, pawl.ErrUnavailable) || errors.Is(err, pawl.ErrConflict) || errors.Is(err, pawl.ErrLeaseLost) || pawl.OutcomeUnknown(err) {
		return nil
	}
	if err != nil {
		return err
	}
	testkit.Say("holds %d %d %d", i, l.Token(), testkit.Now())
	ctx := l.Context()
	if i%2 == 1 {
		ctx = context.WithoutCancel(ctx) // a holder that ignores the end of its context is refused, too
	}
	acknowledged, inDoubt := 0, 0
	for n := 0; ; n++ {
		err := stoppedWrite(ctx, rt, i, n%3, fmt.Sprintf("%d.%d.%d", l.Token(), n%3, n))
		var left *pawl.CanceledError
		switch {
		case err == nil:
			acknowledged++
			continue
		case errors.Is(err, pawl.ErrLeaseLost) && !errors.As(err, &left):
		case pawl.OutcomeUnknown(err), errors.As(err, &left):
			inDoubt++
		case errors.Is(err, pawl.ErrUnavailable), errors.Is(err, pawl.ErrConflict):
		default:
			return err
		}
		if l.Context().Err() != nil {
			testkit.Say("lost %d %d %d %d %d", i, l.Token(), testkit.Now(), acknowledged, inDoubt)
			return nil
		}
	}
}

// stoppedWrite appends an entry to the leased scope, to another one, or to both.
func stoppedWrite(ctx context.Context, rt *pawl.Runtime, i, sort int, entry string) error {
	time.Sleep(rand.N(200 * time.Millisecond)) // idle times let another process take over
	lock, book := stoppedLock(rt, i), stoppedBook(rt, i)
	think := func() { time.Sleep(rand.N(200 * time.Millisecond)) }
	switch sort {
	case 0:
		_, err := lock.PushState(ctx, "log", entry)
		return err
	case 1:
		_, err := book.AtomicState(ctx, func(_ context.Context, b *logbook) error {
			think()
			b.Log = append(b.Log, entry)
			return nil
		})
		return err
	}
	return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := lock.In(tx).PushState(ctx, "log", entry); err != nil {
			return err
		}
		think()
		_, err := book.In(tx).PushState(ctx, "log", entry)
		return err
	})
}

// stoppedReports holds what a process reported about its holders.
type stoppedReports struct {
	mu     sync.Mutex             // protects all fields
	holds  [stoppedHolders]uint64 // token of the current lease by holder; 0: none
	lostAt [stoppedHolders]int64  // when the holder last lost a lease
	writes map[string]string      // by holder and token: number of writes acknowledged and in doubt
	fenced int                    // writes that the store refused because of a lease
}

func (f *stoppedReports) record(line string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var i int
	var token uint64
	var at int64
	what, rest, _ := strings.Cut(line, " ")
	switch what {
	case "fenced":
		f.fenced++
	case "holds":
		if _, err := fmt.Sscan(rest, &i, &token, &at); err != nil {
			return err
		}
		f.holds[i] = token
	case "lost":
		var acknowledged, inDoubt int
		if _, err := fmt.Sscan(rest, &i, &token, &at, &acknowledged, &inDoubt); err != nil {
			return err
		}
		f.holds[i], f.lostAt[i] = 0, at
		f.writes[fmt.Sprintf("%d %d", i, token)] = fmt.Sprintf("%d %d", acknowledged, inDoubt)
	default:
		return fmt.Errorf("unexpected line %q", line)
	}
	return nil
}

// refused returns how many writes the store has refused because of a lease.
func (f *stoppedReports) refused() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fenced
}

// A holder that is stopped until its lease runs out writes nothing after its successor has written.
// The leases of a killed process go to waiters, and no transaction is committed in part.
//
// Proves STORE-13.
func TestStoppedAndKilledHolders(t *testing.T) {
	for _, s := range stores.Shared {
		t.Run(s.Name, func(t *testing.T) {
			location := s.New(t)
			t.Parallel()
			testStoppedHolders(t, location, killsOf(stoppedWant[s.Name]))
		})
	}
}

func testStoppedHolders(t *testing.T, location string, want int) {
	rt := openRuntime(t, pawl.Config{Store: stores.OpenFor(t, location), Holder: "successor"})
	p := testkit.Start(t, "stopped", stores.Env(location))
	p.Limit(2*time.Minute + time.Duration(want)*time.Second)
	testkit.Ready(p)
	line, _ := p.Next()
	pid := 0
	_, err := fmt.Sscanf(line, "pid %d", &pid)
	require.NoError(t, err, line)
	reports := &stoppedReports{writes: map[string]string{}}
	ended := make(chan error, 1)
	go func() {
		for {
			line, ok := p.Next()
			if !ok {
				ended <- nil
				return
			}
			if err := reports.record(line); err != nil {
				ended <- err
				return
			}
		}
	}()
	all := func(ok func(i int) bool) func() bool {
		return func() bool {
			reports.mu.Lock()
			defer reports.mu.Unlock()
			for i := range stoppedHolders {
				if !ok(i) {
					return false
				}
			}
			return true
		}
	}
	stopped, missed, rounds := 0, 0, 0
	for ; stopped < want || reports.refused() == 0 && rounds < 20; rounds++ {
		require.Less(t, missed, 20*want, "too many attempts to take over failed")
		if !assert.Eventually(t, all(func(i int) bool { return reports.holds[i] != 0 }), testkit.Patience, time.Millisecond, "not all holders have their leases") {
			select {
			case err := <-ended:
				t.Fatalf("the process has ended: %v\n%s", err, p.Stderr())
			default:
				t.FailNow()
			}
		}
		time.Sleep(rand.N(300 * time.Millisecond)) // any moment
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		if !storeIsFree(t, rt) {
			missed++
			require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
			continue
		}
		taken := stoppedTakeOver(t, rt)
		since := testkit.Now()
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
		testkit.Eventually(t, all(func(i int) bool { return taken[i] == nil || reports.holds[i] == 0 }), "not all holders have noticed the loss")
		for i, l := range taken {
			if l == nil { // the process was stopped while it held a lock of the store
				missed++
				continue
			}
			reports.mu.Lock()
			if reports.lostAt[i] > since {
				stopped++
			}
			reports.mu.Unlock()
			for _, s := range []pawl.Scope[logbook]{stoppedLock(rt, i), stoppedBook(rt, i)} {
				b, err := s.State(t.Context())
				require.NoError(t, err)
				require.Equal(t, fmt.Sprintf("%d.successor", l.Token()), b.Log[len(b.Log)-1], "%s was written by a stopped holder after its successor", s.Key())
			}
			require.NoError(t, l.Release(t.Context()))
		}
	}
	took := stoppedKill(t, rt, p, pid, ended, all(func(i int) bool { return reports.holds[i] != 0 }))
	stoppedAudit(t, rt, reports)
	testkit.Figures(t, "%d holders stopped in %d rounds, %d while they held a lock; %d writes fenced; %v from the kill to the last acquisition", stopped, rounds, missed, reports.fenced, took)
	require.Positive(t, reports.fenced, "the store refused no write")
}

// storeIsFree reports whether other processes can write. The stopped process may hold the lock that
// all writers of the store need.
func storeIsFree(t *testing.T, rt *pawl.Runtime) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stoppedLease/2)
	defer cancel()
	_, err := logbooks.Scope(rt, "probe").IncState(ctx, "turns", 1)
	return err == nil
}

// stoppedTakeOver acquires the leases of a stopped process and writes an entry under each. A lease
// that could not be acquired is nil.
func stoppedTakeOver(t *testing.T, rt *pawl.Runtime) (taken [stoppedHolders]*pawl.Lease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*stoppedLease)
	defer cancel()
	var wg sync.WaitGroup
	for i := range taken {
		wg.Go(func() {
			l, err := stoppedLock(rt, i).Acquire(ctx, pawl.WaitForLease())
			if err != nil {
				return
			}
			// ctx only bounds the wait, not the write.
			under := context.WithoutCancel(l.Context())
			entry := fmt.Sprintf("%d.successor", l.Token())
			err = pawl.Transact(under, rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := stoppedLock(tx, i).PushState(ctx, "log", entry); err != nil {
					return err
				}
				_, err := stoppedBook(tx, i).PushState(ctx, "log", entry)
				return err
			}, pawl.WithRetry(pawl.Retry{Within: 5 * stoppedLease}))
			if err != nil {
				_ = l.Release(context.WithoutCancel(ctx))
				return
			}
			taken[i] = l
		})
	}
	wg.Wait()
	return taken
}

// stoppedKill kills the process while waiters want its leases, and returns the time until all
// waiters had theirs.
func stoppedKill(t *testing.T, rt *pawl.Runtime, p *testkit.Process, pid int, ended <-chan error, holding func() bool) time.Duration {
	t.Helper()
	testkit.Eventually(t, holding, "not all holders have their leases")
	var g errgroup.Group
	for i := range stoppedHolders {
		g.Go(func() error {
			return stoppedLock(rt, i).Hold(context.Background(), func(context.Context, *pawl.Lease) error { return nil }, pawl.WaitForLease())
		})
	}
	time.Sleep(rand.N(300 * time.Millisecond)) // any moment
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	killed := time.Now()
	require.NoError(t, <-ended)
	require.NoError(t, g.Wait())
	took := time.Since(killed)
	p.Kill()
	require.Less(t, took, stoppedLease+10*time.Second, "a lease outlived its holder for too long")
	return took
}

// stoppedAudit compares the entries in the store with the reports.
func stoppedAudit(t *testing.T, rt *pawl.Runtime, reports *stoppedReports) {
	t.Helper()
	reports.mu.Lock()
	defer reports.mu.Unlock()
	for i := range stoppedHolders {
		counts, transfers := map[uint64]int{}, map[string]int{}
		for _, s := range []pawl.Scope[logbook]{stoppedLock(rt, i), stoppedBook(rt, i)} {
			b, err := s.State(t.Context())
			require.NoError(t, err)
			newest := uint64(0)
			for _, entry := range b.Log {
				var token uint64
				var sort, n int
				if _, err := fmt.Sscanf(entry, "%d.successor", &token); err != nil {
					_, err = fmt.Sscanf(entry, "%d.%d.%d", &token, &sort, &n)
					require.NoError(t, err, entry)
					if sort == 2 {
						transfers[entry]++
					}
					if sort != 2 || s.Key() == stoppedLock(rt, i).Key() {
						counts[token]++
					}
				}
				require.GreaterOrEqual(t, token, newest, "%s: %v", s.Key(), b.Log)
				newest = token
			}
		}
		for entry, n := range transfers {
			require.Equal(t, 2, n, "transaction %s of holder %d was committed in part", entry, i)
		}
		for hold, numbers := range reports.writes {
			var holder, acknowledged, inDoubt int
			var token uint64
			_, err := fmt.Sscan(hold, &holder, &token)
			require.NoError(t, err)
			_, err = fmt.Sscan(numbers, &acknowledged, &inDoubt)
			require.NoError(t, err)
			if holder == i {
				require.GreaterOrEqual(t, counts[token], acknowledged, "holder %d, token %d: an acknowledged write is lost", i, token)
				require.LessOrEqual(t, counts[token], acknowledged+inDoubt, "holder %d, token %d: too many writes", i, token)
			}
		}
	}
}
