package hints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/notify"
	"github.com/pawl-go/pawl/persist"
)

// store implements only persist.Watcher and persist.Prober.
type store struct {
	persist.Store

	mu       sync.Mutex // protects the fields below
	versions map[persist.Key]uint64
	bad      map[persist.Key]bool // keys that cannot be read
	hangs    map[persist.Key]bool // keys whose Load does not return before its context ends
	fail     error                // returned by Watch; nil if it works
	mute     bool                 // hints are lost
	ears     map[chan persist.Hint]chan error
	watches  int
	probes   int
	loads    []int // number of keys of each Load
	panics   bool  // the next Load panics
}

func newStore() *store {
	return &store{versions: map[persist.Key]uint64{}, bad: map[persist.Key]bool{}, hangs: map[persist.Key]bool{}, ears: map[chan persist.Hint]chan error{}}
}

func (s *store) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// commit makes a new version of a record, as another process does.
func (s *store) commit(k persist.Key) (version uint64) {
	s.set(func() {
		s.versions[k]++
		version = s.versions[k]
	})
	s.hint(persist.Hint{Key: k, Version: version})
	return version
}

func (s *store) hint(hint persist.Hint) {
	s.set(func() {
		for ear := range s.ears {
			if !s.mute {
				ear <- hint
			}
		}
	})
}

// cut ends the hints with err. With nil, the next Watch works again.
func (s *store) cut(err error) {
	s.set(func() {
		s.fail = err
		for _, end := range s.ears {
			end <- err
		}
	})
}

func (s *store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	ear, end := make(chan persist.Hint, 1000), make(chan error, 1)
	var fail error
	s.set(func() {
		s.watches++
		if fail = s.fail; fail == nil {
			s.ears[ear] = end
		}
	})
	if fail != nil {
		return fail
	}
	defer s.set(func() { delete(s.ears, ear) })
	wake(persist.Hint{})
	for {
		select {
		case hint := <-ear:
			wake(hint)
		case err := <-end:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *store) Versions(_ context.Context, keys []persist.Key) (out []uint64, err error) {
	s.set(func() {
		s.probes++
		for _, k := range keys {
			out = append(out, s.versions[k])
		}
	})
	return out, nil
}

func (s *store) load(ctx context.Context, keys []persist.Key) (out []persist.Record, err error) {
	panics, hangs := false, false
	s.set(func() {
		panics, s.panics = s.panics, false
		s.loads = append(s.loads, len(keys))
		for _, k := range keys {
			if s.bad[k] {
				err = errors.New("damaged")
			}
			hangs = hangs || s.hangs[k]
			out = append(out, persist.Record{Key: k, Version: s.versions[k]})
		}
	})
	if panics {
		panic("store")
	}
	if hangs {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return out, err
}

func (s *store) loaded() (keys int) {
	s.set(func() {
		for _, n := range s.loads {
			keys += n
		}
	})
	return keys
}

// scope is a watched scope.
type scope struct {
	version atomic.Uint64 // version plus one; 0 if none was seen
	adopted notify.Signal
}

func newScope() *scope { return &scope{adopted: notify.NewSignal()} }

func (s *scope) Seen() (version uint64, absent, known bool) {
	v := s.version.Load()
	return max(v, 1) - 1, v == 1, v > 0
}

func (s *scope) Adopt(r persist.Record) {
	s.version.Store(r.Version + 1)
	s.adopted.Set()
}

func (s *scope) seen() uint64 { version, _, _ := s.Seen(); return version }

func key(id any) persist.Key { return persist.Key{Kind: "ship", ID: fmt.Sprint(id)} }

// inBubble runs test in a synctest bubble, with a hub on a store.
func inBubble(t *testing.T, test func(t *testing.T, s *store, h *Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		h := New(Config{
			Store: s, Load: s.load, Timeout: time.Second,
			Backoff: func(failures int) time.Duration {
				return min(time.Duration(failures)*50*time.Millisecond, 500*time.Millisecond)
			},
			Logger: func() *slog.Logger { return slog.New(slog.DiscardHandler) },
		})
		defer h.Close()
		test(t, s, h)
	})
}

// arrives asserts that the scope adopts a version within most.
func arrives(t *testing.T, s *scope, version uint64, most time.Duration) {
	t.Helper()
	for began := time.Now(); s.seen() != version; {
		select {
		case <-s.adopted:
		case <-time.After(most - time.Since(began)):
			require.Equal(t, version, s.seen())
		}
	}
}

// A hint wakes the listeners of its key and kind, and no others. The zero hint wakes all.
func TestListen(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, h *Hub) {
		counts := map[string]*atomic.Int64{}
		count := func(name string) func() {
			n := &atomic.Int64{}
			counts[name] = n
			return func() { n.Add(1) }
		}
		stops := []func(){
			h.Listen(key("a"), count("a")), h.Listen(key("a"), count("a again")), h.Listen(key("b"), count("b")),
			h.ListenKind("ship", count("ship")), h.ListenKind("port", count("port")),
		}
		synctest.Wait()
		require.True(t, h.Hears())
		for _, n := range counts {
			n.Store(0)
		}
		s.hint(persist.Hint{})
		synctest.Wait()
		for name, n := range counts {
			require.EqualValues(t, 1, n.Load(), name)
		}
		s.commit(key("a"))
		synctest.Wait()
		for name, want := range map[string]int64{"a": 2, "a again": 2, "b": 1, "ship": 2, "port": 1} {
			require.Equal(t, want, counts[name].Load(), name)
		}
		stops[0]()
		s.commit(key("a"))
		synctest.Wait()
		require.EqualValues(t, 2, counts["a"].Load())
		require.EqualValues(t, 3, counts["a again"].Load())
		for _, stop := range stops[1:] {
			stop()
		}
		require.Empty(t, h.scopes)
		require.Empty(t, h.kinds)
		time.Sleep(restAfter)
		synctest.Wait()
		require.False(t, h.Hears())
	})
}

