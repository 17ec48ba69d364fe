package fs

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pawl-go/pawl/persist"
)

// The locks by number. Whoever takes several takes them in ascending order.
const (
	stripes   = 256           // locks 0 to 255 protect the records, each those whose keys hash to it
	listLock  = stripes       // keeps commits of several keys apart from lists
	namesLock = listLock + 1  // keeps renames by commits of one key apart from those who read the names of records
	metaLock  = namesLock + 1 // protects pawl.json and the version floor
	lockCount = metaLock + 1
)

// lockName returns the name of a lock's file.
func lockName(lock int) string {
	switch lock {
	case listLock:
		return "list"
	case namesLock:
		return "names"
	case metaLock:
		return "meta"
	}
	return fmt.Sprintf("%02x", lock)
}

// lockNumber returns the lock whose file has this name.
func lockNumber(name string) (lock int, ok bool) {
	switch name {
	case lockName(listLock):
		return listLock, true
	case lockName(namesLock):
		return namesLock, true
	case lockName(metaLock):
		return metaLock, true
	}
	stripe, err := strconv.ParseUint(name, 16, 8)
	return int(stripe), err == nil && len(name) == 2
}

// mode is how a lock is taken; of two modes the stricter is the greater.
type mode int

const (
	shared mode = iota + 1
	exclusive
)

// wanted says in which mode locks are to be taken.
type wanted map[int]mode

func (w wanted) add(lock int, m mode) { w[lock] = max(w[lock], m) }

// stripeSet is a set of locks of records.
type stripeSet [stripes / 64]uint64

func (s *stripeSet) add(stripe int)     { s[stripe/64] |= 1 << (stripe % 64) }
func (s stripeSet) has(stripe int) bool { return s[stripe/64]&(1<<(stripe%64)) != 0 }

func (s stripeSet) meets(other stripeSet) bool {
	for i := range s {
		if s[i]&other[i] != 0 {
			return true
		}
	}
	return false
}

// stripes returns the stripes among the wanted locks.
func (w wanted) stripes() (set stripeSet) {
	for lock := range w {
		if lock < stripes {
			set.add(lock)
		}
	}
	return set
}

// How often a lock that another process has is asked for.
const (
	firstPause   = 200 * time.Microsecond
	longestPause = 2 * time.Millisecond
)

// everybody is the weight of an exclusive lock in the queue of its process.
const everybody = 1 << 30

// locks are those of a store. The goroutines of a process queue up for a lock in order of arrival,
// and the first in the queue asks for the lock's files. It opens them, or takes them from those that are kept
// open, for itself alone, because a file lock belongs to the open file: two goroutines with one open file would have one lock.
//
// There are two files to a lock. Whoever wants the second one waits for it with the first one, the
// gate, in its hands. A process that gives the lock back and wants it again therefore finds itself
// behind the one that has waited meanwhile, and readers cannot keep a writer out by taking turns.
// Those of one process who share the names lock, which nobody has for long, share the file as well; see share.
//
// The files are never removed. Should somebody do it all the same while nobody has the lock, then whoever has waited for a file that is gone has the lock
// of nothing: if another one has come in its place since, or none, or the folder was replaced, the lock is taken anew.
type locks struct {
	folder  string
	timeout time.Duration
	queues  [lockCount]*semaphore.Weighted
	names   share // of those who have the names lock shared

	mostKept int // how many locks may have their files open while nobody has them

	mu     sync.Mutex // protects what follows
	kept   map[int]lockFiles
	closed bool
}

// keptLocks is mostKept where the process may open many files.
const keptLocks = 64

// lockFiles are the two files of a lock.
type lockFiles struct{ gate, file *lockFile }

func (f lockFiles) close() {
	f.gate.close()
	f.file.close()
}

func newLocks(folder string, timeout time.Duration) *locks {
	l := &locks{folder: folder, timeout: timeout, mostKept: max(1, min(keptLocks, fileLimit()/16))}
	for i := range l.queues {
		l.queues[i] = semaphore.NewWeighted(everybody)
	}
	return l
}

// patience is how much longer a call may wait for locks, in a context of patient.
type patience struct{ left time.Duration }

type patienceKey struct{}

// patient returns a context of one call, in which all that it takes together may be waited for until
// the lock timeout has passed.
func (l *locks) patient(ctx context.Context) context.Context {
	return context.WithValue(ctx, patienceKey{}, &patience{l.timeout})
}

// limited is a context of one goroutine that ends with errLocked after a time, which begins when somebody first waits for its end: most
// locks are free, and need no timer.
type limited struct {
	context.Context
	timeout time.Duration
	of      *patience // that pays for it; nil: none
	begun   time.Time
	inner   context.Context // nil: nobody has waited
	cancel  context.CancelFunc
}

// limited returns a context that ends when the lock timeout has passed, or what is left of it in a context of patient.
func (l *locks) limited(ctx context.Context) *limited {
	if p, ok := ctx.Value(patienceKey{}).(*patience); ok {
		return &limited{Context: ctx, timeout: p.left, of: p}
	}
	return &limited{Context: ctx, timeout: l.timeout}
}

// Done begins the time.
func (l *limited) Done() <-chan struct{} {
	if l.inner == nil {
		l.begun = time.Now()
		l.inner, l.cancel = context.WithTimeoutCause(l.Context, l.timeout, errLocked)
	}
	return l.inner.Done()
}

func (l *limited) now() context.Context {
	if l.inner == nil {
		return l.Context
	}
	return l.inner
}

