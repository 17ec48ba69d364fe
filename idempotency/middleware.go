package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/pawl-go/pawl"
)

// call is a request on its way through the middleware, for Respond.
type call struct {
	keys    *Keys
	attempt *attempt               // nil: the request has no key
	rec     *recorder              // what the handler writes to
	ready   atomic.Pointer[record] // what Respond was given last; nil: nothing. Its caller may be a goroutine that outlives the handler, as under http.TimeoutHandler
}

type callKey struct{}

// Middleware runs next once per Idempotency-Key, principal and route, and replays its response, as the package comment tells. What the middleware
// answers itself is of type application/problem+json, with a code: IDEMPOTENCY_KEY_MISSING and IDEMPOTENCY_KEY_INVALID (400), IDEMPOTENCY_NO_PRINCIPAL (401),
// IDEMPOTENCY_IN_PROGRESS (409), IDEMPOTENCY_KEY_REUSED (422), IDEMPOTENCY_REQUEST_BODY (400, or 413 where it is too large), IDEMPOTENCY_OUTCOME_UNKNOWN (503), or that
// of an error of the store, in which case next did not run.
//
// Requests with a safe method pass, and so do those without a key unless Config.Require is set. The request's body is read before next runs, and next can read it again.
//
// The response is kept back until it is stored. One that is flushed or hijacked, has trailers, or is larger than Config.MaxBody, is passed on as it is written, not stored, and its
// key is free again. Next's context ends when the client leaves, and when the lease of the key is lost: then somebody else may be
// running next, nothing that is committed with this context lands any more, and the client gets IDEMPOTENCY_OUTCOME_UNKNOWN. So it does when the response cannot be
// stored. A panic of next frees the key and goes on.
//
// Middleware panics if Config.Principal is nil. Inside itself it does nothing, nor inside that of other Keys for the same key, principal and route.
func (k *Keys) Middleware(next http.Handler) http.Handler {
	if k.config.Principal == nil {
		panic("idempotency: Middleware needs Config.Principal: without it, one client's keys would be another's")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(callKey{}).(*call); isSafe(r.Method) || ok && c.keys == k {
			next.ServeHTTP(w, r)
			return
		}
		key, err := keyOf(r.Header)
		switch {
		case err != nil:
			(&problem{status: http.StatusBadRequest, code: codeInvalid, detail: "Header " + Header + ": " + err.Error() + "."}).send(w)
			return
		case key == "" && k.config.Require:
			(&problem{status: http.StatusBadRequest, code: codeMissing, detail: "Header " + Header + " is missing."}).send(w)
			return
		case key == "":
			k.pass(w, r, next)
			return
		}
		in, p := k.read(w, r, key)
		if p != nil {
			p.send(w)
			return
		}
		if c, ok := r.Context().Value(callKey{}).(*call); ok && c.attempt != nil && c.attempt.scope.Key().ID == in.id {
			next.ServeHTTP(w, in.with(r)) // other Keys hold the same record
			return
		}
		a, err := k.claim(r.Context(), in.id, in.print)
		if known, ok := errors.AsType[*answered](err); ok {
			replay(w, &known.record, true)
			return
		}
		if err != nil {
			problemOf(err).send(w)
			return
		}
		c := &call{keys: k, attempt: a, rec: newRecorder(w, k.config.MaxBody)}
		var later func()
		a.run(r.Context(), func(ctx context.Context) {
			mine := in.with(r.WithContext(context.WithValue(ctx, callKey{}, c)))
			defer func() { r.MultipartForm = mine.MultipartForm }() // the server removes its files
			next.ServeHTTP(c.rec, mine)
			later = c.finish(r.Context())
		})
		later()
	})
}

