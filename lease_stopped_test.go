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
	stoppedHolders = 14 // of one process
	stoppedLease   = time.Second
)

// stoppedWant is how many holders are stopped in mid-work, of each store; PAWL_KILLS overrides it. With plain files it takes longest: there a holder is
// often stopped with a lock.
var stoppedWant = map[string]int{"sqlite": 90, "fs": 42, "postgres": 70}

func stoppedLock(rt pawl.Owner, i int) pawl.Scope[logbook] {
	return logbooks.Scope(rt, fmt.Sprint("lock-", i))
}

func stoppedBook(rt pawl.Owner, i int) pawl.Scope[logbook] {
	return logbooks.Scope(rt, fmt.Sprint("book-", i))
}

// fenceTeller says when a write was refused because of a lease.
type fenceTeller struct{ persist.Store }

func (s fenceTeller) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	at, err := s.Store.Commit(ctx, c)
	if fenced := (*persist.Fenced)(nil); len(c.Writes) > 0 && errors.As(err, &fenced) {
		testkit.Say("fenced")
	}
	return at, err
}

// LoadAll makes fenceTeller a persist.Reader, as every store of these tests is.
func (s fenceTeller) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	return s.Store.(persist.Reader).LoadAll(ctx, keys)
}

// stoppedChild holds leases and writes under them, until it is killed.
func stoppedChild() error {
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	rt, err := pawl.Open(pawl.Config{Store: fenceTeller{store}})
	if err != nil {
		return err
	}
	testkit.Begin()
	testkit.Say("pid %d", os.Getpid())
	failed := make(chan error)
	for i := range stoppedHolders {
		go func() {
			for {
				if err := stoppedTerm(rt, i); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}

// stoppedTerm holds a lease until it is lost, and says how many writes under it were acknowledged, and of how many nobody knows.
func stoppedTerm(rt *pawl.Runtime, i int) error {
	l, err := stoppedLock(rt, i).Acquire(context.Background(), pawl.WaitForLease(), pawl.LeaseFor(stoppedLease))
	if errors.Is(err, pawl.ErrUnavailable) || errors.Is(err, pawl.ErrConflict) || pawl.OutcomeUnknown(err) {
		return nil
	}
	if err != nil {
		return err
	}
	testkit.Say("holds %d %d %d", i, l.Token(), testkit.Now())
	ctx := l.Context()
	if i%2 == 1 {
		ctx = context.WithoutCancel(ctx) // whoever does not look at the context is refused as well
	}
	acknowledged, unsure := 0, 0
	for n := 0; ; n++ {
		err := stoppedWrite(ctx, rt, i, n%3, fmt.Sprintf("%d.%d.%d", l.Token(), n%3, n))
		var left *pawl.CanceledError
		switch {
		case err == nil:
			acknowledged++
			continue
		case errors.Is(err, pawl.ErrLeaseLost) && !errors.As(err, &left):
		case pawl.OutcomeUnknown(err), errors.As(err, &left):
			unsure++
		case errors.Is(err, pawl.ErrUnavailable), errors.Is(err, pawl.ErrConflict):
		default:
			return err
		}
		if l.Context().Err() != nil {
			testkit.Say("lost %d %d %d %d %d", i, l.Token(), testkit.Now(), acknowledged, unsure)
			return nil
		}
	}
}

// stoppedWrite signs the scope that is leased, another one, or both.
func stoppedWrite(ctx context.Context, rt *pawl.Runtime, i, sort int, entry string) error {
	time.Sleep(rand.N(200 * time.Millisecond)) // now and then the store has to be at rest, or else nobody can take over
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

// stoppedFates is what a process has said of its holders.
type stoppedFates struct {
	mu     sync.Mutex
	holds  [stoppedHolders]uint64 // the token that it has now; 0: none
	lostAt [stoppedHolders]int64  // the last one
	terms  map[string]string      // of each holder and token: what was acknowledged, and of what nobody knows
	fenced int
}

func (f *stoppedFates) hear(line string) error {
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
		var acknowledged, unsure int
		if _, err := fmt.Sscan(rest, &i, &token, &at, &acknowledged, &unsure); err != nil {
			return err
		}
		f.holds[i], f.lostAt[i] = 0, at
		f.terms[fmt.Sprintf("%d %d", i, token)] = fmt.Sprintf("%d %d", acknowledged, unsure)
	default:
		return fmt.Errorf("it says %q", line)
	}
	return nil
}

// TestStoppedAndKilledHolders: a process with many holders, each in a loop of writes under its lease, is stopped until its leases have run out and others
// have taken over, and goes on then. Nothing of a holder that was stopped is written after its successor has signed, on the leased scope or
// another one, by a verb or a transaction; what it was told is what is there. In the end the process is killed while others wait for its leases:
// they get them when those have run out, and no transaction is there in part.
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
	testkit.Ready(p)
	line, _ := p.Next()
	pid := 0
	_, err := fmt.Sscanf(line, "pid %d", &pid)
	require.NoError(t, err, line)
	fates := &stoppedFates{terms: map[string]string{}}
	heard := make(chan error, 1)
	go func() {
		for {
			line, ok := p.Next()
			if !ok {
				heard <- nil
				return
			}
			if err := fates.hear(line); err != nil {
				heard <- err
				return
			}
		}
	}()
	all := func(ok func(i int) bool) func() bool {
		return func() bool {
			fates.mu.Lock()
			defer fates.mu.Unlock()
			for i := range stoppedHolders {
				if !ok(i) {
					return false
				}
			}
			return true
		}
	}
	stopped, missed, rounds := 0, 0, 0
	for ; stopped < want; rounds++ {
		require.Less(t, missed, 20*want, "hardly ever did anybody take over")
		if !assert.Eventually(t, all(func(i int) bool { return fates.holds[i] != 0 }), testkit.Patience, time.Millisecond, "not all hold") {
			select {
			case err := <-heard:
				t.Fatalf("the holders are gone: %v\n%s", err, p.Stderr())
			default:
				t.FailNow()
			}
		}
		time.Sleep(rand.N(300 * time.Millisecond)) // the moment is to be anywhere
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		if !stoppedFree(t, rt) {
			missed++
			require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
			continue
		}
		taken := stoppedTakeOver(t, rt)
		since := testkit.Now()
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
		testkit.Eventually(t, all(func(i int) bool { return taken[i] == nil || fates.holds[i] == 0 }), "not all have noticed")
		for i, l := range taken {
			if l == nil { // it was stopped while it kept a lock of the store's
				missed++
				continue
			}
			fates.mu.Lock()
			if fates.lostAt[i] > since {
				stopped++
			}
			fates.mu.Unlock()
			for _, s := range []pawl.Scope[logbook]{stoppedLock(rt, i), stoppedBook(rt, i)} {
				b, err := s.State(t.Context())
				require.NoError(t, err)
				require.Equal(t, fmt.Sprintf("%d.successor", l.Token()), b.Log[len(b.Log)-1], "%s was written by who had been stopped", s.Key())
			}
			require.NoError(t, l.Release(t.Context()))
		}
	}
	took := stoppedKill(t, rt, p, pid, heard, all(func(i int) bool { return fates.holds[i] != 0 }))
	stoppedAudit(t, rt, fates)
	t.Logf("%d holders stopped in %d rounds, %d kept a lock meanwhile; %d writes fenced; %v from the kill to the last take-over", stopped, rounds, missed, fates.fenced, took)
	require.Positive(t, fates.fenced, "the store never had to refuse anything")
}

// stoppedFree reports whether the stopped process left the store open to others. It may have been stopped in mid-commit, with the lock that all writers
// of the store need.
func stoppedFree(t *testing.T, rt *pawl.Runtime) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stoppedLease/2)
	defer cancel()
	_, err := logbooks.Scope(rt, "probe").IncState(ctx, "turns", 1)
	return err == nil
}