// Err is that of the context as it is now.
func (l *limited) Err() error { return l.now().Err() }

// Value is that of the context as it is now, by which context.Cause learns why it has ended.
func (l *limited) Value(key any) any { return l.now().Value(key) }

func (l *limited) end() {
	if l.cancel == nil {
		return
	}
	l.cancel()
	if l.of != nil {
		l.of.left -= time.Since(l.begun)
	}
}

// take takes all locks that are wanted, in order, or none. It waits for them until ctx ends, and
// returns the cause of that then, or until the lock timeout has passed, or what is left of it in a
// context of patient, and returns errLocked then. With atOnce it takes what is free and does not
// wait.
func (l *locks) take(ctx context.Context, want wanted) (release func(), err error) {
	waiting := l.limited(ctx)
	ctx = waiting
	defer waiting.end()
	if len(want) == 1 {
		for lock, m := range want {
			return l.takeOne(ctx, lock, m)
		}
	}
	var held []func()
	release = func() {
		for _, free := range slices.Backward(held) {
			free()
		}
	}
	for _, lock := range slices.Sorted(maps.Keys(want)) {
		free, err := l.takeOne(ctx, lock, want[lock])
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, free)
	}
	return release, nil
}

func (l *locks) takeOne(ctx context.Context, lock int, m mode) (release func(), err error) {
	queue, weight := l.queues[lock], int64(1)
	if m == exclusive {
		weight = everybody
	}
	if !queue.TryAcquire(weight) {
		if err := queue.Acquire(ctx, weight); err != nil {
			return nil, context.Cause(ctx)
		}
	}
	open := func() (free func(), err error) { return l.open(ctx, lock, m) }
	var free func()
	if lock == namesLock && m == shared {
		free, err = l.names.join(ctx, open)
	} else {
		free, err = open()
	}
	if err != nil {
		queue.Release(weight)
		return nil, err
	}
	return func() {
		free()
		queue.Release(weight)
	}, nil
}

// open passes the gate and locks the file of a lock.
func (l *locks) open(ctx context.Context, lock int, m mode) (free func(), err error) {
	for {
		files, kept, err := l.files(lock)
		if err != nil {
			return nil, err
		}
		if err := files.pass(ctx, m); err != nil {
			files.close() // they may be to blame
			return nil, err
		}
		if files.file.inPlace() && (!kept || files.gate.inPlace()) {
			return func() {
				files.file.unlock()
				l.keep(lock, files)
			}, nil
		}
		files.close()
		select {
		case <-ctx.Done(): // where files never are what they were
			return nil, context.Cause(ctx)
		default:
		}
	}
}

// pass passes the gate and locks the file.
func (f lockFiles) pass(ctx context.Context, m mode) error {
	if err := patiently(ctx, func() (bool, error) { return f.gate.try(exclusive) }); err != nil {
		return err
	}
	defer f.gate.unlock()
	return patiently(ctx, func() (bool, error) { return f.file.try(m) })
}

// files returns the files of a lock, for the caller alone, and whether they were kept, or opened just now.
func (l *locks) files(lock int) (files lockFiles, kept bool, err error) {
	l.mu.Lock()
	files, kept = l.kept[lock]
	delete(l.kept, lock)
	l.mu.Unlock()
	if kept {
		return files, true, nil
	}
	path := filepath.Join(l.folder, lockName(lock))
	if files, err = openLockFiles(path); tooManyFiles(err) {
		l.closeKept()
		files, err = openLockFiles(path)
	}
	return files, false, err
}

func openLockFiles(path string) (lockFiles, error) {
	gate, err := openLockFile(path + ".gate")
	if err != nil {
		return lockFiles{}, err
	}
	file, err := openLockFile(path)
	if err != nil {
		gate.close()
		return lockFiles{}, err
	}
	return lockFiles{gate, file}, nil
}

// keep keeps the files of a lock, which are not locked, for whoever wants it next.
func (l *locks) keep(lock int, files lockFiles) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.kept[lock]; ok || l.closed { // those of somebody who shared the lock
		files.close()
		return
	}
	if l.kept == nil {
		l.kept = make(map[int]lockFiles)
	}
	for other, files := range l.kept { // in no order
		if len(l.kept) < l.mostKept {
			break
		}
		files.close()
		delete(l.kept, other)
	}
	l.kept[lock] = files
}

// close closes the files that are kept, and keeps none any more.
func (l *locks) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.closeKept()
}

func (l *locks) closeKept() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, files := range l.kept {
		files.close()
	}
	l.kept = nil
}

// atOnce is a context that has ended.
var atOnce = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errBusy)
	return ctx
}()

// patiently tries again with full jitter until it worked, it failed, or ctx has ended.
func patiently(ctx context.Context, try func() (bool, error)) error {
	for limit := firstPause; ; limit = min(2*limit, longestPause) {
		ok, err := try()
		if ok || err != nil {
			return err
		}
		timer := time.NewTimer(rand.N(limit))
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// locksOf returns the locks that c needs: what it may change exclusively, what it only looks at
// together with others that do.
func locksOf(c persist.Commit) wanted {
	want := make(wanted)
	for _, w := range c.Writes {
		want.add(stripeOf(w.Key), exclusive)
	}
	for _, g := range c.Guards {
		m := shared
		if g.Extend > 0 || g.Release || g.TTL > 0 {
			m = exclusive
		}
		want.add(stripeOf(g.Key), m)
	}
	return want
}