// pass runs next for a request without a key. Respond works there, too, only that nothing is stored.
func (k *Keys) pass(w http.ResponseWriter, r *http.Request, next http.Handler) {
	c := &call{keys: k, rec: &recorder{ResponseWriter: w}}
	c.rec.direct.Store(true)
	next.ServeHTTP(c.rec, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
	if c.ready.Load() != nil && c.rec.status < 200 {
		replay(w, c.ready.Load(), false)
	}
}

// statusLeft is what pawl.HTTPStatus makes of work that was given up because its client left.
const statusLeft = 499

var unknown = &problem{status: http.StatusServiceUnavailable, code: codeUnknown, detail: "The request may have been processed. Repeat it with the same key.", later: true}

// finish stores what the handler answered, and sends it. What is not stored is sent later, when the lease is given back: whoever repeats the request then finds the key free.
func (c *call) finish(ctx context.Context) (later func()) {
	a, rec := c.attempt, c.rec
	sent := func() {}
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	if rec.direct.Load() {
		return sent // streamed
	}
	if c.ready.Load() != nil { // a transaction of the handler's may have stored it
		stored, err := a.answer()
		switch {
		case err != nil:
			return func() { rec.refuse(unknown) }
		case stored != nil:
			rec.replay(stored, false)
			return sent
		}
	}
	response := rec.response(c.keys.headers)
	err, kept := a.lost(), c.keys.config.Keep(response.Status)
	if !rec.storable() {
		kept = false
	} else if response.Status == statusLeft && ctx.Err() != nil {
		kept = false // it tells nobody anything, and the repeat nothing true
	}
	if err == nil && kept {
		err = a.settle(response)
	}
	if known, ok := errors.AsType[*answered](err); ok {
		rec.replay(&known.record, false)
		return sent
	}
	_, tooLarge := errors.AsType[*pawl.LimitError](err)
	switch {
	case err != nil && !tooLarge:
		return func() { rec.refuse(unknown) }
	case tooLarge || !kept:
		return rec.send
	}
	rec.send()
	return sent
}

// Respond makes the response to the request of ctx a part of tx: the handler's writes and the answer to every repeat are one commit, after which no
// crash repeats anything. Ctx is that of the transaction's function, or the request's. Once tx is committed the middleware sends this response, whatever the handler writes; if tx
// fails, the handler answers as ever. Header is stored as given, whatever Config allows; body is sent as it is if it is a []byte or a string, else as JSON.
// For a request without a key nothing is stored, and this response is sent if the handler writes none.
//
// It returns ErrNoRequest outside Middleware, ErrResponded when there is a response already, *pawl.LimitError for a body larger than Config.MaxBody, *pawl.ArgumentError for a status that is
// not one of a final response, an error of the JSON encoding, and those of the verbs. All of them should end the transaction. That the lease is lost shows when tx commits: *pawl.LeaseLostError.
func Respond(ctx context.Context, tx *pawl.Tx, status int, header http.Header, body any) error {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return ErrNoRequest
	}
	if status < 200 || status > 599 {
		return &pawl.ArgumentError{Argument: "status", Reason: "not one of a final response"}
	}
	r := record{Done: true, Status: status, Header: storedHeader(header)}
	switch b := body.(type) {
	case nil:
	case []byte:
		r.Body = b
	case string:
		r.Body = []byte(b)
	default:
		var err error
		if r.Body, err = json.Marshal(body); err != nil {
			return err
		}
		if _, ok := r.Header["Content-Type"]; !ok {
			r.Header["Content-Type"] = [][]byte{[]byte("application/json")}
		}
	}
	if len(r.Body) > 0 && r.Header["Content-Type"] == nil {
		r.Header["Content-Type"] = [][]byte{[]byte(http.DetectContentType(r.Body))}
	}
	a := c.attempt
	if a == nil {
		c.ready.Store(&r)
		return nil
	}
	if c.rec.direct.Load() {
		return ErrResponded
	}
	if limit := c.keys.config.MaxBody; len(r.Body) > limit {
		return &pawl.LimitError{Scope: a.scope.Key(), What: "document", Limit: limit, Got: len(r.Body)}
	}
	r.Print = a.print
	_, err := a.scope.In(tx).AtomicState(ctx, func(_ context.Context, now *record) error {
		if now.Done {
			return ErrResponded
		}
		*now = r
		return nil
	}, pawl.WithTTL(c.keys.config.TTL))
	if err == nil {
		c.ready.Store(&r)
		c.rec.kept.Store(true)
	}
	return err
}
