//go:build linux

package soak_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/stream"
)

func init() { testkit.Child("server", serve) }

// Variables of a server process.
const (
	envSlot   = "PAWL_TEST_SLOT"   // of the two places for servers: 0 or 1
	envNumber = "PAWL_TEST_NUMBER" // of the process; a later one has a higher number
	envSample = "PAWL_TEST_SAMPLE" // milliseconds between two samples
)

const (
	writers  = 6 // goroutines of a server that change state
	watchers = 4 // goroutines of a server that watch
	pause    = 8 * time.Millisecond
)

// server is a server process. It works until SIGTERM, and then stops all its parts.
type server struct {
	*parts
	slot   string
	number int
	stop   context.Context // ends with SIGTERM
	failed chan error      // the first unexpected error
	carts  [carts]atomic.Int64

	watched atomic.Int64 // changes that watchers have seen
}

func number(variable string) int {
	n, err := strconv.Atoi(os.Getenv(variable))
	if err != nil {
		panic(fmt.Sprintf("%s: %v", variable, err))
	}
	return n
}

// serve is the function of a server process.
func serve() error {
	ctx := context.Background()
	stop, cancel := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer cancel()
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	s := &server{slot: os.Getenv(envSlot), number: number(envNumber), stop: stop, failed: make(chan error, 1)}
	if s.parts, err = openParts(store, fmt.Sprint("server-", s.number)); err != nil {
		return err
	}
	testkit.Begin()
	if err := s.start(ctx); err != nil {
		return err
	}
	var all sync.WaitGroup
	for i := range writers {
		w := &writer{server: s, name: fmt.Sprint(s.slot, "-", i), own: fmt.Sprint(s.number, "-", i), versions: map[string]uint64{}}
		all.Go(func() { s.repeat(func() error { return w.call(ctx) }) })
	}
	for range watchers {
		all.Go(func() { s.repeat(func() error { return s.watch(stop) }) })
	}
	all.Go(s.sample)
	select {
	case <-stop.Done():
	case err := <-s.failed:
		return err
	}
	all.Wait()
	select {
	case err := <-s.failed:
		return err
	default:
	}
	if err := s.checkCarts(ctx); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	return s.parts.stop(limited)
}

// repeat calls do until the server is told to stop. An error ends the server.
func (s *server) repeat(do func() error) {
	for s.stop.Err() == nil {
		if err := do(); err != nil {
			select {
			case s.failed <- err:
			default: // there was one before
			}
			return
		}
	}
}

// sample reports the goroutines, the heap after a garbage collection, what the sweeper has done, and how
// many changes watchers have seen.
func (s *server) sample() {
	ticks := time.NewTicker(time.Duration(number(envSample)) * time.Millisecond)
	defer ticks.Stop()
	for {
		select {
		case <-s.stop.Done():
			return
		case <-ticks.C:
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		testkit.Say("sample %d %d %d %d", runtime.NumGoroutine(), m.HeapAlloc, s.sweeper.Workers()[0].Done, s.watched.Load())
	}
}

// watch watches a scope for a short while, by Watch or by Changes. Versions only grow.
func (s *server) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rand.N(100*time.Millisecond))
	defer cancel()
	scope := sessionKind.Scope(s.rt, anySession())
	var last uint64
	look := func(c pawl.Change[session], err error) error {
		switch {
		case err != nil && (ctx.Err() != nil || pawl.IsRetryable(err)):
			return nil
		case err != nil:
			return fmt.Errorf("watch %s: %w", scope.Key(), err)
		case last != 0 && c.Version <= last:
			return fmt.Errorf("watch %s: version %d after %d", scope.Key(), c.Version, last)
		case last != 0:
			s.watched.Add(1)
		}
		last = c.Version
		return nil
	}
	if rand.N(2) == 0 {
		for c, err := range scope.Watch(ctx) {
			if err := look(c, err); err != nil {
				return err
			}
		}
		return nil
	}
	for c := range scope.Changes(ctx) {
		if err := look(c, c.Err); err != nil {
			return err
		}
	}
	return nil
}

