package fs

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// notified is a notifier that a test runs step by step.
type notified struct {
	*testkit.Hints
	t   *testing.T
	n   *notifier
	to  *hints.Hub
	ctx context.Context
	all sync.WaitGroup
}

func newNotified(t *testing.T, s *Store) *notified {
	t.Helper()
	n, err := newNotifier(s.records)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	d := &notified{Hints: testkit.NewHints(t), t: t, n: n, to: new(hints.Hub), ctx: ctx}
	d.all.Go(func() { _ = d.to.Watch(ctx, d.Wake) })
	t.Cleanup(func() {
		cancel()
		d.all.Wait()
	})
	d.anything()
	d.Take()
	return d
}

// handle handles all events so far.
func (d *notified) handle() {
	buffer := make([]byte, 64<<10)
	count, err := d.n.file.Read(buffer)
	require.NoError(d.t, err)
	for events := buffer[:count]; len(events) > 0; {
		var e event
		e, events = nextEvent(events)
		require.NoError(d.t, d.n.handle(e, d.to))
	}
}

// run runs the notifier until the test ends.
func (d *notified) run() {
	d.all.Go(func() {
		if err := d.n.run(d.ctx, d.to); err != nil {
			d.t.Error(err)
		}
	})
}

// settle waits until all hints are delivered: a pending zero hint would replace later ones.
func (d *notified) settle() {
	last := persist.Hint{Key: thing("last")}
	for settled := false; !settled; {
		d.Take()
		d.to.Send(last)
		d.Of(last.Key)
		all := d.All()
		settled = all[len(all)-1] == last
	}
	d.Take()
}

// anything waits for the zero hint.
func (d *notified) anything() { d.Named(persist.Key{}) }

// TestNotifiedOfNewFolders: the zero hint covers records that were put into a folder before it was
// watched, and later ones are hinted by name.
//
// Proves SCOPE-13.
func TestNotifiedOfNewFolders(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	d := newNotified(t, s)
	for _, key := range farApart {
		_, err := s.Commit(t.Context(), write(key, 0))
		require.NoError(t, err)
	}
	d.handle()
	d.anything()
	d.settle()
	d.run()
	for _, key := range farApart {
		_, err := s.Commit(t.Context(), write(key, 1))
		require.NoError(t, err)
		d.Named(key)
	}
	require.NotContains(t, d.All(), persist.Hint{})
}

// TestNotifiedOfRemadeFolders: a folder that was removed and made again is watched again.
//
// Proves SCOPE-13.
func TestNotifiedOfRemadeFolders(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	d := newNotified(t, s)
	d.run()
	for range 3 {
		require.NoError(t, os.RemoveAll(s.kindFolder("thing")))
		d.Take()
		require.NoError(t, os.Mkdir(s.kindFolder("thing"), 0o700))
		d.anything()
		d.Take()
		_, err := s.Commit(t.Context(), put("a", 0))
		require.NoError(t, err)
		d.Named(thing("a"))
	}
}

// TestNotifiedTooMuch: when the kernel has dropped events, among them that of a new folder, all
// folders are watched again and the zero hint is sent.
//
// Proves SCOPE-13.
func TestNotifiedTooMuch(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	require.NoError(t, err)
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	if most > 1<<17 {
		t.Skip("the kernel's queue is too long to fill")
	}
	s := openAt(t, scratch(t), Config{})
	_, err = s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	d := newNotified(t, s)
	names := []string{filepath.Join(s.kindFolder("thing"), "x.json"), filepath.Join(s.kindFolder("thing"), "y.json")}
	require.NoError(t, os.WriteFile(names[0], nil, 0o600))
	for i := range most + 10 {
		require.NoError(t, os.Rename(names[i%2], names[1-i%2]))
	}
	late := persist.Key{Kind: "late", ID: "a"}
	_, err = s.Commit(t.Context(), write(late, 0))
	require.NoError(t, err)
	d.run()
	d.anything()
	d.Take()
	_, err = s.Commit(t.Context(), write(late, 1))
	require.NoError(t, err)
	d.Named(late)
}

// TestNotifiedOfNothingElse: files that are not records send no hints.
func TestNotifiedOfNothingElse(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	d := newNotified(t, s)
	d.run()
	folder := s.kindFolder("thing")
	for _, name := range []string{"a.json~", "A.json", "%zz.json", ".json"} {
		temp := filepath.Join(s.temps, "x")
		require.NoError(t, os.WriteFile(temp, nil, 0o600))
		require.NoError(t, os.Rename(temp, filepath.Join(folder, name)))
	}
	require.NoError(t, os.Mkdir(filepath.Join(folder, "sub"), 0o700))
	_, err = s.Commit(t.Context(), put("a", 1))
	require.NoError(t, err)
	d.Named(thing("a"))
	require.Equal(t, []persist.Hint{{Key: thing("a")}}, d.All())
}

// TestWatchHasOneInstance: Watch calls that end early do not pile up inotify instances, of which the
// kernel grants few.
//
// Proves SCOPE-13.
func TestWatchHasOneInstance(t *testing.T) {
	s := openAt(t, scratch(t), Config{})
	for i := range 100 { // folders that each new instance has to walk through
		require.NoError(t, os.MkdirAll(s.kindFolder(strconv.Itoa(i)), 0o700))
	}
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Microsecond)
		require.ErrorIs(t, s.Watch(ctx, func(persist.Hint) {}), context.DeadlineExceeded)
		cancel()
		require.LessOrEqual(t, instances(t), 1)
	}
}

// instances returns how many inotify instances this process has.
func instances(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, file := range files {
		if name, err := os.Readlink(file); err == nil && strings.Contains(name, "inotify") { // it may be closed meanwhile
			n++
		}
	}
	return n
}
