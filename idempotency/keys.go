package idempotency

import (
	"cmp"
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

// The states of a record:
//
//	absent ──claim──► held ──store──► done ──TTL──► absent
//	                  │  ▲
//	     error, 5xx,  │  │ claim, with the same payload
//	  panic, crash:   ▼  │
//	                  free
//
// A claim takes the lease of the record and binds the key to its payload in the same commit.
// Storing writes the response; the commit tests the lease's token. Releasing the lease frees the
// key. A crash frees it too, once the lease has expired. Free and held are the same document; only
// the lease differs. Done is final, also while the lease is held.
//
// Races, and what decides each:
//   - Two first requests at the same instant: the claim is a version-checked write. The loser finds
//     the lease held.
//   - A repeat arrives after the response was stored and before the lease is released, or the
//     process dies in between: claim reads the record before it asks for the lease.
//   - The response is stored between this read and the claim: the claim tests the record inside its
//     commit and fails with *answered.
//   - A handler pauses longer than its lease, and another runs meanwhile: the store refuses its
//     token, in store and in Respond. Its response is not sent; its client is told that the outcome
//     is unknown.
//   - The client leaves: the handler's context ends, the lease does not. The handler's response is
//     stored for the repeat.
//   - A transaction with Respond is in doubt when the handler returns: the record is read. A commit
//     that lands later either lands before the release, and repeats get it, or is refused.
//   - A repeat waits: for the lease, which a failure frees, and for the record, which is done
//     before the lease is released.
//   - The record expires while a repeat reads it: a held record does not expire. A free or done
//     record is either still found, or the repeat is a first request.

// Defaults of Config.
const (
	DefaultTTL        = 24 * time.Hour
	DefaultMaxBody    = 512 << 10
	DefaultMaxRequest = 1 << 20
)

// MaxKey is the largest length of a key in characters.
const MaxKey = 255

// MaxTTL is the largest Config.TTL: a year. Every key expires.
const MaxTTL = 365 * 24 * time.Hour

// Config configures Keys. Its zero value works for Do and DoTx.
type Config struct {
	// Principal returns the owner of the keys of a request: a user or a tenant, never a value that
	// a client can choose freely. A request with a key and an empty principal gets 401. Middleware
	// requires it.
	Principal func(*http.Request) string
	// Route returns the operation that a key is used for. The default is the pattern of
	// http.ServeMux if the middleware is inside one, else method and path.
	Route func(*http.Request) string
	// Require answers 400 to requests without a key, unless their method is safe.
	Require bool
	// Wait is how long a repeat waits for the first response before it gets 409, or from Do
	// *pawl.HeldError. DoTx takes no lease, so it has nothing to wait for. 0: a repeat does not
	// wait.
	Wait time.Duration
	// Keep reports whether a response of this status is stored. The default is every status below
	// 500. A response that is not stored frees the key, and so does a 499 after the client has
	// left.
	Keep func(status int) bool
	// Headers names response headers to store in addition to Content-Type, Content-Encoding,
	// Content-Language and Location.
	Headers []string
	// TTL is how long a response is stored, at most MaxTTL, and at least as long as the lease of its
	// key is live. 0: DefaultTTL.
	TTL time.Duration
	// Lease is how long a crash blocks its key. 0: pawl.DefaultLease.
	Lease time.Duration
	// MaxBody bounds a stored response in bytes. A larger one is passed on and frees the key.
	// 0: DefaultMaxBody.
	MaxBody int
	// MaxRequest bounds a request with a key in bytes; it is read before the handler runs.
	// 0: DefaultMaxRequest.
	MaxRequest int64
}

// Keys stores which keys were used, and the responses. It is safe for concurrent use.
type Keys struct {
	rt      *pawl.Runtime
	config  Config
	headers []string // to store, in canonical form
}

// record is the document of a key.
type record struct {
	// Fingerprint is the hash of the payload that the key is bound to.
	Fingerprint string `json:"print"`
	// Done says that the record holds a response or a result.
	Done   bool `json:"done,omitempty"`
	Status int  `json:"status,omitempty"`
	// Header holds bytes, because a header need not be valid UTF-8.
	Header map[string][][]byte `json:"header,omitempty"`
	Body   []byte              `json:"body,omitempty"`
	// Failed is the error of a run of Do or DoTx; nil: it succeeded.
	Failed *StoredError `json:"failed,omitempty"`
}

// Kind is the name of the kind of the records.
const Kind = "idempotency"

var records = pawl.Kind[record]{Name: Kind}

// framing lists headers that describe one transmission of a response; they are never stored.
var framing = []string{"Connection", "Content-Length", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// New returns Keys on rt's store. It returns *pawl.ArgumentError for a nil runtime, a negative
// field, a TTL above MaxTTL, and a header that cannot be replayed.
func New(rt *pawl.Runtime, c Config) (*Keys, error) {
	if rt == nil {
		return nil, &pawl.ArgumentError{Argument: "runtime", Reason: "nil"}
	}
	if c.TTL < 0 || c.Lease < 0 || c.Wait < 0 || c.MaxBody < 0 || c.MaxRequest < 0 {
		return nil, &pawl.ArgumentError{Argument: "Config", Reason: "negative field"}
	}
	if c.TTL > MaxTTL {
		return nil, &pawl.ArgumentError{Argument: "Config.TTL", Reason: fmt.Sprintf("must not exceed %v, got %v", MaxTTL, c.TTL)}
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
	_ = records.Scope(rt, "known") // registers the kind for a Sweeper
	return k, nil
}

// isToken reports whether name is a valid header name.
func isToken(name string) bool {
	return name != "" && strings.IndexFunc(name, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", c))
	}) < 0
}

// hash returns the SHA-256 of parts. Each part is preceded by its length, so that different lists
// of parts never hash the same bytes.
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

// recordID returns the id of a record. It starts with a hash of the principal, so that Erase finds the
// records of one.
func recordID(from, principal, operation, key string) string {
	return ownedBy(principal) + hash(from, principal, operation, key)[:32]
}

// ownedBy returns what the ids of a principal's records start with.
func ownedBy(principal string) string { return hash(principal)[:32] + "." }

// IDPrefix returns what the ids of the records of a principal start with, for package erase.
func IDPrefix(principal string) string { return ownedBy(principal) }

// Erase deletes all records of a principal, of requests and of Do and DoTx, and returns their number.
// Its keys are then new. A request or function in progress loses its lease: its response is not
// stored, and its commits are refused. A DoTx in progress has no lease, and may store its record after
// Erase: stop the writers first, or run Erase again. Erase can be stopped at any time and run again.
//
// It returns the number also with an error: *pawl.ArgumentError for an empty principal, and the errors
// of pawl.Kind.DeletePrefix.
func (k *Keys) Erase(ctx context.Context, principal string) (erased int, err error) {
	if principal == "" {
		return 0, &pawl.ArgumentError{Argument: "principal", Reason: "empty"}
	}
	return records.DeletePrefix(ctx, k.rt, ownedBy(principal))
}

// attempt is one execution under a key.
type attempt struct {
	keys        *Keys
	scope       pawl.Scope[record]
	lease       *pawl.Lease
	fingerprint string
	end         context.CancelCauseFunc // ends the context that the lease was acquired with
}

// claimable returns nil if a request with this fingerprint may run under the key. It returns
// *answered for a record that is done, and errReused for another fingerprint.
func (r *record) claimable(fingerprint string) error {
	switch {
	case r.Fingerprint != "" && r.Fingerprint != fingerprint:
		return errReused
	case r.Done:
		return &answered{*r}
	}
	return nil
}

// claim takes the lease of a record and binds it to the fingerprint. It returns *answered,
// errReused, *pawl.HeldError, or an error of the store. A record that is done is found by a read,
// so that a replay is not a failed mutation.
func (k *Keys) claim(ctx context.Context, id, fingerprint string) (*attempt, error) {
	scope := records.Scope(k.rt, id)
	if err := readClaimable(ctx, scope, fingerprint); err != nil {
		return nil, err
	}
	a, err := k.acquire(ctx, scope, fingerprint, 0)
	held, isHeld := errors.AsType[*pawl.HeldError](err)
	if !isHeld || k.config.Wait == 0 {
		return a, err
	}
	a, err = k.acquire(ctx, scope, fingerprint, k.config.Wait)
	if errors.Is(err, errWaited) || errors.Is(err, pawl.ErrHeld) {
		return nil, cmp.Or[error](readClaimable(ctx, scope, fingerprint), held)
	}
	return a, err
}

// readClaimable reads the record and returns the error of claimable, or of the store.
func readClaimable(ctx context.Context, scope pawl.Scope[record], fingerprint string) error {
	now, err := scope.Snapshot(ctx)
	if err != nil || !now.Exists() {
		return err
	}
	return now.ReadOnly().claimable(fingerprint)
}

// acquire takes the lease of a record that is absent or free; with a limit it waits that long. The
// lease does not end with ctx: after the client has left, the handler's response is still stored.
func (k *Keys) acquire(ctx context.Context, scope pawl.Scope[record], fingerprint string, limit time.Duration) (*attempt, error) {
	inner, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stopForwarding := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	bind := pawl.Atomic(func(_ context.Context, r *record) error {
		if err := r.claimable(fingerprint); err != nil {
			return err
		}
		*r = record{Fingerprint: fingerprint}
		return nil
	})
	opts := []pawl.LeaseOption{pawl.LeaseFor(k.config.Lease), pawl.WithMutation(bind, pawl.WithTTL(k.config.TTL))}
	ifAbsent := pawl.WithMutation(bind, pawl.WithTTL(k.config.TTL), pawl.IfAbsent())
	stopWatching := func() {}
	if limit > 0 {
		opts = append(opts, pawl.WaitForLease())
		stopWatching = awaitDone(inner, scope, limit, func() { end(errWaited) })
	}
	lease, err := scope.Acquire(inner, opts...)
	for errors.Is(err, pawl.ErrDeleted) { // deleting a record makes its key new
		lease, err = scope.Acquire(inner, append(opts, ifAbsent)...)
		if errors.Is(err, pawl.ErrExists) { // another request created it meanwhile
			lease, err = scope.Acquire(inner, opts...)
		}
	}
	stopWatching()
	if !stopForwarding() { // the client left during the acquisition
		end(context.Cause(ctx))
	}
	if err == nil && inner.Err() != nil {
		_ = lease.Release(context.WithoutCancel(ctx)) // on an error it expires
		err = &pawl.CanceledError{Scope: scope.Key(), Phase: pawl.PhaseQueued, Cause: context.Cause(inner)}
	}
	if err != nil {
		end(nil)
		return nil, err
	}
	return &attempt{keys: k, scope: scope, lease: lease, fingerprint: fingerprint, end: end}, nil
}

// awaitDone calls over once the record is done or the limit has passed. The caller calls stop,
// which returns when nothing that awaitDone started is left.
func awaitDone(ctx context.Context, scope pawl.Scope[record], limit time.Duration, over func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(limit, over)
	changes, watched := scope.Changes(ctx), make(chan struct{})
	go func() {
		defer close(watched)
		for c := range changes {
			if r := c.ReadOnly(); r != nil && r.Done {
				over()
			}
		}
	}()
	return func() {
		if !timer.Stop() {
			over() // the timer's own call may not have returned yet
		}
		cancel()
		<-watched
	}
}

// run runs fn under the lease and then releases it. Fn's context ends with the lease and with ctx.
// It returns *pawl.LeaseLostError if the lease was lost before fn started: then fn does not run.
func (a *attempt) run(ctx context.Context, fn func(ctx context.Context)) error {
	defer a.end(nil)
	ran := false
	err := a.lease.Run(func(held context.Context, _ *pawl.Lease) error {
		ran = true
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
	if ran {
		return nil
	}
	return err
}

// store writes r as the outcome of the attempt, and gives the lease back with the same commit. It
// returns *answered if the record is already done, *pawl.LeaseLostError if the lease is lost,
// *pawl.LimitError if r is too large, and errors of the store.
func (a *attempt) store(r record) error {
	r.Fingerprint, r.Done = a.fingerprint, true
	err := pawl.Transact(a.lease.Context(), a.keys.rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := a.scope.In(tx).AtomicState(ctx, func(_ context.Context, now *record) error {
			if err := now.claimable(a.fingerprint); err != nil {
				return err
			}
			*now = r
			return nil
		}, pawl.WithTTL(a.keys.config.TTL))
		if err != nil {
			return err
		}
		return a.lease.ReleaseIn(tx)
	})
	if errors.Is(err, errReused) || errors.Is(err, pawl.ErrDeleted) { // erased, and perhaps used again
		return &pawl.LeaseLostError{Scope: a.scope.Key(), Token: a.lease.Token()}
	}
	return err
}

// stored returns the response that a transaction of the handler has stored; nil: none.
func (a *attempt) stored() (*record, error) {
	if seen, ok := a.scope.LastSeen(); ok && seen.Exists() {
		if r := seen.ReadOnly(); r.Done && r.Fingerprint == a.fingerprint {
			return r, nil
		}
	}
	now, err := a.scope.Snapshot(context.WithoutCancel(a.lease.Context()))
	if err != nil || !now.Exists() || !now.ReadOnly().Done {
		return nil, err
	}
	if now.ReadOnly().Fingerprint != a.fingerprint { // the record was deleted, and its key used again
		return nil, errReused
	}
	return now.ReadOnly(), nil
}

// lost returns why the lease is lost; nil: it is live, as far as this process knows.
func (a *attempt) lost() error { return context.Cause(a.lease.Context()) }
