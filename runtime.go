package pawl

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/pawl-go/pawl/internal/hints"
	"github.com/pawl-go/pawl/internal/registry"
	"github.com/pawl-go/pawl/persist"
)

// Config configures a Runtime; its zero value is a runtime for in-memory scopes.
type Config struct {
	Store    persist.Store // nil: persisted scopes return ErrNoStore
	Kinds    []AnyKind     // checked by Open; a kind not listed is registered, and checked, at its first use
	Timeout  time.Duration // budget of an in-memory mutation; 0: DefaultTimeout; NoTimeout turns it off
	Retry    Retry         // budget of a persisted mutation; zero fields: DefaultRetry's
	MaxDoc   int           // bytes of a persisted document; 0: DefaultMaxDoc
	MaxQueue int           // mutations waiting for one scope before *OverloadedError; 0: DefaultMaxQueue
	Holder   string        // names this process in leases; empty: host and process id
	Observer Observer      // nil costs nothing
	Logger   *slog.Logger  // for events without a caller to return them to; nil: slog.Default()
}

// Runtime owns the containers of a process. Handles on scopes are cheap: get one per use.
type Runtime struct {
	store   persist.Store
	logs    persist.Logger // store, or what keeps logs in it; it takes all commits
	limits  persist.Limits // of the store; none without a store
	env     *env
	timeout time.Duration
	retry   Retry
	kinds   sync.Map    // name → *kind
	memory  *containers // in-memory scopes
	stored  *containers // persisted scopes
	locals  sync.Map    // weak.Pointer[containers] → nothing; of the Locals that are not closed
	closed  atomic.Bool

	holder       string       // of leases, unless HeldBy says otherwise
	transactions transactions // that have not ended
	leases       leases
	hub          *hints.Hub
	floor        atomic.Uint64 // the highest version that an absent record was seen to have

	unfinishedMu sync.Mutex // protects unfinished
	unfinished   []closable // closed containers in which a mutation still ran
}

// containers finds the container of a key.
type containers = registry.Registry[resident]

// registration is where a container is registered.
type registration = registry.Place[resident]

// resident is a container of some type in a registry.
type resident interface {
	closable
	// stats describes the queue, all but its scope, and counts the watchers.
	stats(now time.Time) (QueueStats, int)
	// abandon gives up the function that has run since a time, and reports whether it still ran.
	abandon(since time.Time) bool
}

// closable is a part of the runtime that Close waits for.
type closable interface {
	// close refuses new work. It returns a channel that is closed once all work is finished, nil if
	// there is none now.
	close() <-chan struct{}
	// busy describes the work that is not finished, for BusyError.
	busy() []Running
}

// Open checks the configuration and returns a Runtime. It does no I/O. It returns all faults that
// it finds, joined: *KindError for a kind that contradicts itself or another, *LimitError for a
// name, ErrNoStore for a persisted kind without a store, *ArgumentError for the rest.
func Open(c Config) (*Runtime, error) {
	rt := &Runtime{store: c.Store, env: newEnv(), timeout: c.Timeout, retry: c.Retry.Or(DefaultRetry), memory: registry.New[resident](registry.DefaultShards), stored: registry.New[resident](registry.DefaultShards)}
	rt.env.observer, rt.env.log = c.Observer, c.Logger
	if c.Store != nil {
		rt.logs = persist.Logs(c.Store)
		if limiter, ok := rt.logs.(persist.Limiter); ok {
			rt.limits = limiter.Limits()
		}
	}
	rt.hub = newHub(rt)
	if rt.holder = c.Holder; rt.holder == "" {
		rt.holder = thisProcess()
	}
	if c.Timeout == 0 {
		rt.timeout = DefaultTimeout
	}
	if c.MaxDoc != 0 {
		rt.env.maxDoc = c.MaxDoc
	}
	if c.MaxQueue != 0 {
		rt.env.maxQueue = c.MaxQueue
	}
	var errs []error
	fault := func(name, reason string) {
		errs = append(errs, &ArgumentError{Argument: "Config." + name, Reason: reason})
	}
	negative := func(name string, value any) { fault(name, fmt.Sprintf("must not be negative, got %v", value)) }
	if c.Timeout < 0 && c.Timeout != NoTimeout {
		negative("Timeout", c.Timeout)
	}
	if err := c.Retry.check(); err != nil {
		fault("Retry", err.Error())
	}
	if c.MaxDoc < 0 {
		negative("MaxDoc", c.MaxDoc)
	}
	if c.MaxQueue < 0 {
		negative("MaxQueue", c.MaxQueue)
	}
	if err := checkName(Key{}, "holder", rt.holder, MaxHolder); err != nil {
		errs = append(errs, err)
	}
	for i, k := range c.Kinds {
		if k == nil {
			fault(fmt.Sprintf("Kinds[%d]", i), "nil")
			continue
		}
		if err := k.define(rt); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return rt, nil
}

// MaxDoc returns the limit of persisted documents, in bytes: Config.MaxDoc, or its default.
func (rt *Runtime) MaxDoc() int { return rt.env.maxDoc }

// Store returns the store that the runtime was opened with, nil if it has none. It shows facts that
// scopes do not, such as the lease of a record.
func (rt *Runtime) Store() persist.Store { return rt.store }

// thisProcess returns a readable name of this process: host and process id.
func thisProcess() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%.200s:%d", host, os.Getpid())
}

