// Package sqlite keeps records in an SQLite database file, which several processes may share.
//
// An acknowledged commit is durable: the database is in WAL mode with synchronous=FULL. All
// writers of a process share one connection, and commits that wait at the same time share one
// transaction and one fsync. Readers have connections of their own and do not wait for writers.
// The driver is mattn/go-sqlite3, or modernc.org/sqlite in a build without cgo.
//
// The file must be on a local disk: SQLite's locks do not work on network file systems. They do not
// work between two copies of SQLite in one process either: a program that opens the same file by
// itself must use the same driver.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// Config holds the settings of a store; the zero value is the default.
type Config struct {
	// BusyTimeout limits the time that a call waits for a lock of another process or connection.
	// After it the call fails with persist.ErrUnavailable. 0: 5 s.
	BusyTimeout time.Duration

	// TablePrefix starts the name of every table and index: a letter or underscore, then up to
	// 31 letters, digits and underscores. Empty: "pawl_".
	TablePrefix string

	// PollInterval is the time between two looks for commits of other processes or connections,
	// while there are watchers. Commits of the store itself need no look. 0: 20 ms.
	PollInterval time.Duration

	// CheckIntegrity lets Open and New read the whole database and return *DamagedError if it is
	// damaged. Without it, damage is noticed when a call reads the damaged part.
	CheckIntegrity bool

	// Existing lets Open and New neither create nor migrate anything. They return an error that
	// wraps persist.ErrMissingStore if there is no file or it has no tables of Pawl, and one that
	// wraps persist.ErrOlderSchema if the tables need a migration.
	Existing bool
}

const (
	defaultBusyTimeout  = 5 * time.Second
	defaultTablePrefix  = "pawl_"
	defaultPollInterval = 20 * time.Millisecond
)

