// Package postgres keeps records in a PostgreSQL database, which any number of processes share.
//
// An acknowledged commit is durable, also where a session's default is synchronous_commit=off; a
// server with fsync=off is refused. Expiry, leases and due times are judged by the server's clock,
// once the records are locked. A commit of one write is one round trip, any other two; when many
// commits are under way at once, they share transactions, each with an outcome of its own.
//
// Nothing but Watch depends on the state of a session, so a proxy such as PgBouncer may pool connections
// by transaction. What Open has made, and no proxy, keeps a lock_timeout while it commits and does nothing
// else, which is taken back before it does. PostgreSQL 12 or newer is required, and a database whose encoding is UTF8. A commit
// that creates thousands of records needs as many locks: see max_locks_per_transaction. One of more
// than 5000 keys is refused with persist.ErrNotApplied, and so is a key of more than 2048 bytes, kind
// and id together, which the indices have no room for.
//
// # State and rows together
//
// Rows of your own change together with documents in two ways: CommitWith runs a function inside the
// transaction of a commit, and Join does commits inside a transaction of yours, which you commit:
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
// What one process changes, others hear of by a notification, usually within milliseconds. It is sent
// after the commit, which does not wait for it, on a connection that the pool has to spare; when the
// pool has had none for a second, one is made for it. In a pool of one connection, a commit that comes
// while a notification is sent waits for the end of that, a second at most. Watch listens on a
// connection beside the pool, one for all Watch calls of a store. Where a proxy pools connections by
// transaction, Watch returns persist.ErrUnsupported; others hear of what is changed there all the same.
//
// # State in SQL
//
// Documents are jsonb. The view pawl_state shows those that are alive, that is neither deleted nor
// expired, with the columns kind, id, version, doc, schema, label, due, expires, updated, holder
// and held_until:
//
//	SELECT id, doc->>'title' AS title, updated
//	FROM pawl_state
//	WHERE kind = 'session' AND (doc->>'messages')::int > 10
//	ORDER BY updated DESC;
//
// Read what you like; write through the store only. What jsonb cannot keep (the character U+0000,
// lone surrogates) is refused with persist.ErrNotApplied, and so are numbers that, with their
// exponents written out, are more than 64 KB longer than twice the document. jsonb keeps what a
// document means, not how it is written: blanks and the order of fields are lost, of fields with the
// same name the last one stays, 1e2 becomes 100, and -0 becomes 0.
package postgres

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/hints"
)