// A hub runs while it has listeners or watched scopes, and a while longer: the next one needs no new
// connection. It does not run after Close.
func TestStartAndStop(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, h *Hub) {
		listening := func() (n int) { s.set(func() { n = len(s.ears) }); return n }
		for range 3 {
			stop := h.Listen(key("a"), func() {})
			unwatch := h.Watch(key("a"), newScope())
			synctest.Wait()
			require.Equal(t, 1, listening())
			stop()
			synctest.Wait()
			require.Equal(t, 1, listening())
			unwatch()
			time.Sleep(restAfter - time.Second)
			require.Equal(t, 1, listening())
			stop = h.Listen(key("a"), func() {})
			time.Sleep(2 * restAfter)
			require.Equal(t, 1, listening())
			stop()
			time.Sleep(restAfter)
			synctest.Wait()
			require.Zero(t, listening())
		}
		var watches int
		s.set(func() { watches = s.watches })
		require.Equal(t, 3, watches)
		stop := h.Listen(key("a"), func() {})
		h.Listen(key("b"), func() {})()
		h.Close()
		h.Close()
		synctest.Wait()
		require.Zero(t, listening())
		stop()
		h.Watch(key("a"), newScope())
		h.Reread(key("a"))
		synctest.Wait()
		require.Zero(t, listening())
		require.False(t, h.Hears())
	})
}

// A change arrives at once with a hint, soon after hints have stopped, and eventually if a hint was
// lost. Proves SCOPE-13.
func TestWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, h *Hub) {
		a, b := newScope(), newScope()
		defer h.Watch(key("a"), a)()
		defer h.Watch(key("b"), b)()
		arrives(t, a, s.commit(key("a")), 20*time.Millisecond)
		s.set(func() { s.mute = true })
		arrives(t, a, s.commit(key("a")), 6*time.Second)
		s.set(func() { s.mute = false })
		s.cut(errors.New("connection reset"))
		time.Sleep(11 * time.Second)
		require.False(t, h.Hears())
		arrives(t, a, s.commit(key("a")), 300*time.Millisecond)
		s.cut(nil)
		time.Sleep(time.Second)
		require.True(t, h.Hears())
		arrives(t, a, s.commit(key("a")), 20*time.Millisecond)
		var watches int
		s.set(func() { watches = s.watches })
		require.Less(t, watches, 50, "Watch is called too often")
		s.cut(persist.ErrUnsupported)
		arrives(t, b, s.commit(key("b")), 6*time.Second)
	})
}

// A version that the scope has seen is not read again.
func TestSeenVersionsAreNotRead(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, h *Hub) {
		a := newScope()
		defer h.Watch(key("a"), a)()
		arrives(t, a, s.commit(key("a")), 20*time.Millisecond)
		time.Sleep(time.Second)
		before := s.loaded()
		a.version.Store(3) // as if committed by this process
		require.EqualValues(t, 2, s.commit(key("a")))
		time.Sleep(time.Second)
		require.Equal(t, before, s.loaded())
	})
}

