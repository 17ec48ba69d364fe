package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
	"github.com/pawl-go/pawl/persist/etcd/internal/host"
)

// Config says how a store uses its cluster. The zero value fits a cluster with etcd's defaults.
type Config struct {
	// Prefix starts every key. It ends with a slash, which is added if missing. Empty means "pawl/".
	// Stores with different prefixes share a cluster without seeing each other.
	Prefix string
	// Username and Password log in to a cluster that has authentication. Only Open uses them.
	Username, Password string
	// TLS encrypts the connections. Nil means none, unless an endpoint starts with https. Only Open
	// uses it.
	TLS *tls.Config

	// AttemptTimeout limits one request to a member. 0 means 2 s. It should be longer than the
	// cluster takes to elect a leader, because a request that runs out of it is in doubt.
	AttemptTimeout time.Duration
	// Timeout limits how long a call tries again after requests that certainly changed nothing,
	// before it returns persist.ErrUnavailable. 0 means 5 s.
	Timeout time.Duration
	// Tick is how often the store's clock moves. 0 means 100 ms. Leases and expiries are exact to
	// about two ticks.
	Tick time.Duration

	// MaxTxnOps is the cluster's --max-txn-ops. 0 means 128, the default of etcd.
	MaxTxnOps int
	// MaxRequestBytes is the cluster's --max-request-bytes. 0 means 1.5 MiB, the default of etcd.
	MaxRequestBytes int

	// Existing opens only a store that exists. Without one the error wraps persist.ErrMissingStore.
	Existing bool
}

// Defaults of Config.
const (
	DefaultPrefix          = "pawl/"
	DefaultAttemptTimeout  = 2 * time.Second
	DefaultTimeout         = 5 * time.Second
	DefaultTick            = 100 * time.Millisecond
	DefaultMaxTxnOps       = 128
	DefaultMaxRequestBytes = 3 << 19
)

// schema is the version of the layout.
const schema = 1

// Store is a persist.Store on an etcd cluster. It implements all optional interfaces except
// persist.Native and persist.Logger; persist.Logs keeps the logs of its records as documents.
type Store struct {
	client *clientv3.Client
	owned  *members // nil: the client is the caller's
	config Config
	keys   keyspace
	limits persist.Limits

	clock     clock
	known     cache
	listening hints.Listening
	hub       hints.Hub
	taking    chan struct{} // held by a Take: two of one process would want the same records

	life    context.Context // ends with the store
	end     context.CancelFunc
	running sync.WaitGroup // goroutines of the clock

	mu     sync.Mutex // protects closed, and calls from being added to later
	closed bool
	calls  sync.WaitGroup
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
	_ persist.Limiter   = (*Store)(nil)
)

// Open connects to the cluster at endpoints, such as "10.0.0.1:2379", and opens the store there. It
// creates the store if there is none, safely when many processes do so at once. It returns an error
// that wraps persist.ErrUnavailable if no majority answers in time, persist.ErrNewerSchema for a
// store of a newer release, persist.ErrMissingStore with Config.Existing, and the error of etcd for
// wrong credentials. No error contains the password.
func Open(ctx context.Context, endpoints []string, config Config) (*Store, error) {
	if len(endpoints) == 0 {
		return nil, errors.New("etcd: no endpoints")
	}
	config = config.withDefaults()
	owned := &members{attempt: config.AttemptTimeout, endpoints: endpoints, avoided: make(map[string]time.Time)}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		Username:             config.Username,
		Password:             config.Password,
		TLS:                  config.TLS,
		DialTimeout:          config.Timeout,
		DialKeepAliveTime:    10 * time.Second, // gRPC accepts no less
		DialKeepAliveTimeout: config.AttemptTimeout,
		BackoffWaitBetween:   25 * time.Millisecond,
		MaxCallSendMsgSize:   config.MaxRequestBytes + 1<<20,
		Logger:               zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: config.AttemptTimeout,
		}), grpc.WithChainUnaryInterceptor(owned.intercept)},
	})
	if err != nil {
		return nil, fmt.Errorf("open: %w", explain(err))
	}
	s, err := New(ctx, client, config)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	s.owned = owned
	owned.attach(client)
	return s, nil
}

