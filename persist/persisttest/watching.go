package persisttest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

func (s suite) watching() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"every change is hinted to every watcher":            s.everyChange,
		"a change by another process is hinted":              s.changedElsewhere,
		"a change is hinted to another process":              s.watchedElsewhere,
		"the last of many changes is hinted":                 s.lastChange,
		"a refused commit is not hinted as a version":        s.watchRefused,
		"a slow watcher delays no commit and misses no hint": s.slowWatcher,
		"watching ends with the context":                     s.watchCancelled,
		"watching ends with the store and its goroutines":    s.watchClosed,
	}
}

// watcher returns the store as a Watcher.
func (f *fixture) watcher() persist.Watcher {
	f.Helper()
	watcher, ok := f.store.(persist.Watcher)
	if !ok {
		f.Skip("the store is not a persist.Watcher")
	}
	return watcher
}

// patience limits the time that a hint may take before the test fails.
const patience = 30 * time.Second

// watch is a watcher that reads a record only after a hint for it.
type watch struct {
	f      *fixture
	cancel context.CancelFunc
	ended  chan error // receives the error of Watch

	busy atomic.Bool // wake is running
	over atomic.Bool // Watch has returned

	looked map[persist.Key]int // the number of hints before the last read, by key

	mu    sync.Mutex // protects the fields below
	hints []persist.Hint
	news  chan struct{} // closed with the next hint
}

// watch starts a watcher and waits for the first hint, which is the zero hint.
func (f *fixture) watch() *watch {
	f.Helper()
	return f.watchWith(func(persist.Hint) {})
}

// watchWith is watch with a function that is called for every hint.
func (f *fixture) watchWith(do func(persist.Hint)) *watch {
	f.Helper()
	watcher := f.watcher()
	ctx, cancel := context.WithCancel(f.Context())
	w := &watch{f: f, cancel: cancel, ended: make(chan error, 1), news: make(chan struct{}), looked: map[persist.Key]int{}}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		err := watcher.Watch(ctx, func(hint persist.Hint) {
			w.wake(hint)
			do(hint)
			w.busy.Store(false)
		})
		w.over.Store(true)
		w.ended <- err
	}()
	f.Cleanup(func() {
		cancel()
		<-returned
	})
	require.True(f, w.await(1), "the first hint is missing")
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Equal(f, persist.Hint{}, w.hints[0])
	return w
}