// checkCarts compares the scopes in memory with the acknowledged changes.
func (s *server) checkCarts(ctx context.Context) error {
	for i := range s.carts {
		c, err := cartKind.Scope(s.rt, strconv.Itoa(i)).State(ctx)
		if err != nil {
			return err
		}
		if want := s.carts[i].Load(); c.N != want {
			return fmt.Errorf("cart %d has %d changes, %d were acknowledged", i, c.N, want)
		}
	}
	return nil
}

// writer is a goroutine of a server that makes one call after another.
type writer struct {
	*server
	name     string // the same in the next process of the slot
	own      string // different for each process
	calls    int64
	baskets  int64             // baskets given up after a call without an answer
	full     bool              // the basket exists
	versions map[string]uint64 // last version of each visit
}

// anySession returns the id of a session, in half of the calls of a hot one.
func anySession() string {
	if rand.N(2) == 0 {
		return strconv.Itoa(rand.N(hot))
	}
	return strconv.Itoa(rand.N(sessions))
}

// call makes one call, of a random verb.
func (w *writer) call(ctx context.Context) error {
	time.Sleep(rand.N(pause)) // the client thinks
	w.calls++
	id := anySession()
	scope := sessionKind.Scope(w.rt, id)
	switch rand.N(16) {
	case 0, 1, 2:
		return w.report("inc "+id, func() error { _, err := scope.IncState(ctx, "count", 1); return err })
	case 3, 4:
		n := w.next()
		return w.report(fmt.Sprintf("patch %s %s %d", id, w.name, n), func() error {
			_, err := scope.PatchState(ctx, pawl.Patch{pawl.Field("seen").At(w.name): n})
			return err
		})
	case 5, 6:
		return w.report("push "+id, func() error {
			_, err := scope.PushState(ctx, "notes", fmt.Sprint(w.own, "-", w.calls))
			return err
		})
	case 7, 8:
		return w.report("fold "+id, func() error { _, err := scope.AtomicState(ctx, fold); return err })
	case 9, 10:
		return w.transfer(ctx)
	case 11:
		return w.hold(ctx)
	case 12:
		return w.fillOrDelete(ctx)
	case 13:
		return w.visit(ctx)
	case 14:
		if err := w.inMemory(ctx); err != nil {
			return err
		}
		name := fmt.Sprint("s", rand.N(streams))
		event := fmt.Sprint(w.own, "-", w.calls)
		return w.report("event "+event, func() error {
			_, err := w.log.Append(ctx, name, stream.Any, noted{event})
			return err
		})
	default:
		if rand.N(8) > 0 { // a run makes many commits
			return nil
		}
		return w.travel(ctx)
	}
}

// next returns a number above all earlier ones of this writer and of those with its name in earlier
// processes.
func (w *writer) next() int64 { return int64(w.number)*1_000_000_000 + w.calls }

