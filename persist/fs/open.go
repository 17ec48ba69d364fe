package fs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// Config says how a store is opened. The zero value is the default.
type Config struct {
	// LockTimeout limits how long one call waits in all for locks that other goroutines or
	// processes hold. After that the call fails with an error that wraps persist.ErrUnavailable.
	// Purge and Restore wait that long for each of their batches. 0: 5 s.
	LockTimeout time.Duration

	// Existing lets Open create no store. It returns an error that wraps persist.ErrMissingStore if
	// there is none.
	Existing bool
}

const defaultLockTimeout = 5 * time.Second

// Store is a persist.Store in the files of a directory. It is also a persist.Reader,
// persist.Leaser, persist.Purger, persist.Watcher, persist.Prober, persist.Restorer and
// persist.Describer.
type Store struct {
	dir       string // absolute
	records   string // folders of dir
	temps     string
	journals  string
	locks     *locks
	hints     hints.Hub
	listening hints.Listening // runs follow
	following sync.Mutex      // held by follow
	folders   knownFolders
	listings  listings
	spares    [stripes]string // paths; the holder of the exclusive stripe owns its entry; empty: none
	polls     bool            // for tests: Watch does not use inotify

	mu     sync.Mutex // protects closed, and calls.Add against a concurrent Close
	closed bool
	calls  sync.WaitGroup // the calls under way
}

var (
	_ persist.Store     = (*Store)(nil)
	_ persist.Reader    = (*Store)(nil)
	_ persist.Leaser    = (*Store)(nil)
	_ persist.Purger    = (*Store)(nil)
	_ persist.Watcher   = (*Store)(nil)
	_ persist.Prober    = (*Store)(nil)
	_ persist.Restorer  = (*Store)(nil)
	_ persist.Describer = (*Store)(nil)
)

// Open opens the store in a directory. It creates the directory and the store if they are missing,
// accessible to their owner only, and removes temporary files of processes that died.
//
// It returns an error that wraps persist.ErrNewerSchema when a newer release made the store,
// *DamagedError when pawl.json cannot be read, and an error that wraps persist.ErrUnavailable when
// another process holds a lock for longer than config.LockTimeout or the directory cannot be
// written. It returns other errors when dir is not a directory or holds something else.
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
	if config.Existing {
		isStore, err := s.checkFormat()
		if err != nil {
			return nil, explain(err)
		}
		if !isStore {
			return nil, fmt.Errorf("fs: %w: there is no file %s", persist.ErrMissingStore, filepath.Join(s.dir, formatName))
		}
	}
	if err := s.create(ctx); err != nil {
		return nil, explain(err)
	}
	s.removeLeftovers()
	return s, nil
}

// newStore returns the store of dir without looking at the directory.
func newStore(dir string, config Config) (*Store, error) {
	if dir == "" {
		return nil, errors.New("fs: the path of the directory is empty")
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

// Close waits for the calls under way and releases the store. Later calls return
// persist.ErrClosed. Close returns nil, also when called again. It does not wait for Watch.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.hints.Close()
	s.listening.Close()
	s.calls.Wait()
	s.mu.Lock() // for a concurrent Close
	defer s.mu.Unlock()
	for stripe := range s.spares {
		s.spares[stripe] = s.removeSpare(s.spares[stripe])
	}
	return nil
}

// begin starts a call: it returns the context of the call, with the time that the call may wait
// for locks, and the function that ends the call. It returns persist.ErrClosed after Close, and the
// cause if ctx has ended.
func (s *Store) begin(ctx context.Context) (call context.Context, end func(), err error) {
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, persist.ErrClosed
	}
	s.calls.Add(1)
	return s.locks.withBudget(ctx), s.calls.Done, nil
}

// hostTime returns the host's clock as records keep it.
func hostTime() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// formatName is the name of the file that makes a directory a store.
const formatName = "pawl.json"