// New opens the store on a client of the caller, which Close leaves open. It does not leave out members
// that let requests time out, as Open does: a request to one waits for Config.AttemptTimeout.
func New(ctx context.Context, client *clientv3.Client, config Config) (*Store, error) {
	config = config.withDefaults()
	if err := config.check(); err != nil {
		return nil, err
	}
	s := &Store{
		client: client, config: config, keys: keyspace(config.Prefix), limits: config.limits(),
		known:  cache{entries: make(map[persist.Key]entry), turns: make(map[persist.Key]int64)},
		taking: make(chan struct{}, 1),
	}
	s.clock = clock{host: host.Clock(ctx), changed: make(chan struct{})}
	s.life, s.end = context.WithCancel(context.Background())
	err := s.create(ctx)
	if err == nil {
		err = s.startClock(ctx)
	}
	if err != nil {
		s.end()
		s.running.Wait()
		return nil, fmt.Errorf("open: %w", explain(err))
	}
	return s, nil
}

// withDefaults returns c with its zero fields set.
func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	if !strings.HasSuffix(c.Prefix, "/") {
		c.Prefix += "/"
	}
	c.AttemptTimeout = cmp.Or(c.AttemptTimeout, DefaultAttemptTimeout)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Tick = cmp.Or(c.Tick, DefaultTick)
	c.MaxTxnOps = cmp.Or(c.MaxTxnOps, DefaultMaxTxnOps)
	c.MaxRequestBytes = cmp.Or(c.MaxRequestBytes, DefaultMaxRequestBytes)
	return c
}

const (
	leastTxnOps       = 32
	leastRequestBytes = 2 * spareBytes
	maxTick           = 200 * time.Millisecond // the coarsest clock that package persist allows
)

// check returns an error for a field without meaning.
func (c Config) check() error {
	switch {
	case !utf8.ValidString(c.Prefix) || strings.Contains(c.Prefix, "\x00"):
		return fmt.Errorf("etcd: Config.Prefix %q must be UTF-8 and must not contain U+0000", c.Prefix)
	case c.AttemptTimeout < 0 || c.Timeout < 0:
		return errors.New("etcd: a timeout in Config is negative")
	case c.Tick < time.Millisecond || c.Tick > maxTick:
		return fmt.Errorf("etcd: Config.Tick must be between 1ms and %s, got %s", maxTick, c.Tick)
	case c.MaxTxnOps < leastTxnOps:
		return fmt.Errorf("etcd: Config.MaxTxnOps must be at least %d, got %d", leastTxnOps, c.MaxTxnOps)
	case c.MaxRequestBytes < leastRequestBytes:
		return fmt.Errorf("etcd: Config.MaxRequestBytes must be at least %d, got %d", leastRequestBytes, c.MaxRequestBytes)
	}
	return nil
}

// create writes the schema and the clock if there is no store yet, and tests the schema if there is
// one.
func (s *Store) create(ctx context.Context) error {
	var answer *clientv3.TxnResponse
	err := s.patiently(ctx, func() (err error) {
		compare := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.keys.schema()), "=", 0)}
		then := []clientv3.Op{
			clientv3.OpPut(s.keys.schema(), strconv.Itoa(schema)),
			clientv3.OpPut(s.keys.clock(), sortable(s.clock.host())),
		}
		if s.config.Existing {
			then = nil
		}
		answer, err = s.txn(ctx, compare, then, []clientv3.Op{clientv3.OpGet(s.keys.schema())})
		return err
	})
	switch {
	case err != nil:
		return err
	case answer.Succeeded && s.config.Existing:
		return fmt.Errorf("%w: etcd: prefix %q", persist.ErrMissingStore, s.config.Prefix)
	case answer.Succeeded:
		return nil
	}
	found := string(kvs(answer.Responses[0])[0].Value)
	version, err := strconv.Atoi(found)
	switch {
	case err != nil || version < 1:
		return fmt.Errorf("etcd: %q is no schema version: prefix %q belongs to another program", found, s.config.Prefix)
	case version > schema:
		return fmt.Errorf("%w: etcd: schema %d, this release knows %d", persist.ErrNewerSchema, version, schema)
	}
	return nil
}

// Limits returns the limits of a commit, which follow from those of the cluster; see Config.
func (s *Store) Limits() persist.Limits { return s.limits }

// Close waits for calls that are under way, ends every Watch, and closes the client if Open made it.
// It returns the error of that, and nil when called twice.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.listening.Close()
	s.hub.Close()
	s.calls.Wait()
	s.end()
	s.running.Wait()
	if s.owned == nil {
		return nil
	}
	s.owned.detach()
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd: %w", err)
	}
	return nil
}

// enter counts a call. It returns ctx's error, and persist.ErrClosed after Close. The caller calls
// s.calls.Done afterwards unless there is an error.
func (s *Store) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return persist.ErrClosed
	}
	s.calls.Add(1)
	return nil
}