// stoppedTakeOver takes the leases of a stopped process and signs. A nil stands for one that could not be taken.
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
			// It lives on without ctx, which has only to bound the waiting.
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

// stoppedKill kills the process while others wait for its leases, and returns how long it took until all had theirs.
func stoppedKill(t *testing.T, rt *pawl.Runtime, p *testkit.Process, pid int, heard <-chan error, holding func() bool) time.Duration {
	t.Helper()
	testkit.Eventually(t, holding, "not all hold")
	var g errgroup.Group
	for i := range stoppedHolders {
		g.Go(func() error {
			return stoppedLock(rt, i).Hold(context.Background(), func(context.Context, *pawl.Lease) error { return nil }, pawl.WaitForLease())
		})
	}
	time.Sleep(rand.N(300 * time.Millisecond)) // the moment is to be anywhere
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	killed := time.Now()
	require.NoError(t, <-heard)
	require.NoError(t, g.Wait())
	took := time.Since(killed)
	p.Kill()
	require.Less(t, took, stoppedLease+10*time.Second, "a lease outlived its holder for long")
	return took
}

// stoppedAudit compares what is written with what was told.
func stoppedAudit(t *testing.T, rt *pawl.Runtime, fates *stoppedFates) {
	t.Helper()
	fates.mu.Lock()
	defer fates.mu.Unlock()
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
			require.Equal(t, 2, n, "%s of %d is there in part", entry, i)
		}
		for term, told := range fates.terms {
			var holder, acknowledged, unsure int
			var token uint64
			_, err := fmt.Sscan(term, &holder, &token)
			require.NoError(t, err)
			_, err = fmt.Sscan(told, &acknowledged, &unsure)
			require.NoError(t, err)
			if holder == i {
				require.GreaterOrEqual(t, counts[token], acknowledged, "%d under %d", i, token)
				require.LessOrEqual(t, counts[token], acknowledged+unsure, "%d under %d", i, token)
			}
		}
	}
}