// wake records a hint.
func (w *watch) wake(hint persist.Hint) {
	if !w.busy.CompareAndSwap(false, true) {
		w.f.Error("wake was called concurrently")
	}
	if w.over.Load() {
		w.f.Error("wake was called after Watch had returned")
	}
	if hint.Key == (persist.Key{}) && hint.Version != 0 {
		w.f.Errorf("a hint without a key has version %d", hint.Version)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hints = append(w.hints, hint)
	close(w.news)
	w.news = make(chan struct{})
}

// await waits for a number of hints and reports whether they came in time.
func (w *watch) await(count int) bool {
	deadline := time.After(patience)
	for {
		w.mu.Lock()
		there, news := len(w.hints) >= count, w.news
		w.mu.Unlock()
		if there {
			return true
		}
		select {
		case <-news:
		case <-deadline:
			return false
		}
	}
}

// sees reads the record of k after each hint for it, and only then, until is returns true. It fails
// the test if a hint has a version above that of the record.
func (w *watch) sees(k persist.Key, want string, is func(persist.Record) bool) {
	w.f.Helper()
	for {
		version, next := w.next(k)
		require.True(w.f, next > 0, "no hint in time for %s to be %s", k, want)
		w.looked[k] = next
		r, err := w.f.store.Load(w.f.Context(), k)
		if err != nil {
			require.ErrorIs(w.f, err, persist.ErrNotFound)
		}
		require.LessOrEqual(w.f, version, r.Version, "a hint is ahead of %s", k)
		if is(r) {
			return
		}
	}
}

// next waits for new hints that concern k. It returns their highest version and the number of hints
// up to the last of them, 0 if none came in time.
func (w *watch) next(k persist.Key) (version uint64, next int) {
	from := max(w.looked[k], 1) // the first hint stands for earlier changes
	for count := from + 1; w.await(count); count++ {
		w.mu.Lock()
		hints := slices.Clone(w.hints)
		w.mu.Unlock()
		for i, hint := range hints[from:] {
			if hint.Key == k || hint == (persist.Hint{}) {
				version, next = max(version, hint.Version), from+i+1
			}
		}
		if next > 0 {
			return version, next
		}
		count = len(hints)
	}
	return 0, 0
}

// seesVersion is sees for a version.
func (w *watch) seesVersion(k persist.Key, version uint64) {
	w.f.Helper()
	w.sees(k, fmt.Sprintf("at version %d", version), func(r persist.Record) bool { return r.Version >= version })
}

// everyChange: watchers of two handles of the same data get a hint for a create, a write, a delete,
// a commit of several keys, and each change of a lease except its renewal.
//
// Proves SCOPE-13.
func (s suite) everyChange(t *testing.T) {
	f := s.fresh(t)
	watches := []*watch{f.watch(), f.watch()}
	if !s.options.Volatile {
		watches = append(watches, s.at(t, f.location).watch())
	}
	see := func(k persist.Key, version uint64) {
		t.Helper()
		for _, w := range watches {
			w.seesVersion(k, version)
		}
	}
	a, b := key("a"), key("b")
	f.must(create(a))
	see(a, 1)
	f.must(update(a, 1))
	see(a, 2)
	f.must(acquire(a, 2, "me", time.Hour))
	see(a, 3)
	_, err := f.guard(persist.Guard{Key: a, Token: 3, Extend: 2 * time.Hour})
	require.NoError(t, err)
	_, err = f.guard(persist.Guard{Key: a, Token: 3, Release: true})
	require.NoError(t, err)
	for _, w := range watches {
		w.sees(a, "released", func(r persist.Record) bool { return r.Lease.Token == 0 })
	}
	f.must(remove(a, 3))
	see(a, 4)
	again := update(a, 4)
	again.Gone = true
	f.must(again)
	see(a, 5)
	if !s.options.SingleKey {
		f.must(update(a, 5), create(b))
		see(a, 6)
		see(b, 1)
	}
	leaser, ok := f.store.(persist.Leaser)
	if !ok {
		return
	}
	c := persist.Key{Kind: "taken", ID: "c"}
	f.must(create(c))
	see(c, 1)
	taken, err := leaser.Take(t.Context(), persist.Query{Kind: "taken"}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	see(c, 2)
}

// changeRole creates "created", and changes the existing records "updated", "deleted", "taken" and
// "released".
func changeRole(ctx context.Context, c *child) error {
	commit := func(writes []persist.Write, guards ...persist.Guard) error {
		_, err := c.store.Commit(ctx, persist.Commit{ID: "child" + commitID(), Writes: writes, Guards: guards})
		return err
	}
	return errors.Join(
		commit([]persist.Write{create(key("created"))}),
		commit([]persist.Write{update(key("updated"), 1)}),
		commit([]persist.Write{remove(key("deleted"), 1)}),
		commit([]persist.Write{acquire(key("taken"), 1, "child", time.Hour)}),
		commit(nil, persist.Guard{Key: key("released"), Token: 1, Release: true}),
		commit([]persist.Write{create(persist.Key{Kind: "a new kind", ID: strings.Repeat("long ", 50)})}),
	)
}

// Proves SCOPE-13.
func (s suite) changedElsewhere(t *testing.T) {
	s.needsSharing(t)
	f := s.fresh(t)
	for _, id := range []string{"updated", "deleted", "taken"} {
		f.must(create(key(id)))
	}
	f.must(acquire(key("released"), 0, "me", time.Hour))
	w := f.watch()
	p := s.spawn(t, "change", f.location, "p")
	p.Go()
	w.seesVersion(key("created"), 1)
	w.seesVersion(key("updated"), 2)
	w.seesVersion(key("deleted"), 2)
	w.seesVersion(key("taken"), 2)
	w.sees(key("released"), "released", func(r persist.Record) bool { return r.Lease.Token == 0 })
	w.seesVersion(persist.Key{Kind: "a new kind", ID: strings.Repeat("long ", 50)}, 1)
	p.Wait()
}

const watchedVersions = 5

// watchRole prints a line when it watches, and after each hint the version of thing.
func watchRole(ctx context.Context, c *child) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	look := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- c.store.(persist.Watcher).Watch(ctx, func(persist.Hint) {
			select {
			case look <- struct{}{}:
			default:
			}
		})
	}()
	for begun := false; ; begun = true {
		select {
		case <-look:
		case err := <-ended:
			return err
		}
		if !begun {
			testkit.Say("watching")
		}
		r, err := c.store.Load(ctx, thing)
		if err != nil && !errors.Is(err, persist.ErrNotFound) {
			return err
		}
		testkit.Say("%d", r.Version)
		if r.Version == watchedVersions {
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				return fmt.Errorf("it stopped watching: %w", err)
			}
			return nil
		}
	}
}

// Proves SCOPE-13.
func (s suite) watchedElsewhere(t *testing.T) {
	s.needsSharing(t)
	f := s.fresh(t)
	f.watcher()
	p := s.spawn(t, "watch", f.location, "p")
	p.Go()
	hears := func(want string) {
		t.Helper()
		for p.Line() != want {
		}
	}
	hears("watching")
	for version := range uint64(watchedVersions) {
		f.must(update(thing, version))
		hears(fmt.Sprint(version + 1))
	}
	p.Wait()
}