// tablePrefixes allows nothing that would need escaping: the prefix becomes part of SQL texts.
var tablePrefixes = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,31}$`)

func (c Config) withDefaults() (Config, error) {
	if c.BusyTimeout <= 0 {
		c.BusyTimeout = defaultBusyTimeout
	}
	if c.PollInterval <= 0 {
		c.PollInterval = defaultPollInterval
	}
	if c.TablePrefix == "" {
		c.TablePrefix = defaultTablePrefix
	}
	if !tablePrefixes.MatchString(c.TablePrefix) {
		return c, fmt.Errorf("sqlite: the table prefix %q is not a letter or underscore followed by up to 31 letters, digits or underscores", c.TablePrefix)
	}
	return c, nil
}

// Store is a persist.Store in an SQLite database. It implements all optional interfaces of package
// persist except persist.Limiter and persist.LogCleaner.
type Store struct {
	reads  // on ready
	config Config
	queue  queue
	writer *writer // belongs to the owner of queue.writer
	reader *sql.DB
	ready  prepared  // reader with prepared statements
	owned  []*sql.DB // closed with the store

	calls   calls
	closing sync.Once

	changes   hints.Hub
	listening hints.Listening // runs poll
	joined    atomic.Bool     // a joined store has committed, perhaps inside CommitWith
}

var (
	_ persist.Store       = (*Store)(nil)
	_ persist.Reader      = (*Store)(nil)
	_ persist.Prober      = (*Store)(nil)
	_ persist.Watcher     = (*Store)(nil)
	_ persist.Leaser      = (*Store)(nil)
	_ persist.Native      = (*Store)(nil)
	_ persist.Purger      = (*Store)(nil)
	_ persist.Restorer    = (*Store)(nil)
	_ persist.LogRestorer = (*Store)(nil)
	_ persist.Describer   = (*Store)(nil)
)

// Driver is the name of the store's driver for sql.Open. A transaction for Join must be of the same
// driver.
const Driver = driverName

// Open opens the database file at path. It creates a missing file, readable and writable by its
// owner only; the folder must exist. It creates or migrates the tables.
//
// It returns an error that wraps persist.ErrNewerSchema when a newer release has migrated the
// database, an error that wraps persist.ErrUnavailable when another process holds its lock for
// longer than config.BusyTimeout, *DamagedError if config.CheckIntegrity finds damage, and other
// errors when path does not name a usable database file.
func Open(ctx context.Context, path string, config Config) (*Store, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	path, err = prepareFile(path, config.Existing)
	if err != nil {
		return nil, err
	}
	writing, err := sql.Open(driverName, dataSource(path, "_busy_timeout=0&_synchronous=FULL"))
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	reading, err := sql.Open(driverName, dataSource(path,
		fmt.Sprintf("_busy_timeout=%d&_query_only=1", config.BusyTimeout.Milliseconds())))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sqlite: %w", err), writing.Close())
	}
	readers := max(4, runtime.GOMAXPROCS(0))
	reading.SetMaxOpenConns(readers)
	reading.SetMaxIdleConns(readers)
	s, err := start(ctx, config, writing, reading, true)
	if damaged := (*DamagedError)(nil); errors.As(err, &damaged) {
		damaged.Path = path
	}
	return s, err
}

// New returns a store in the caller's own database, which Close leaves open. It keeps one
// connection of db for writing until Close. It refuses a db that cannot have more than one, or
// whose connections are not in WAL mode with synchronous=FULL or EXTRA, and a database that is not
// in UTF-8. It creates or migrates the tables, and returns the same errors as Open.
func New(ctx context.Context, db *sql.DB, config Config) (*Store, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if db.Stats().MaxOpenConnections == 1 {
		return nil, errors.New("sqlite: the database allows one open connection, and the store keeps one for writing: allow two or more with SetMaxOpenConns")
	}
	return start(ctx, config, db, db, false)
}

// start connects, migrates and prepares. The databases are the store's own if own is set.
func start(ctx context.Context, config Config, writing, reading *sql.DB, own bool) (*Store, error) {
	s := &Store{config: config, queue: newQueue(), reader: reading}
	s.reads = reads{sql: newStatements(config.TablePrefix), open: s.open}
	s.writer = &writer{sql: s.sql, config: config, db: writing, own: own, changes: &s.changes}
	if own {
		s.owned = []*sql.DB{reading, writing}
	}
	if config.CheckIntegrity { // before anything is written
		if err := checkIntegrity(ctx, reading); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	if config.Existing { // before the database is brought into WAL mode
		if err := s.sql.checkExisting(ctx, reading); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	if err := s.writer.ready(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	var err error
	log := &s.sql.log
	if s.ready, err = prepare(ctx, reading, s.sql.load, log.read, log.readBack, log.order, log.orderOf, log.last); err != nil {
		return nil, errors.Join(readable(ctx, err), s.Close())
	}
	return s, nil
}

// open begins a read. It returns an error that wraps persist.ErrUnavailable if the file was removed or
// replaced before: SQLite would go on to read the old one.
func (s *Store) open(context.Context) (on executor, end func(), err error) {
	if err := s.calls.enter(); err != nil {
		return nil, nil, err
	}
	if err := s.writer.home.file.inPlace(); err != nil {
		s.calls.leave()
		return nil, nil, err
	}
	return s.ready, s.calls.leave, nil
}

// checkIntegrity returns *DamagedError if the database is damaged.
func checkIntegrity(ctx context.Context, on executor) error {
	findings, err := queryAll(ctx, on, func(rows *sql.Rows) (finding string, err error) {
		err = rows.Scan(&finding)
		return finding, err
	}, "PRAGMA integrity_check(3)")
	switch code := resultCode(err) & 0xff; {
	case code == codeCorrupt || code == codeNotADatabase:
		return &DamagedError{Reason: err.Error()}
	case err != nil:
		return readable(ctx, err)
	case !slices.Equal(findings, []string{"ok"}):
		return &DamagedError{Reason: strings.Join(findings, "; ")}
	}
	return nil
}

// Close answers the calls that are under way, then releases the store; later calls return
// persist.ErrClosed. It returns the errors of closing the database's connections, and nil when
// called again.
func (s *Store) Close() (err error) {
	s.closing.Do(func() {
		s.changes.Close()
		s.listening.Close()
		s.calls.close()
		errs := []error{s.ready.close(), s.writer.close()}
		for _, db := range s.owned {
			errs = append(errs, db.Close())
		}
		err = errors.Join(errs...)
	})
	return err
}

// calls counts the calls under way, so that Close can wait for them.
type calls struct {
	mu     sync.Mutex // protects closed, and the first Add of active
	closed bool
	active sync.WaitGroup
}

// enter counts a call; leave ends it. It returns persist.ErrClosed after close.
func (c *calls) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return persist.ErrClosed
	}
	c.active.Add(1)
	return nil
}

func (c *calls) leave() { c.active.Done() }

// ended reports whether close was called.
func (c *calls) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// close refuses new calls and waits for the calls under way.
func (c *calls) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.active.Wait()
}
