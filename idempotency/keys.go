package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
)

// A record, from the first use of its key on:
//
//	absent ──claim──► held ──settle──► done ──TTL──► absent
//	                  │  ▲
//	     error, 5xx,  │  │ claim, by the same payload
//	  panic, crash:   ▼  │
//	                  free
//
// Claim takes the lease of the record and, in the same commit, binds the key to its payload. Settle writes the response, tested by the lease's token inside the
// commit. To free a key is to give the lease back, which a crash does too, only later. Free and held are the same document: the lease tells them apart.
// Done is final, whoever holds the lease then.
//
// Races, and what decides them:
//   - two first requests at the same instant: the claim is a version-checked write; one of them finds the other's lease.
//   - a repeat comes after the response was stored, and before the lease is given back, or instead of that the process dies: claim reads the record
//     before it asks for the lease. Done, it is replayed.
//   - the response is stored between this read and the claim: the claim tests the record inside its commit.
//   - a handler is paused for longer than its lease, and another runs meanwhile: settling and Respond are refused by the token. The first one's
//     response is not sent; its client is told that the outcome is unknown.
//   - the client leaves: its handler's context ends, but not the lease; what the handler answers is stored, for the repeat.
//   - a transaction with Respond is in doubt when the handler returns: the document is looked at. If the commit lands after that, it lands before the lease is
//     given back and is what repeats get, or it is refused.
//   - a repeat that waits: for the lease, which a failure frees, and for the document, which is done before the lease is given back.
//   - the record expires while a repeat looks at it: not while it is held; free or done, the repeat finds what was, or is the first.

// Defaults of Config.
const (
	DefaultTTL        = 24 * time.Hour
	DefaultMaxBody    = 512 << 10
	DefaultMaxRequest = 1 << 20
)

// MaxKey is how long a key can be.
const MaxKey = 255

// Config configures Keys; its zero value will do for Do and DoTx.
type Config struct {
	// Principal tells whose keys those of a request are: a user, a tenant, never something that a client can choose freely. Requests with a key and an empty
	// principal get 401. Middleware needs it.
	Principal func(*http.Request) string
	// Route tells what a key is used for. The default is the pattern of http.ServeMux where the middleware is inside one, else method and path.
	Route func(*http.Request) string
	// Require refuses requests without a key, 400, unless their method is safe.
	Require bool
	// Wait lets a repeat wait this long for the first one's response before it gets 409, and Do and DoTx likewise; 0: not at all.
	Wait time.Duration
	// Keep tells whether a response of this status is stored. The default is everything below 500; the rest frees the key.
	// A 499 that is written when the client has left frees it, too.
	Keep func(status int) bool
	// Headers are stored beside Content-Type, Content-Encoding, Content-Language and Location.
	Headers []string

	TTL        time.Duration // how long a response is remembered; 0: DefaultTTL
	Lease      time.Duration // how long a crash blocks its key; 0: pawl.DefaultLease
	MaxBody    int           // bytes of a stored response; 0: DefaultMaxBody. A larger one is passed on, and frees the key
	MaxRequest int64         // bytes of a request with a key, which is read before the handler runs; 0: DefaultMaxRequest
}

// Keys remembers which keys were used, and what came of it. It is safe for concurrent use.
type Keys struct {
	rt      *pawl.Runtime
	config  Config
	headers []string // canonical
}

// record is what is stored under a key.
type record struct {
	Print  string              `json:"print"` // of the payload
	Done   bool                `json:"done,omitempty"`
	Status int                 `json:"status,omitempty"`
	Header map[string][][]byte `json:"header,omitempty"` // bytes, because a header need not be Unicode
	Body   []byte              `json:"body,omitempty"`
	Failed *StoredError        `json:"failed,omitempty"`
}

var records = pawl.Kind[record]{Name: "idempotency"}

