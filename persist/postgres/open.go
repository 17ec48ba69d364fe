// Package postgres keeps records in a PostgreSQL database, which any number of processes share.
//
// An acknowledged commit is durable, even if the default of a session is synchronous_commit=off; a
// server with fsync=off is refused. The server's clock decides about expiry, leases and due times,
// after the records are locked. The usual commit is one round trip, with or without a
// lease and new log entries, also of several records; what that cannot write takes a transaction. When
// many commits are in progress they share transactions, each with an outcome of its own.
//
// Only Watch depends on the state of a session, so a proxy such as PgBouncer may pool connections
// by transaction. PostgreSQL 12 or newer and a database with encoding UTF8 are required. A commit
// that creates thousands of records needs as many locks: see max_locks_per_transaction. A commit of
// more than 5000 keys is refused with persist.ErrNotApplied, and so is a key of more than 2048
// bytes (kind and id), which is too long for the indices.
//
// # State and rows together
//
// There are two ways to change rows of your own together with documents. CommitWith runs a function
// inside the transaction of a commit. Join commits inside a transaction of yours, which you commit:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, "UPDATE orders SET paid = true WHERE id = $1", id); err != nil {
//			return err
//		}
//		_, err := store.Join(tx).Commit(ctx, c)
//		return err
//	})
//
// # Watching
//
// A change in one process reaches the others by a notification, usually within milliseconds. It is
// sent after the commit, which does not wait for it, on a connection beside the pool, one for each
// store that has committed something. Watch listens on another connection beside the pool, one for all
// Watch calls of a store. Behind a proxy that pools connections by transaction, Watch
// returns persist.ErrUnsupported; changes made there are still notified to others.
//
// # Logs
//
// Log entries are rows of the table pawl_log, with their JSON as text. An append costs the same
// however long the log is. Writers of different records do not wait for each other: an entry gets its
// position in the global order after its commit, from the first ReadOrder that finds it. That is one
// update for each entry. See Store.ReadOrder.
//
// # State in SQL
//
// Documents are jsonb. The view pawl_state shows those that are neither deleted nor expired, with
// the columns kind, id, version, doc, schema, label, due, expires, updated, holder and held_until:
//
//	SELECT id, doc->>'title' AS title, updated
//	FROM pawl_state
//	WHERE kind = 'session' AND (doc->>'messages')::int > 10
//	ORDER BY updated DESC;
//
// Read as you like; write only through the store. Documents that jsonb cannot represent (the
// character U+0000, lone surrogates) are refused with persist.ErrNotApplied. So are numbers that,
// with their exponents written out, are more than 64 KB longer than twice the document. jsonb keeps
// the meaning of a document, not its spelling: spaces and the order of fields are lost, the last of
// several fields with the same name stays, 1e2 becomes 100, and -0 becomes 0.
package postgres

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// Config are the settings of a store. The zero value is the default.
type Config struct {
	// Schema is the schema of the tables. It is created if it does not exist. Any name of up to 63
	// bytes is allowed. Empty: the first existing schema of the search path, usually "public".
	Schema string

	// TablePrefix is the start of the name of every table, view, index and function. Any name of up
	// to 48 bytes is allowed. Empty: "pawl_".
	TablePrefix string

	// CommitTimeout is the longest duration of a commit from its connection on, including the wait
	// for locks; a commit continues for that long after the caller's context ended. It also bounds
	// reads, and the locks of a process that was frozen during a commit. 0: 10 s.
	CommitTimeout time.Duration

	// AcquireTimeout is how long a call waits for a connection before it fails with
	// persist.ErrUnavailable. 0: 5 s.
	AcquireTimeout time.Duration

	// Existing lets Open and New neither create nor migrate anything. They return an error that
	// wraps persist.ErrMissingStore if the database has no tables of Pawl, and one that wraps
	// persist.ErrOlderSchema if the tables need a migration.
	Existing bool
}

const (
	defaultTablePrefix    = "pawl_"
	defaultCommitTimeout  = 10 * time.Second
	defaultAcquireTimeout = 5 * time.Second
)

func (c Config) withDefaults() (Config, error) {
	c.TablePrefix = cmp.Or(c.TablePrefix, defaultTablePrefix)
	if c.CommitTimeout <= 0 {
		c.CommitTimeout = defaultCommitTimeout
	}
	if c.AcquireTimeout <= 0 {
		c.AcquireTimeout = defaultAcquireTimeout
	}
	if err := checkName("table prefix", c.TablePrefix, maxPrefix); err != nil {
		return c, err
	}
	return c, checkName("schema", c.Schema, maxName)
}

// Store is a persist.Store in a PostgreSQL database. It implements all optional interfaces of package
// persist except persist.Limiter and persist.LogCleaner.
type Store struct {
	config  Config
	pool    *pgxpool.Pool
	owned   bool // Close closes the pool
	names   names
	sql     statements
	queue   queue
	slots   chan struct{} // has a place for each connection that may wait for a lock
	turns   sync.Map      // of the open turns, by persist.Key
	turnFor time.Duration // longestTurn

	purging   chan struct{} // has one place, for the purge in progress
	numbering chan struct{} // has one place, for the call that gives positions to log entries

	id        string          // of this store among all that share the database
	hub       hints.Hub       // for the Watch calls of this store
	listening hints.Listening // receives the hints of other processes
	heartbeat time.Duration
	outbox    outbox // sends hints to other processes
}