// Config is how a store is opened; the zero value is the default.
type Config struct {
	// Schema is that of the tables, and is created if it is absent and may be created. Any name of
	// up to 63 bytes will do. Empty: the first existing schema of the search path, which for most
	// users is "public".
	Schema string

	// TablePrefix begins the name of every table, view, index and function. Any name of up to 48
	// bytes will do. Empty: "pawl_".
	TablePrefix string

	// CommitTimeout is how long a commit may take when its turn has come, waiting for locks
	// included; it goes on for that long when the caller's context ends. It bounds reads, too, and
	// is how long the locks of a process that was frozen in the middle of a commit last. 0: 10 s.
	CommitTimeout time.Duration

	// AcquireTimeout is how long a call waits for a connection, before it fails with
	// persist.ErrUnavailable. 0: 5 s.
	AcquireTimeout time.Duration
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

// Store is a persist.Store, and a persist.Reader, persist.Leaser, persist.Native, persist.Purger,
// persist.Watcher and persist.Prober, in a PostgreSQL database.
type Store struct {
	config  Config
	pool    *pgxpool.Pool
	owned   bool // the pool is closed with the store
	names   names
	sql     statements
	queue   queue
	slots   chan struct{} // one for each connection that may wait for a lock
	turns   turns
	turnFor time.Duration // longestTurn

	purging chan struct{} // holds one place, for who purges

	id        string    // of this store, among all that share the database
	hub       hints.Hub // tells all who watch
	listening listening // hears what other processes change
	outbox    outbox    // tells other processes
}

var (
	_ persist.Store   = (*Store)(nil)
	_ persist.Reader  = (*Store)(nil)
	_ persist.Leaser  = (*Store)(nil)
	_ persist.Native  = (*Store)(nil)
	_ persist.Purger  = (*Store)(nil)
	_ persist.Watcher = (*Store)(nil)
	_ persist.Prober  = (*Store)(nil)
)

// Open connects to the database at url, which pgxpool.ParseConfig describes, and creates or
// migrates the tables it needs. The store has a pool of its own; pool_max_conns in the URL is its
// size.
//
// It returns an error that wraps persist.ErrNewerSchema when a newer release has migrated the
// tables, one that wraps persist.ErrUnavailable when the database cannot be reached or written now,
// and other errors when config or the database's settings will not do. No error repeats the URL.
func Open(ctx context.Context, url string, config Config) (*Store, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	pooled, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errors.New("postgres: the URL cannot be parsed; want postgres://user:password@host:port/database, and %-escapes for special characters in it")
	}
	if pooled.ConnConfig.ConnectTimeout == 0 || pooled.ConnConfig.ConnectTimeout > config.AcquireTimeout {
		pooled.ConnConfig.ConnectTimeout = config.AcquireTimeout
	}
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

// New returns a store that uses the caller's own pool, which Close leaves open. How the pool runs
// queries and which types are registered with it does not matter, and its tracers do not see the
// store's statements, but for BEGIN, COMMIT and savepoints where a transaction is shared: the store
// speaks to the connections below that. It creates or migrates the
// tables it needs, and returns the same errors as Open.
func New(ctx context.Context, pool *pgxpool.Pool, config Config) (*Store, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	return start(ctx, pool, config)
}

// start verifies the database, migrates, and returns the store.
func start(ctx context.Context, pool *pgxpool.Pool, config Config) (*Store, error) {
	connections := int(pool.Config().MaxConns)
	s := &Store{config: config, pool: pool, slots: make(chan struct{}, waiters(connections)), turnFor: longestTurn, purging: make(chan struct{}, 1)}
	s.queue = queue{committer: s.commitWaiting, maxDirect: min(maxDirect, connections), taken: make(map[persist.Key]bool)}
	s.id, s.listening.heartbeat = rand.Text(), heartbeat
	s.outbox.tries, s.outbox.closing = notifyTries, make(chan struct{})
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

// bounded returns a context that ends after Config.CommitTimeout, at the latest.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.config.CommitTimeout, errNoAnswer)
}

// lifetime is Config.CommitTimeout as a setting of PostgreSQL, where 0 would be for ever.
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

// release gives conn back to the pool; err is what happened on it. A connection to a standby, or to
// a database that was read-only when the session began, is closed instead, so that a new one finds
// the primary.
func release(conn *pgxpool.Conn, err error) {
	if sqlState(err) == codeReadOnlyTransaction {
		hangUp(conn.Conn().PgConn())
	}
	conn.Release()
}

// hangUp closes conn at once, without a farewell to the server.
func hangUp(conn *pgconn.PgConn) {
	closing, cancel := context.WithCancel(context.Background())
	cancel()
	_ = conn.Close(closing)
}

// Close answers the calls that are under way, Watch with persist.ErrClosed, sends the hints that are
// left, then releases the store; later calls return persist.ErrClosed. A commit under way takes at
// most Config.CommitTimeout. Close returns nil, also when called twice.
func (s *Store) Close() error {
	s.hub.Close()
	s.listening.close()
	s.queue.close()
	s.outbox.close() // what was committed until now
	if s.owned {
		s.pool.Close()
	}
	return nil
}

// unfit refuses what PostgreSQL cannot hold.
func unfit(format string, args ...any) error {
	return fmt.Errorf("%w: postgres: "+format, append([]any{persist.ErrNotApplied}, args...)...)
}
