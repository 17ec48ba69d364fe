package fs

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"
)

// The locks of a directory.
//
// Each lock has a number, and a call takes its locks in ascending order, so that no two calls wait
// for each other. A lock is a file in locks/ that is locked with flock, shared or exclusively. Lock
// files are never removed. A file lock belongs to an open file, so every holder opens the file for
// itself and closes it to release the lock.
//
// Beside each lock file is a second one, its gate. A process waits for the lock while it holds the
// gate. A process that releases the lock and wants it again therefore queues behind a process that
// waits already, and a series of readers cannot keep a writer out.
//
// The goroutines of a process queue in front of the files, in order of arrival, by two semaphores
// that mirror gate and lock. So only one goroutine of a process at a time asks for a lock's files,
// and a goroutine never polls for a file that another goroutine of its process holds.
type locks struct {
	folder  string
	timeout time.Duration
	local   [lockCount]localLock
}

// localLock is the part of a lock inside this process.
type localLock struct{ gate, lock *semaphore.Weighted }

// The locks by number.
const (
	stripes   = 256           // locks 0 to 255 are stripes: each protects the records whose keys hash to it
	listLock  = stripes       // keeps commits of several records and lists apart
	namesLock = listLock + 1  // keeps renames by commits of one record and readers of names apart
	metaLock  = namesLock + 1 // protects pawl.json and the version floor
	lockCount = metaLock + 1
)

// lockNames are the names of the lock files.
var lockNames = func() (names [lockCount]string) {
	for stripe := range stripes {
		names[stripe] = fmt.Sprintf("%02x", stripe)
	}
	names[listLock], names[namesLock], names[metaLock] = "list", "names", "meta"
	return names
}()

// mode says how a lock is taken. The stricter of two modes is the greater.
type mode int

const (
	shared mode = iota + 1
	exclusive
)

// wanted says in which modes locks are to be taken.
type wanted map[int]mode

func (w wanted) add(lock int, m mode) { w[lock] = max(w[lock], m) }

// stripes returns the stripes that the wanted locks protect. A list reads the records of all stripes.
func (w wanted) stripes() (set stripeSet) {
	for lock := range w {
		switch {
		case lock < stripes:
			set.add(lock)
		case lock == listLock:
			return everyStripe
		}
	}
	return set
}

// stripeSet is a set of stripes.
type stripeSet [stripes / 64]uint64

var everyStripe = stripeSet{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}

func (s *stripeSet) add(stripe int)     { s[stripe/64] |= 1 << (stripe % 64) }
func (s stripeSet) has(stripe int) bool { return s[stripe/64]&(1<<(stripe%64)) != 0 }

// meets reports whether the two sets have a stripe in common.
func (s stripeSet) meets(other stripeSet) bool {
	for i := range s {
		if s[i]&other[i] != 0 {
			return true
		}
	}
	return false
}

// maxShared is the weight of an exclusive holder in a localLock; a shared one has weight 1.
const maxShared = 1 << 30

func newLocks(folder string, timeout time.Duration) *locks {
	l := &locks{folder: folder, timeout: timeout}
	for i := range l.local {
		l.local[i] = localLock{gate: semaphore.NewWeighted(1), lock: semaphore.NewWeighted(maxShared)}
	}
	return l
}

type budgetKey struct{}

// withBudget returns the context of one call. All calls of take with it wait together no longer
// than the lock timeout. It is not for concurrent use.
func (l *locks) withBudget(ctx context.Context) context.Context {
	left := l.timeout
	return context.WithValue(ctx, budgetKey{}, &left)
}

// atOnce is a context that has ended. With it take does not wait, and returns errBusy.
var atOnce = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errBusy)
	return ctx
}()

// take takes all wanted locks in order, or none. It waits until ctx ends, and returns the cause
// then, or until the time of the call is used up, and returns errLocked then. Free locks are taken
// even if ctx has ended.
func (l *locks) take(ctx context.Context, want wanted) (release func(), err error) {
	budget, ok := ctx.Value(budgetKey{}).(*time.Duration)
	if !ok {
		left := l.timeout
		budget = &left
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, *budget, errLocked)
	defer func() {
		cancel()
		*budget -= time.Since(begun)
	}()
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

// takeOne takes one lock: first the part inside this process, then the files.
func (l *locks) takeOne(ctx context.Context, lock int, m mode) (release func(), err error) {
	local, weight := l.local[lock], int64(1)
	if m == exclusive {
		weight = maxShared
	}
	if err := acquire(ctx, local.gate, 1); err != nil {
		return nil, err
	}
	defer local.gate.Release(1)
	if err := acquire(ctx, local.lock, weight); err != nil {
		return nil, err
	}
	unlock, err := l.lockFile(ctx, lock, m)
	if err != nil {
		local.lock.Release(weight)
		return nil, err
	}
	return func() {
		unlock()
		local.lock.Release(weight)
	}, nil
}

// acquire is Acquire that succeeds after the end of ctx if it need not wait.
func acquire(ctx context.Context, s *semaphore.Weighted, weight int64) error {
	if s.TryAcquire(weight) {
		return nil
	}
	if s.Acquire(ctx, weight) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// lockFile passes the gate of a lock and locks its file.
func (l *locks) lockFile(ctx context.Context, lock int, m mode) (unlock func(), err error) {
	path := filepath.Join(l.folder, lockNames[lock])
	leave, err := waitLock(ctx, path+".gate", exclusive)
	if err != nil {
		return nil, err
	}
	defer leave()
	return waitLock(ctx, path, m)
}

// waitLock locks the file at path. It waits while other processes hold it.
func waitLock(ctx context.Context, path string, m mode) (unlock func(), err error) {
	err = retry(ctx, func() (ok bool, err error) {
		unlock, ok, err = tryLock(path, m)
		return ok, err
	})
	return unlock, err
}

// The first and the longest pause before a file is tried again that another process has locked.
const (
	firstPause   = 200 * time.Microsecond
	longestPause = 2 * time.Millisecond
)

// retry calls try until it succeeds or fails, or ctx ends, with pauses of random length. It tries
// once even if ctx has ended.
func retry(ctx context.Context, try func() (bool, error)) error {
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