// A watched record that was purged is read. Proves SCOPE-13.
func TestPurgedRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, h *Hub) {
		a := newScope()
		defer h.Watch(key("a"), a)()
		defer h.Watch(key("other"), newScope())()
		arrives(t, a, s.commit(key("a")), 20*time.Millisecond)
		s.set(func() { delete(s.versions, key("a")) })
		arrives(t, a, 0, 6*time.Second)
	})
}

// A record is read at intervals even if its version has not moved, and on demand. Proves SCOPE-13.
func TestReread(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, h *Hub) {
		a, other := newScope(), newScope()
		other.version.Store(1) // seen as absent
		defer h.Watch(key("a"), a)()
		defer h.Watch(key("other"), other)()
		arrives(t, a, s.commit(key("a")), 20*time.Millisecond)
		time.Sleep(time.Second)
		before := s.loaded()
		h.Reread(key("a"))
		h.Reread(key("not watched"))
		time.Sleep(time.Second)
		require.Equal(t, before+1, s.loaded())
		time.Sleep(rereadEvery + checkEvery)
		require.Equal(t, before+3, s.loaded(), "both, once")
	})
}

// A record that cannot be read does not keep others from being read. Proves SCOPE-13.
func TestDamagedRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, h *Hub) {
		s.fail = persist.ErrUnsupported
		good, bad := newScope(), newScope()
		defer h.Watch(key("good"), good)()
		defer h.Watch(key("bad"), bad)()
		s.set(func() { s.bad[key("bad")] = true })
		s.commit(key("bad"))
		for range 5 {
			arrives(t, good, s.commit(key("good")), time.Second)
		}
		before := s.loaded()
		time.Sleep(time.Minute)
		require.Less(t, s.loaded()-before, 1000, "the damaged record is read too often")
		s.set(func() { s.bad[key("bad")] = false; s.panics = true })
		arrives(t, bad, 1, 2*time.Second) // after a panic, which counts as a failed read
	})
}

// A record whose read hangs delays others by some of the store's time limits only. Proves SCOPE-13.
func TestHangingRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, h *Hub) {
		s.fail = persist.ErrUnsupported
		good, slow := newScope(), newScope()
		defer h.Watch(key("good"), good)()
		defer h.Watch(key("slow"), slow)()
		s.set(func() { s.hangs[key("slow")] = true })
		s.commit(key("slow"))
		for range 5 {
			// At most two checks, each of a read of both and of one by one, and a pause.
			arrives(t, good, s.commit(key("good")), 2*2*time.Second+checkEvery+checkEveryDeaf)
		}
		before := s.loaded()
		time.Sleep(time.Minute)
		require.Less(t, s.loaded()-before, 50, "the hanging record is read too often")
		s.set(func() { s.hangs[key("slow")] = false })
		arrives(t, slow, 1, 2*2*time.Second+checkEvery+checkEveryDeaf)
	})
}

// Versions are requested for many scopes at once, and only changed records are read.
// Proves SCOPE-13.
func TestManyScopes(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, h *Hub) {
		const scopes = 4 * checkBatch
		s.fail = persist.ErrUnsupported
		var all []*scope
		for i := range scopes {
			all = append(all, newScope())
			defer h.Watch(key(i), all[i])()
		}
		time.Sleep(2 * time.Second)
		var probes int
		loads := s.loaded()
		s.set(func() { probes = s.probes })
		time.Sleep(10 * time.Second)
		s.set(func() { probes = s.probes - probes })
		require.Equal(t, loads, s.loaded(), "nothing has changed")
		require.LessOrEqual(t, probes, 4*41)
		require.GreaterOrEqual(t, probes, 4*20)
		for i := range 100 {
			s.commit(key(i))
		}
		for i := range 100 {
			arrives(t, all[i], 1, time.Second)
		}
		require.Equal(t, loads+100, s.loaded())
	})
}

// A scope that replaces another of the same key is kept current. Ending the watch of the old scope
// does not end its own.
func TestReplacedScope(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store, h *Hub) {
		before, now := newScope(), newScope()
		unwatch := h.Watch(key("a"), before)
		again := h.Watch(key("a"), before)
		defer h.Watch(key("a"), now)()
		unwatch()
		again()
		arrives(t, now, s.commit(key("a")), 20*time.Millisecond)
	})
}
