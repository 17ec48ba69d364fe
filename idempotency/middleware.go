package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/pawl-go/pawl"
)

// call is a request inside the middleware. Respond finds it in the context.
type call struct {
	keys    *Keys
	attempt *attempt  // nil: the request has no key
	rec     *recorder // the handler's ResponseWriter
	// ready is the last response passed to Respond; nil: none. Respond may be called by a goroutine
	// that outlives the handler, as under http.TimeoutHandler.
	ready atomic.Pointer[record]
}

type callKey struct{}

// Middleware runs next once per Idempotency-Key, principal and route, and replays its response, as
// the package comment says.
//
// Its own responses have type application/problem+json and a code: IDEMPOTENCY_KEY_MISSING and
// IDEMPOTENCY_KEY_INVALID (400), IDEMPOTENCY_NO_PRINCIPAL (401), IDEMPOTENCY_IN_PROGRESS (409),
// IDEMPOTENCY_KEY_REUSED (422), IDEMPOTENCY_REQUEST_BODY (400, or 413 for a body that is too large)
// and IDEMPOTENCY_OUTCOME_UNKNOWN (503). An error of the store before next runs is answered with
// the code of that error.
//
// Requests with a safe method are passed to next, and so are requests without a key unless
// Config.Require is set. The request's body is read before next runs, and next can read it again.
//
// The response is buffered until it is stored. A response that is flushed or hijacked, has
// trailers, or is larger than Config.MaxBody is sent as it is written and not stored; its key is
// free again.
//
// Next's context ends when the client leaves, and when the lease of the key is lost. After a lost
// lease next may be running elsewhere, commits with this context are refused, and the client gets
// IDEMPOTENCY_OUTCOME_UNKNOWN. The client gets it too when the response cannot be stored. A panic
// of next frees the key and is raised again.
//
// Middleware panics if Config.Principal is nil. A middleware inside another one passes the request
// on if the outer one handles the same key, principal and route.
func (k *Keys) Middleware(next http.Handler) http.Handler {
	if k.config.Principal == nil {
		panic("idempotency: Middleware requires Config.Principal")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isSafe(r.Method) {
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
			next.ServeHTTP(w, in.with(r)) // the outer middleware holds this record
			return
		}
		a, err := k.claim(r.Context(), in.id, in.fingerprint)
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
		err = a.run(r.Context(), func(ctx context.Context) {
			inner := in.with(r.WithContext(context.WithValue(ctx, callKey{}, c)))
			defer func() { r.MultipartForm = inner.MultipartForm }() // the server removes its files
			next.ServeHTTP(c.rec, inner)
			later = c.finish(r.Context())
		})
		if err != nil { // next did not run
			problemOf(err).send(w)
			return
		}
		later()
	})
}

// pass runs next for a request without a key. Respond works there too, but stores nothing.
func (k *Keys) pass(w http.ResponseWriter, r *http.Request, next http.Handler) {
	c := &call{keys: k, rec: &recorder{ResponseWriter: w}}
	c.rec.direct.Store(true)
	next.ServeHTTP(c.rec, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
	if c.ready.Load() != nil && c.rec.status < 200 {
		replay(w, c.ready.Load(), false)
	}
}

// statusLeft is the status of pawl.HTTPStatus for work that was canceled because the client left.
const statusLeft = 499

var unknown = &problem{status: http.StatusServiceUnavailable, code: codeUnknown, detail: "The request may have been processed. Repeat it with the same key.", later: true}

// finish stores the handler's response and sends it. The caller calls later after it has released
// the lease: a response that is not stored is sent then, so that a repeat finds the key free.
func (c *call) finish(ctx context.Context) (later func()) {
	a, rec := c.attempt, c.rec
	sent := func() {}
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	if rec.direct.Load() {
		return sent // streamed
	}
	if c.ready.Load() != nil { // a transaction of the handler may have stored it
		stored, err := a.stored()
		switch {
		case err != nil:
			return func() { rec.refuse(unknown) }
		case stored != nil:
			a.lease.Abandon() // no request asks for the lease of a record that is done
			rec.replay(stored, false)
			return sent
		}
	}
	response := rec.response(c.keys.headers)
	err, kept := a.lost(), c.keys.config.Keep(response.Status)
	if !rec.storable() {
		kept = false
	} else if response.Status == statusLeft && ctx.Err() != nil {
		kept = false // a repeat can still succeed
	}
	if err == nil && kept {
		err = a.store(response)
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

// Respond makes the response to the request of ctx a part of tx. The handler's writes and the
// response are one commit, so a crash repeats nothing. Ctx is the context of the transaction's
// function or of the request.
//
// Once tx is committed the middleware sends this response and ignores what the handler writes. If
// tx fails, the handler's own response is sent. All of header is stored, whatever Config.Headers
// says, except headers about one transmission, such as Content-Length. A []byte or string body is
// sent as it is, any other as JSON. For a request without a key nothing is stored, and this
// response is sent if the handler writes none.
//
// Respond returns ErrNoRequest outside Middleware, ErrResponded when there is a response already,
// *pawl.LimitError for a body larger than Config.MaxBody, *pawl.ArgumentError for a status outside
// 200 to 599, an error of the JSON encoding, and errors of the verbs. Each of them should end the
// transaction. After the lease has ended the commit of tx returns *pawl.LeaseLostError. The commit does
// not give the lease back: for package erase the record is held until the lease has run out.
func Respond(ctx context.Context, tx *pawl.Tx, status int, header http.Header, body any) error {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return ErrNoRequest
	}
	if status < 200 || status > 599 {
		return &pawl.ArgumentError{Argument: "status", Reason: fmt.Sprintf("%d is not between 200 and 599", status)}
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
	r.Fingerprint = a.fingerprint
	held := context.WithoutCancel(a.lease.Context()) // tests the lease, also if ctx is pawl.WithoutLeases
	_, err := a.scope.In(tx).AtomicState(held, func(_ context.Context, now *record) error {
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