// report says what a call does before it and how it ended. A call whose outcome is unknown gets no
// second line. It returns an unexpected error.
func (w *writer) report(what string, call func() error) error {
	testkit.Say("> %s", what)
	err := call()
	switch {
	case err == nil:
		testkit.Say("= %s", what)
	case pawl.OutcomeUnknown(err):
	case pawl.IsRetryable(err), errors.Is(err, pawl.ErrLeaseLost):
		testkit.Say("! %s", what)
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// fold counts itself and removes notes, so that documents stay small.
func fold(_ context.Context, s *session) error {
	if s.Folds++; len(s.Notes) >= notesKept {
		s.Removed += int64(len(s.Notes))
		s.Notes = nil
	}
	return nil
}

// transfer moves an amount between two accounts.
func (w *writer) transfer(ctx context.Context) error {
	a := rand.N(accounts)
	b := (a + 1 + rand.N(accounts-1)) % accounts
	return w.report(fmt.Sprintf("move %d %d", a, b), func() error {
		amount := rand.N(int64(100))
		return pawl.Transact(ctx, w.rt, func(ctx context.Context, tx *pawl.Tx) error {
			from, to := accountKind.Scope(tx, strconv.Itoa(a)), accountKind.Scope(tx, strconv.Itoa(b))
			_, err := from.AtomicState(ctx, func(_ context.Context, a *account) error {
				a.Balance -= amount
				a.Moves++
				return nil
			})
			if err != nil {
				return err
			}
			_, err = to.Apply(ctx, pawl.All{pawl.Inc{Field: "balance", By: amount}, pawl.Inc{Field: "moves", By: 1}})
			return err
		})
	})
}

// hold changes a till under its lease.
func (w *writer) hold(ctx context.Context) error {
	id := strconv.Itoa(rand.N(tills))
	return w.report("hold "+id, func() error {
		scope, committed := tillKind.Scope(w.rt, id), false
		err := scope.Hold(ctx, func(ctx context.Context, _ *pawl.Lease) error {
			_, err := scope.AtomicState(ctx, func(_ context.Context, c *counter) error { c.N++; return nil })
			committed = err == nil
			return err
		}, pawl.LeaseFor(leaseFor))
		if committed && errors.Is(err, pawl.ErrLeaseLost) {
			return nil // it was lost after the commit
		}
		return err
	})
}

// fillOrDelete creates the writer's own basket, or deletes it. No other writer changes it. After a
// call without an answer the writer goes on with another one.
func (w *writer) fillOrDelete(ctx context.Context) error {
	id := fmt.Sprint(w.own, "-", w.baskets)
	scope, n := basketKind.Scope(w.rt, id), w.next()
	call, result := func() error { return scope.Delete(ctx) }, "gone"
	if !w.full {
		result = strconv.FormatInt(n, 10)
		call = func() error { _, err := scope.SetState(ctx, basket{n}, pawl.IfAbsent()); return err }
	}
	return w.report("set "+id+" "+result, func() error {
		err := call()
		switch {
		case err == nil:
			w.full = !w.full
		case pawl.OutcomeUnknown(err):
			w.full = false
			w.baskets++
		}
		return err
	})
}

// visit changes a scope that expires. Its version is never used again, also after it was swept and
// its tombstone was purged.
func (w *writer) visit(ctx context.Context) error {
	id := fmt.Sprint(w.own, "-", rand.N(50))
	snap, err := visitKind.Scope(w.rt, id).IncState(ctx, "n", 1)
	switch {
	case err != nil && (pawl.IsRetryable(err) || pawl.OutcomeUnknown(err)):
		return nil
	case err != nil:
		return err
	case snap.Version <= w.versions[id]:
		return fmt.Errorf("visit %s: version %d after %d", id, snap.Version, w.versions[id])
	}
	w.versions[id] = snap.Version
	return nil
}

// inMemory changes a scope in memory, and another one that lives as long as a request.
func (w *writer) inMemory(ctx context.Context) error {
	i := rand.N(carts)
	if _, err := cartKind.Scope(w.rt, strconv.Itoa(i)).IncState(ctx, "n", 1); err != nil {
		return err
	}
	w.carts[i].Add(1)
	request := pawl.NewLocal(w.rt)
	defer request.Close()
	snap, err := cartKind.Scope(request, "request").IncState(ctx, "n", 1)
	if err == nil && snap.State().N != 1 {
		err = fmt.Errorf("scope of a request has %d changes, want 1", snap.State().N)
	}
	return err
}

// travel starts a run and sends it a signal.
func (w *writer) travel(ctx context.Context) error {
	key := fmt.Sprint(w.own, "-", w.calls)
	return w.report("run "+key, func() error {
		r, created, err := w.trips.Start(ctx, trip{}, run.WithKey(key))
		if err != nil {
			return err
		}
		if !created {
			return fmt.Errorf("a run with the key %s existed", key)
		}
		var finished *run.FinishedError // the wait was over before
		if err := w.engine.Signal(ctx, r.ID, "go", nil); err != nil && !errors.As(err, &finished) && !pawl.IsRetryable(err) && !pawl.OutcomeUnknown(err) {
			return err
		}
		return nil
	})
}
