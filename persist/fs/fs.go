package fs

import (
	"context"
	iofs "io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/hints"
)

// Config is how a store is opened; the zero value is the default.
type Config struct {
	// LockTimeout is how long a call waits in all for locks that other goroutines or processes
	// hold, before it fails with an error that wraps persist.ErrUnavailable; Purge waits that long
	// for each of its lots. 0: 5 s.
	LockTimeout time.Duration
}

const defaultLockTimeout = 5 * time.Second

// Store is a persist.Store, and a persist.Reader, persist.Leaser, persist.Purger, persist.Watcher and
// persist.Prober, in the files of a directory.
type Store struct {
	dir      string
	records  string // folders of dir
	temps    string
	journals string
	locks    *locks
	hints    hints.Hub
	memo     memo
	polls    bool                          // for tests: watch without the help of the kernel
	spares   [stripes]string               // paths; that of a stripe belongs to whoever has the stripe exclusively; empty: it has none
	quiet    atomic.Pointer[iofs.FileInfo] // journal/ when it was found empty, and its time will tell when that is over; nil: that is not known

	folders     sync.Map // those that are known to be durable
	folderCount atomic.Int64

	mu     sync.Mutex // protects closed, and calls from being added to once it is set
	closed bool
	calls  sync.WaitGroup // those under way
}

var (
	_ persist.Store  = (*Store)(nil)
	_ persist.Leaser = (*Store)(nil)
	_ persist.Purger = (*Store)(nil)
)

// Open opens the store in a directory, and creates both if there is none, accessible to their
// owner only. It removes what processes that died have left behind in the directory.
//
// It returns an error that wraps persist.ErrNewerSchema when the directory has the format of a
// newer release, *DamagedError when pawl.json cannot be read, one that wraps persist.ErrUnavailable
// when another process keeps a lock for longer than config.LockTimeout or the directory cannot be
// written, and other errors when the directory has other things in it or is none.
func Open(ctx context.Context, dir string, config Config) (*Store, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if config.LockTimeout <= 0 {
		config.LockTimeout = defaultLockTimeout
	}
	s, err := newStore(dir, config)
	if err != nil {
		return nil, err
	}
	if err := s.create(ctx); err != nil {
		s.locks.close()
		return nil, explain(err)
	}
	s.sweep()
	return s, nil
}

// enter begins a call, unless the store is closed. The call ends with calls.Done.
func (s *Store) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return persist.ErrClosed
	}
	s.calls.Add(1)
	return nil
}

// Close answers the calls that are under way, then releases the store; later calls return
// persist.ErrClosed. It returns nil, also when called again. For Watch it does not wait.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.hints.Close()
	s.calls.Wait()
	s.mu.Lock()
	for stripe := range s.spares {
		s.keepSpare(stripe, "")
	}
	s.mu.Unlock()
	s.locks.close()
	return nil
}

// hostTime is the host's clock as records keep it.
func hostTime() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func newStore(dir string, config Config) (*Store, error) {
	if dir == "" {
		return nil, errNoDirectory
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return &Store{
		dir:      dir,
		records:  filepath.Join(dir, "records"),
		temps:    filepath.Join(dir, "tmp"),
		journals: filepath.Join(dir, "journal"),
		locks:    newLocks(filepath.Join(dir, "locks"), config.LockTimeout),
	}, nil
}