// lastChange: hints may be merged, but a watcher that reads after each hint sees the last version.
//
// Proves SCOPE-13.
func (s suite) lastChange(t *testing.T) {
	f := s.fresh(t)
	others := []*fixture{f}
	if !s.options.Volatile {
		others = append(others, s.at(t, f.location))
	}
	var watches []*watch
	for _, other := range others {
		watches = append(watches, other.watch())
	}
	const writers, rounds, keys = 4, 15, 3
	together(writers, func(i int) {
		for n := range rounds {
			k := key(fmt.Sprint((i + n) % keys))
			if err := increment(t.Context(), others[i%len(others)].store, k, fmt.Sprintf("w%d.%d", i, n)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for n := range keys {
		k := key(fmt.Sprint(n))
		last := f.load(k).Version
		for _, w := range watches {
			w.seesVersion(k, last)
		}
	}
}

// watchRefused: no hint has a version that was not committed, and the commit after a refused one is
// hinted.
//
// Proves SCOPE-13.
func (s suite) watchRefused(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	w := f.watch()
	_, err := f.write(update(thing, 5))
	lost(t, err)
	_, err = f.guard(persist.Guard{Key: thing, Token: 3, Release: true})
	fenced(t, err)
	f.must(update(thing, 1))
	w.seesVersion(thing, 2)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, hint := range w.hints {
		require.LessOrEqual(t, hint.Version, uint64(2))
	}
}

// slowWatcher: a wake that does not return delays no commit and no other watcher. The hints that
// came meanwhile are delivered afterwards.
//
// Proves SCOPE-13.
func (s suite) slowWatcher(t *testing.T) {
	f := s.fresh(t)
	quick := f.watch()
	hold := make(chan struct{})
	free := sync.OnceFunc(func() { close(hold) })
	var held atomic.Bool
	slow := f.watchWith(func(persist.Hint) {
		if held.Load() {
			<-hold
		}
	})
	t.Cleanup(free)
	held.Store(true)
	const changes = 40
	for i := range changes {
		f.must(create(key(fmt.Sprint(i))))
		quick.seesVersion(key(fmt.Sprint(i)), 1)
	}
	f.must(update(key("0"), 1))
	free()
	slow.seesVersion(key("0"), 2)
	for i := 1; i < changes; i++ {
		slow.seesVersion(key(fmt.Sprint(i)), 1)
	}
}

// watchCancelled: Watch returns the context's error, also if the context ended before the call.
// Other watchers continue.
//
// Proves SCOPE-13.
func (s suite) watchCancelled(t *testing.T) {
	f := s.fresh(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.watcher().Watch(ended, func(persist.Hint) {}), context.Canceled)

	one, two := f.watch(), f.watch()
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := increment(t.Context(), f.store, thing, fmt.Sprintf("w.%d", n)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	one.seesVersion(thing, 2)
	one.cancel()
	require.ErrorIs(t, <-one.ended, context.Canceled)
	now := f.load(thing).Version
	two.seesVersion(thing, now+2) // a late call of wake would have been noticed by then
	close(stop)
	writing.Wait()
}

// watchClosed: every current and later Watch returns ErrClosed, and the goroutines of the store
// end.
//
// Proves SCOPE-13.
func (s suite) watchClosed(t *testing.T) {
	location := s.location(t)
	// Goroutines inherit labels, which distinguishes them from the goroutines of other tests.
	mark := rand.Text()
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("watching", mark)))
	store, err := s.open(location)
	require.NoError(t, err)
	f := &fixture{T: t, store: store, location: location}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	one, two, three := f.watch(), f.watch(), f.watch()
	f.must(create(thing))
	one.seesVersion(thing, 1)
	two.cancel()
	require.ErrorIs(t, <-two.ended, context.Canceled)
	require.NotEmpty(t, marked(mark))
	require.NoError(t, store.Close())
	require.ErrorIs(t, <-one.ended, persist.ErrClosed)
	require.ErrorIs(t, <-three.ended, persist.ErrClosed)
	err = f.watcher().Watch(t.Context(), func(persist.Hint) { t.Error("a closed store has hints") })
	require.ErrorIs(t, err, persist.ErrClosed)
	one.cancel()
	three.cancel()
	pprof.SetGoroutineLabels(t.Context())
	var left []string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if left = marked(mark); len(left) == 0 {
			return
		}
	}
	t.Fatalf("goroutines still running after Close: %s", strings.Join(left, "\n"))
}

// marked returns the stacks of goroutines with this label.
func marked(mark string) (stacks []string) {
	var all strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, mark) {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