// create makes the directory a store unless it is one. Many processes may do that at once.
func (s *Store) create(ctx context.Context) error {
	isStore, err := s.checkFormat()
	if err != nil {
		return err
	}
	if !isStore {
		if err := s.claim(ctx); err != nil {
			return err
		}
	}
	// A copy of a directory may lack the folders that were empty.
	for _, folder := range []string{s.locks.folder, s.temps, s.journals, s.records} {
		if err := s.ensureFolder(folder); err != nil {
			return err
		}
	}
	return nil
}

// checkFormat reports whether the directory is a store. It returns persist.ErrNewerSchema or
// *DamagedError if this release cannot use it.
func (s *Store) checkFormat() (isStore bool, err error) {
	path := filepath.Join(s.dir, formatName)
	data, err := os.ReadFile(path)
	if errors.Is(err, iofs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var content struct { // only the number counts: a newer release may add members
		Format int `json:"format"`
	}
	if err := json.Unmarshal(bytes.TrimSpace(data), &content); err != nil || content.Format < 1 {
		return false, &DamagedError{Path: path, Reason: "no valid format number"}
	}
	if content.Format > format {
		return false, fmt.Errorf("%w: the format of %s is %d, this release knows %d",
			persist.ErrNewerSchema, s.dir, content.Format, format)
	}
	return true, nil
}

// claim makes an empty directory a store. It refuses a directory that holds anything else.
func (s *Store) claim(ctx context.Context) error {
	foreign, err := s.foreignName()
	if err != nil {
		return err
	}
	if foreign != "" {
		isStore, err := s.checkFormat() // another process may have just created it
		if err != nil {
			return err
		}
		if !isStore {
			return fmt.Errorf("fs: %s is not empty and not a store: it holds %q but no %s", s.dir, foreign, formatName)
		}
	}
	err = makeFolder(s.dir)
	if errors.Is(err, iofs.ErrPermission) { // the folder above cannot be synced, so it existed before
		_, err = os.ReadDir(s.dir)
	}
	if err == nil {
		err = syncAbove(filepath.Dir(s.dir))
	}
	if err != nil {
		return err
	}
	for _, folder := range []string{s.locks.folder, s.temps} {
		if err := s.ensureFolder(folder); err != nil {
			return err
		}
	}
	release, err := s.locks.take(ctx, wanted{metaLock: exclusive})
	if err != nil {
		return err
	}
	defer release()
	isStore, err := s.checkFormat()
	if err != nil || isStore {
		return err
	}
	text := fmt.Appendf(nil, "{\n\t\"format\": %d\n}\n", format)
	return s.replaceFile(metaLock, filepath.Join(s.dir, formatName), text)
}

// syncAbove makes the entries of folder and of all folders above it durable, because a process may
// have made them for the store and died. It skips folders that cannot be synced for lack of
// permission or because the file system is read-only: these existed before.
func syncAbove(folder string) error {
	for above := filepath.Dir(folder); above != folder; folder, above = above, filepath.Dir(above) {
		err := syncFolder(above)
		skip := errors.Is(err, iofs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EINVAL)
		if err != nil && !skip {
			return err
		}
	}
	return nil
}

// foreignName returns a name in the directory that claim does not create, or "".
func (s *Store) foreignName() (string, error) {
	names, err := readNames(s.dir)
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return "", err
	}
	own := []string{filepath.Base(s.locks.folder), filepath.Base(s.temps)}
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(own, name) })
	if len(names) == 0 {
		return "", nil
	}
	return slices.Min(names), nil
}

// removeLeftovers removes temporary files of processes that died. It does not wait for locks: a
// file that it cannot remove now stays until the next Open.
func (s *Store) removeLeftovers() {
	names, err := readNames(s.temps)
	if err != nil {
		return
	}
	for _, name := range names {
		if lock, ok := lockOfTemp(name); ok {
			s.removeLeftover(lock, filepath.Join(s.temps, name))
		}
	}
}

// removeLeftover removes a temporary file that the given lock protects, unless a process holds the
// lock or a journal may name the file.
func (s *Store) removeLeftover(lock int, path string) {
	want := wanted{lock: exclusive}
	release, err := s.locks.take(atOnce, want)
	if err != nil {
		return
	}
	defer release()
	if found, err := s.pending(want.stripes()); err != nil || len(found) > 0 {
		return
	}
	_ = os.Remove(path)
}