// newWriter returns a random name, which stands in the commit ids of one process or one container.
func newWriter() string { return rand.Text()[:13] }

// Close refuses new work with ErrClosed and waits for mutations that were accepted before. When ctx
// ends first, it returns *BusyError, which names the mutations that still run. It does not close
// the store. Calling it twice is safe.
func (rt *Runtime) Close(ctx context.Context) error {
	if ctx == nil {
		return &ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	rt.closed.Store(true)
	rt.transactions.close()
	rt.leases.close()
	rt.hub.Close()
	for _, r := range rt.inMemory() {
		rt.finish(r)
	}
	busy := append(rt.finish(rt.stored), &rt.transactions, &rt.leases)
	for _, c := range busy {
		done := c.close()
		if done == nil {
			continue
		}
		select {
		case <-done:
			continue
		case <-ctx.Done():
		}
		err := &BusyError{Cause: context.Cause(ctx)}
		for _, c := range busy {
			err.Running = append(err.Running, c.busy()...)
		}
		if len(err.Running) == 0 {
			return nil // it ended just now
		}
		return err
	}
	return nil
}

// finish closes the containers of r. It returns all closed containers of rt, those of earlier calls
// included, in which a mutation still runs.
func (rt *Runtime) finish(r *containers) []closable {
	var all []closable
	for _, c := range r.Close() {
		if c.close() != nil {
			all = append(all, c)
		}
	}
	rt.unfinishedMu.Lock()
	defer rt.unfinishedMu.Unlock()
	if len(rt.unfinished)+len(all) > 0 {
		rt.unfinished = slices.DeleteFunc(append(rt.unfinished, all...), func(c closable) bool { return c.close() == nil })
	}
	return slices.Clone(rt.unfinished)
}

// inMemory returns the registries of in-memory scopes: the runtime's, and those of the Locals that are
// not closed.
func (rt *Runtime) inMemory() []*containers {
	all := []*containers{rt.memory}
	rt.locals.Range(func(key, _ any) bool {
		if r := key.(weak.Pointer[containers]).Value(); r != nil {
			all = append(all, r)
		}
		return true
	})
	return all
}

// forgetLocal removes a Local that was garbage-collected before it was closed.
func (rt *Runtime) forgetLocal(known weak.Pointer[containers]) { rt.locals.Delete(known) }

// Owner is a *Runtime, a *Local or a *Tx: scopes are opened on one. On a *Runtime a scope lives
// until the runtime is closed, and each verb is a commit. On a *Local, in-memory scopes end with
// the Local. On a *Tx, the verbs of a scope commit together with the transaction.
type Owner interface{ owner() owner }

type owner struct {
	rt    *Runtime
	local *Local
	tx    *Tx
}

func (rt *Runtime) owner() owner { return owner{rt: rt} }

func (l *Local) owner() owner {
	if l == nil {
		return owner{}
	}
	return owner{rt: l.rt, local: l}
}

// Local is a lifetime for in-memory scopes, such as one request: their ids are private to it,
// and Close lets them go. Persisted scopes opened on it are the runtime's.
type Local struct {
	rt     *Runtime
	memory *containers
	known  weak.Pointer[containers] // under which the runtime knows memory
	opts   []CallOption
	closed atomic.Bool
}

// NewLocal returns a Local on the owner's runtime. Verbs on its in-memory scopes use opts as their
// defaults.
func NewLocal(o Owner, opts ...CallOption) *Local {
	l := &Local{memory: registry.New[resident](1), opts: opts}
	if o != nil {
		l.rt = o.owner().rt
	}
	if l.rt == nil {
		return l // its scopes say so
	}
	l.known = weak.Make(l.memory)
	l.rt.locals.Store(l.known, nil)
	runtime.AddCleanup(l.memory, l.rt.forgetLocal, l.known)
	if l.rt.closed.Load() {
		l.Close()
	}
	return l
}

// Close ends the in-memory scopes opened on l: their verbs return ErrClosed from then on. It does
// not wait for mutations that were accepted before. Calling it twice is safe.
func (l *Local) Close() {
	l.closed.Store(true)
	if l.rt != nil {
		l.rt.locals.Delete(l.known)
		l.rt.finish(l.memory)
	}
}
