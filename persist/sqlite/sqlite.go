// Package sqlite keeps records in an SQLite database file, which several processes may share.
//
// An acknowledged commit is durable: the database is in WAL mode with synchronous=FULL. All
// writers of a process share one connection, and commits that wait at the same time share one
// transaction and one fsync. Readers have connections of their own and are not held up by
// writers. The driver is mattn/go-sqlite3, or modernc.org/sqlite in a build without cgo.
//
// The file must be on a local disk: SQLite's locks do not work on network file systems. Nor do they
// work between two copies of SQLite in one process: a program that opens the same file by itself
// must use the same driver.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/hints"
	"github.com/pawl-go/pawl/persist/internal/patience"
)

// Config is how a store is opened; the zero value is the default.
type Config struct {
	// BusyTimeout is how long a call waits for a lock that another process or connection holds,
	// before it fails with persist.ErrUnavailable. 0: 5 s.
	BusyTimeout time.Duration

	// TablePrefix begins the name of every table and index: a letter or underscore, then up to
	// 31 letters, digits and underscores. Empty: "pawl_".
	TablePrefix string

	// PollInterval is how often it is looked, while somebody watches, whether other processes or
	// connections have committed anything; what this store commits is told at once. 0: 20 ms.
	PollInterval time.Duration
}

const (
	defaultBusyTimeout  = 5 * time.Second
	defaultTablePrefix  = "pawl_"
	defaultPollInterval = 20 * time.Millisecond
)

// The prefix is spliced into SQL, so it may contain nothing that would need escaping.
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

// Store is a persist.Store in an SQLite database, and all that package persist has to offer beside.
type Store struct {
	config  Config
	sql     statements
	queue   queue         // the callers that want to write
	waits   patience.Ends // of those who wait there
	writer  *writer       // belongs to whoever leads the queue
	reader  *sql.DB
	reading prepared  // reader with statements
	reads   reads     // on reading
	lanes   *lanes    // of reader, for Load; nil: there are none
	owned   []*sql.DB // closed with the store
	home    home      // where the database is

	// life is held for reading while a read runs, so that Close waits for it.
	life   sync.RWMutex
	closed bool
	ending atomic.Bool // Close was called

	changes  hints.Hub   // for those who watch
	polling  polling     // for the changes of others, while somebody watches
	attached atomic.Bool // a joined store has committed, into a transaction that may be our own
}

var (
	_ persist.Store   = (*Store)(nil)
	_ persist.Reader  = (*Store)(nil)
	_ persist.Prober  = (*Store)(nil)
	_ persist.Watcher = (*Store)(nil)
	_ persist.Leaser  = (*Store)(nil)
	_ persist.Native  = (*Store)(nil)
	_ persist.Purger  = (*Store)(nil)
)

// Driver is the name of the driver that the store uses, for sql.Open: what Join joins has to be of the same.
const Driver = driverName

// Open opens the database file at path, and creates it, readable and writable by its owner only,
// if there is none; the folder must exist. It creates or migrates the tables it needs.
//
// It returns an error that wraps persist.ErrNewerSchema when a newer release has migrated the
// database, one that wraps persist.ErrUnavailable when another process holds its lock for longer
// than config.BusyTimeout, and other errors when path is not that of a usable database file.
func Open(ctx context.Context, path string, config Config) (*Store, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	path, err = prepareFile(path)
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
	reading.SetMaxOpenConns(2 * readers) // half of them are lanes
	reading.SetMaxIdleConns(readers)

	s := &Store{config: config, sql: newStatements(config.TablePrefix), reader: reading, owned: []*sql.DB{reading, writing}}
	s.lanes = newLanes(s.sql, config, reading, readers)
	s.writer = newWriter(s.sql, config, writing, useWAL, &s.changes)
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// New returns a store in the caller's own database, which Close leaves open. It keeps one
// connection of db for writing until Close, and refuses a db that cannot have more than one, or
// whose connections are not in WAL mode with synchronous=FULL or EXTRA. It creates or migrates
// the tables it needs, and returns the same errors as Open.
func New(ctx context.Context, db *sql.DB, config Config) (*Store, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if db.Stats().MaxOpenConnections == 1 {
		return nil, errors.New("sqlite: the database allows one open connection, but one is kept for writing: allow two or more with SetMaxOpenConns")
	}
	s := &Store{config: config, sql: newStatements(config.TablePrefix), reader: db}
	s.writer = newWriter(s.sql, config, db, requireWAL, &s.changes)
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// start connects, migrates and prepares.
func (s *Store) start(ctx context.Context) error {
	if err := s.writer.connect(ctx); err != nil {
		return err
	}
	if err := s.writer.migrate(ctx); err != nil {
		return err
	}
	if err := s.writer.prepare(ctx); err != nil {
		return err
	}
	var err error
	if s.home, err = homeOf(ctx, s.writer.conn); err != nil {
		return readable(ctx, err)
	}
	s.reading, err = prepare(ctx, s.reader, s.sql.load, s.sql.floor)
	s.reads = reads{sql: s.sql, on: s.reading}
	return err
}

// Close answers the calls that are under way, then releases the store; later calls return
// persist.ErrClosed. It returns the errors of closing the database's connections, and nil when
// called again.
func (s *Store) Close() error {
	s.ending.Store(true)
	s.changes.Close()
	s.queue.close()
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	errs := []error{s.reading.close(), s.writer.close()}
	if s.lanes != nil {
		errs = append(errs, s.lanes.close())
	}
	for _, db := range s.owned {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// Commit applies c entirely or not at all and returns the time of the commit. It returns
// *persist.Conflict, *persist.Fenced, persist.ErrClosed after Close, and an error that wraps
// persist.ErrNotApplied when c is malformed, when ctx ended before the commit's turn came, or
// when the database stayed locked for longer than Config.BusyTimeout or could not be written;
// where waiting may help, that error wraps persist.ErrUnavailable too. Any other error leaves
// the outcome unknown: the disk failed in the middle of making the commit durable.
//
// A ctx with a method Patient() is that of a caller for whom nobody waits: it has a deadline, and ends no sooner while Commit lasts, and what is
// in c is never changed.
func (s *Store) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := validate(c); err != nil {
		return time.Time{}, err
	}
	r := &request{commit: c, next: s.sql.nextOf(c)} // by its caller, of whom there are many, and not by the one who writes
	for i := range c.Writes {
		r.size += len(c.Writes[i].Doc)
	}
	if !patience.Has(ctx) {
		r.commit = c.Clone() // its caller may leave before it is written
	}
	return s.write(ctx, r)
}

// validate returns an error that wraps persist.ErrNotApplied if c can never be written.
func validate(c persist.Commit) error {
	if err := c.Validate(); err != nil {
		return err
	}
	for _, w := range c.Writes {
		if w.Version > math.MaxInt64 {
			return notApplied(fmt.Errorf("sqlite: version %d of %q is too large for SQLite", w.Version, w.Key))
		}
	}
	return nil
}