// framing are headers that say how a response is sent, not what it says.
var framing = []string{"Connection", "Content-Length", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// New returns Keys on rt's store. It returns *pawl.ArgumentError for what makes no sense.
func New(rt *pawl.Runtime, c Config) (*Keys, error) {
	if rt == nil {
		return nil, &pawl.ArgumentError{Argument: "runtime", Reason: "nil"}
	}
	if c.TTL < 0 || c.Lease < 0 || c.Wait < 0 || c.MaxBody < 0 || c.MaxRequest < 0 {
		return nil, &pawl.ArgumentError{Argument: "Config", Reason: "a negative field"}
	}
	k := &Keys{rt: rt, config: c, headers: []string{"Content-Type", "Content-Encoding", "Content-Language", "Location"}}
	for _, name := range c.Headers {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if !isToken(name) || slices.Contains(framing, canonical) {
			return nil, &pawl.ArgumentError{Argument: "Config.Headers", Reason: fmt.Sprintf("%q cannot be replayed", name)}
		}
		if !slices.Contains(k.headers, canonical) {
			k.headers = append(k.headers, canonical)
		}
	}
	if c.TTL == 0 {
		k.config.TTL = DefaultTTL
	}
	if c.Lease == 0 {
		k.config.Lease = pawl.DefaultLease
	}
	if c.MaxBody == 0 {
		k.config.MaxBody = DefaultMaxBody
	}
	if c.MaxRequest == 0 {
		k.config.MaxRequest = DefaultMaxRequest
	}
	if c.Keep == nil {
		k.config.Keep = func(status int) bool { return status < 500 }
	}
	_ = records.Scope(rt, "known") // so that a Sweeper knows the kind
	return k, nil
}

// isToken reports whether name can be the name of a header.
func isToken(name string) bool {
	return name != "" && strings.IndexFunc(name, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", c))
	}) < 0
}

// hash is the SHA-256 of parts, each with its length before it, so that no two lists of parts are the same text.
func hash(parts ...string) string {
	h := sha256.New()
	var length [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(p)))
		h.Write(length[:])
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// attempt is one execution under a key.
type attempt struct {
	keys  *Keys
	scope pawl.Scope[record]
	lease *pawl.Lease
	print string
	end   context.CancelCauseFunc // of the context that the lease was acquired with
}

// answered is the error inside of a commit that finds a response.
type answered struct{ record record }

func (e *answered) Error() string   { return "idempotency: there is a response" }
func (e *answered) Code() string    { return codeAnswered }
func (e *answered) HTTPStatus() int { return 200 }

// reused is the type of errReused.
type reused struct{}

func (reused) Error() string   { return "idempotency: another payload" }
func (reused) Code() string    { return codeReused }
func (reused) HTTPStatus() int { return 422 }

var errReused error = reused{}

// open tells what of r keeps the key from being used for print: *answered or errReused.
func (r *record) open(print string) error {
	switch {
	case r.Print != "" && r.Print != print:
		return errReused
	case r.Done:
		return &answered{*r}
	}
	return nil
}

// claim makes the caller the one that executes, or returns what stands in its way: *answered, errReused, *pawl.HeldError, or an error of the store.
// A record that is done is found by a read, so that a replay is not a failed mutation.
func (k *Keys) claim(ctx context.Context, id, print string) (*attempt, error) {
	scope := records.Scope(k.rt, id)
	if err := look(ctx, scope, print); err != nil {
		return nil, err
	}
	a, err := k.acquire(ctx, scope, print, 0)
	var held *pawl.HeldError
	if !errors.As(err, &held) || k.config.Wait == 0 {
		return a, err
	}
	a, err = k.acquire(ctx, scope, print, k.config.Wait)
	if errors.Is(err, errWaited) || errors.As(err, &held) {
		return nil, either(look(ctx, scope, print), held)
	}
	return a, err
}