var (
	_ persist.Store       = (*Store)(nil)
	_ persist.Reader      = (*Store)(nil)
	_ persist.Leaser      = (*Store)(nil)
	_ persist.Native      = (*Store)(nil)
	_ persist.Purger      = (*Store)(nil)
	_ persist.Watcher     = (*Store)(nil)
	_ persist.Prober      = (*Store)(nil)
	_ persist.Restorer    = (*Store)(nil)
	_ persist.LogRestorer = (*Store)(nil)
	_ persist.Describer   = (*Store)(nil)
)

// Open connects to the database at url (see pgxpool.ParseConfig) and creates or migrates its
// tables. The store has a pool of its own; pool_max_conns in the URL is its size.
//
// It returns an error that wraps persist.ErrNewerSchema if a newer release has migrated the tables,
// one that wraps persist.ErrUnavailable if the database cannot be reached or written now, and
// another error if config or a setting of the database is not supported. No error contains the URL.
func Open(ctx context.Context, url string, config Config) (*Store, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	pooled, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errors.New("postgres: the URL cannot be parsed; want postgres://user:password@host:port/database with %-escapes for special characters")
	}
	if pooled.ConnConfig.ConnectTimeout == 0 || pooled.ConnConfig.ConnectTimeout > config.AcquireTimeout {
		pooled.ConnConfig.ConnectTimeout = config.AcquireTimeout
	}
	pooled.BeforeConnect = withoutCancel
	pool, err := pgxpool.NewWithConfig(ctx, pooled)
	if err != nil {
		return nil, explain(err)
	}
	s, err := start(ctx, pool, config)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// New returns a store that uses the caller's own pool, which Close leaves open. The query mode and
// the registered types of the pool do not matter: the store uses the connections below that level.
// Tracers of the pool see only BEGIN, COMMIT and savepoints of shared transactions. New creates or
// migrates the tables and returns the errors of Open.
//
// A commit that is not answered in time sends a cancel request on such a pool. With synchronous
// replication the commit may then be visible although no standby has it. Open avoids that.
func New(ctx context.Context, pool *pgxpool.Pool, config Config) (*Store, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	return start(ctx, pool, config)
}

// start verifies the database, migrates the tables and returns the store.
func start(ctx context.Context, pool *pgxpool.Pool, config Config) (*Store, error) {
	connections := int(pool.Config().MaxConns)
	s := &Store{config: config, pool: pool, slots: make(chan struct{}, waiters(connections)), turnFor: longestTurn, purging: make(chan struct{}, 1), numbering: make(chan struct{}, 1)}
	s.queue = queue{committer: s.commitWaiting, maxDirect: min(maxDirect, connections), taken: make(map[persist.Key]bool)}
	s.id, s.heartbeat = rand.Text(), heartbeat
	s.outbox.tries = notifyTries
	s.outbox.life, s.outbox.end = context.WithCancel(context.Background())
	conn, err := s.acquire(ctx)
	if err != nil {
		return nil, explain(err)
	}
	defer conn.Release()
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	current, err := verify(bounded, conn.Conn().PgConn())
	if err != nil {
		return nil, err
	}
	if s.names, err = config.named(current); err != nil {
		return nil, err
	}
	s.sql = newStatements(s.names)
	if err := s.migrate(ctx, conn.Conn().PgConn()); err != nil {
		return nil, err
	}
	return s, nil
}

// bounded returns a context that ends with ctx, and after Config.CommitTimeout at the latest.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.config.CommitTimeout, errNoAnswer)
}

// lifetime is Config.CommitTimeout as a setting of PostgreSQL, where 0 would mean no limit.
func (s *Store) lifetime() string {
	return strconv.FormatInt(min(max(s.config.CommitTimeout.Milliseconds(), 1), math.MaxInt32), 10)
}

// acquire returns a connection of the pool. It waits for at most Config.AcquireTimeout, and then
// returns errNoConnection.
func (s *Store) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, s.config.AcquireTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(bounded)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, ended(ctx)
	case bounded.Err() != nil:
		return nil, errNoConnection
	}
	return nil, err
}

// release returns conn to the pool; err is its last error. A connection to a standby, or to a
// database that was read-only when the session began, is closed, so that a new one finds the
// primary.
func release(conn *pgxpool.Conn, err error) {
	if sqlState(err) == codeReadOnlyTransaction {
		hangUp(conn.Conn().PgConn())
	}
	conn.Release()
}

// hangUp closes conn at once, without a message to the server.
func hangUp(conn *pgconn.PgConn) {
	closing, cancel := context.WithCancel(context.Background())
	cancel()
	_ = conn.Close(closing)
}

// Close waits for the calls in progress, ends Watch with persist.ErrClosed, sends the remaining
// hints and closes the store. Later calls return persist.ErrClosed. A commit in progress takes at
// most Config.CommitTimeout. Close returns nil, also when called again.
func (s *Store) Close() error {
	s.hub.Close()
	s.listening.Close()
	s.queue.close()
	s.outbox.close()
	if s.owned {
		s.pool.Close()
	}
	return nil
}

// unfit returns the error for a commit that PostgreSQL cannot store.
func unfit(format string, args ...any) error {
	return fmt.Errorf("%w: postgres: "+format, append([]any{persist.ErrNotApplied}, args...)...)
}