// either returns the first error that is one.
func either(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// look is open for the record as it is now.
func look(ctx context.Context, scope pawl.Scope[record], print string) error {
	now, err := scope.Snapshot(ctx)
	if err != nil || !now.Exists() {
		return err
	}
	return now.ReadOnly().open(print)
}

// errWaited is why the context of an acquisition ended that took too long, or is not needed any more.
var errWaited = errors.New("idempotency: waited")

// acquire takes the lease of a record that is absent or free; with a limit it waits for it. The lease does not end with ctx: a handler whose client has left
// still has an answer to store.
func (k *Keys) acquire(ctx context.Context, scope pawl.Scope[record], print string, limit time.Duration) (*attempt, error) {
	inner, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stay := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	bind := pawl.Atomic(func(_ context.Context, r *record) error {
		if err := r.open(print); err != nil {
			return err
		}
		*r = record{Print: print}
		return nil
	})
	opts := []pawl.LeaseOption{pawl.LeaseFor(k.config.Lease), pawl.Applying(bind, pawl.WithTTL(k.config.TTL))}
	anew := pawl.Applying(bind, pawl.WithTTL(k.config.TTL), pawl.IfAbsent())
	unwatch := func() {}
	if limit > 0 {
		opts = append(opts, pawl.Wait())
		unwatch = awaitDone(inner, scope, limit, func() { end(errWaited) })
	}
	lease, err := scope.Acquire(inner, opts...)
	for errors.Is(err, pawl.ErrDeleted) { // by somebody who wants the key forgotten
		if lease, err = scope.Acquire(inner, append(opts, anew)...); errors.Is(err, pawl.ErrExists) { // at the same moment
			lease, err = scope.Acquire(inner, opts...)
		}
	}
	unwatch()
	if !stay() { // the client leaves at the same moment
		end(context.Cause(ctx))
	}
	if err == nil && inner.Err() != nil {
		_ = lease.Release(context.WithoutCancel(ctx)) // else it runs out
		err = &pawl.CanceledError{Scope: scope.Key(), Phase: pawl.PhaseQueued, Cause: context.Cause(inner)}
	}
	if err != nil {
		end(nil)
		return nil, err
	}
	return &attempt{keys: k, scope: scope, lease: lease, print: print, end: end}, nil
}

// awaitDone calls enough when the record is done or the limit is over, until stop, which waits for all that it started.
func awaitDone(ctx context.Context, scope pawl.Scope[record], limit time.Duration, enough func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over := time.AfterFunc(limit, enough)
	changes, watched := scope.Changes(ctx), make(chan struct{})
	go func() {
		defer close(watched)
		for c := range changes {
			if r := c.ReadOnly(); r != nil && r.Done {
				enough()
			}
		}
	}()
	return func() {
		if !over.Stop() {
			enough() // at the same moment
		}
		cancel()
		<-watched
	}
}

// run runs fn under the lease and gives that back. Fn's context ends with ctx, too.
func (a *attempt) run(ctx context.Context, fn func(ctx context.Context)) {
	defer a.end(nil)
	_ = a.lease.Run(func(held context.Context, _ *pawl.Lease) error {
		inner, cancel := context.WithCancelCause(held)
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
		if deadline, ok := ctx.Deadline(); ok {
			var end context.CancelFunc
			inner, end = context.WithDeadline(inner, deadline)
			defer end()
		}
		fn(inner)
		return nil
	})
}

// settle stores r as what came of the attempt. It returns *answered if there is something already, *pawl.LeaseLostError if the attempt is somebody else's by now,
// *pawl.LimitError if r is too large, and errors of the store.
func (a *attempt) settle(r record) error {
	r.Print, r.Done = a.print, true
	_, err := a.scope.AtomicState(a.lease.Context(), func(_ context.Context, now *record) error {
		if err := now.open(a.print); err != nil {
			return err
		}
		*now = r
		return nil
	}, pawl.WithTTL(a.keys.config.TTL))
	return err
}

// answer returns what a transaction of the handler's own has stored, nil if nothing.
func (a *attempt) answer() (*record, error) {
	if seen, ok := a.scope.LastSeen(); ok && seen.Exists() && seen.ReadOnly().Done && seen.ReadOnly().Print == a.print {
		return seen.ReadOnly(), nil
	}
	now, err := a.scope.Snapshot(context.WithoutCancel(a.lease.Context()))
	if err != nil || !now.Exists() || !now.ReadOnly().Done {
		return nil, err
	}
	if now.ReadOnly().Print != a.print { // the key was forgotten, and used again
		return nil, errReused
	}
	return now.ReadOnly(), nil
}

// lost tells whether, and why, the lease is lost, as far as this process knows.
func (a *attempt) lost() error { return context.Cause(a.lease.Context()) }
