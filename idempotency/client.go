package idempotency

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/pawl-go/pawl"
)

// NewKey returns a key that nobody else has: 26 characters, 128 bits of chance. Make one per intent, before the first try, and keep it until
// there is an answer, in the database if the intent is there.
func NewKey() string { return rand.Text() }

// DefaultRetry is the budget of Transport.
var DefaultRetry = pawl.Retry{Attempts: 6, First: 200 * time.Millisecond, Max: 10 * time.Second, Within: time.Minute}

// Transport is a client's side: an http.RoundTripper that gives every request of an unsafe method a key, unless it has one, and repeats it under that key until there
// is an answer. It repeats after an error of the connection, and after 408, 409 with Retry-After, 425, 429 and every 5xx but 501 and 505, waiting as Retry-After says, or with
// full jitter. Use it for servers that understand the key: with others, a repeat is a second request. Requests of safe methods are repeated likewise, without a key.
//
//	client := &http.Client{Transport: &idempotency.Transport{}}
//
// A request with a body that cannot be read again (GetBody is nil) is sent once.
type Transport struct {
	Base  http.RoundTripper // nil: http.DefaultTransport
	Retry pawl.Retry        // zero fields: DefaultRetry's
}

// CloseIdleConnections closes those of Base, if it can: http.Client.CloseIdleConnections asks for it.
func (t *Transport) CloseIdleConnections() {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	if c, ok := base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip makes Transport an http.RoundTripper. When its budget is spent it returns the last response, or the last error of Base.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base, retry := t.Base, t.Retry.Or(DefaultRetry)
	if base == nil {
		base = http.DefaultTransport
	}
	ctx, until := r.Context(), time.Now().Add(retry.Within)
	r = r.Clone(ctx)
	if !isSafe(r.Method) && r.Header.Get(Header) == "" {
		r.Header.Set(Header, strconv.Quote(NewKey()))
	}
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		retry.Attempts = 1
	}
	for n := 1; ; n++ {
		response, err := base.RoundTrip(r)
		wait, again := after(response, err, retry.Delay(n))
		if !again || n >= retry.Attempts || ctx.Err() != nil || time.Now().Add(wait).After(until) {
			return response, err
		}
		if r.GetBody != nil {
			body, bodyErr := r.GetBody()
			if bodyErr != nil {
				return response, err
			}
			r = r.Clone(ctx) // the last one may still be in use
			r.Body = body
		}
		if response != nil {
			drain(response.Body)
		}
		if !pause(ctx, wait) {
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return nil, fmt.Errorf("idempotency: gave up after %d tries: %w", n, context.Cause(ctx))
		}
	}
}

// drain reads what is left of an answer, so that its connection can be used again, unless that takes longer than a new connection would.
func drain(body io.ReadCloser) {
	enough := time.AfterFunc(100*time.Millisecond, func() { _ = body.Close() })
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 1<<16))
	enough.Stop()
	_ = body.Close()
}

// never is longer than anybody waits, and short enough to be added to.
const never = 100 * 365 * 24 * time.Hour

// after tells whether an answer is worth another try, and how long to wait before it.
func after(response *http.Response, err error, jitter time.Duration) (time.Duration, bool) {
	if err != nil {
		return jitter, !errors.Is(err, context.Canceled)
	}
	asked := response.Header.Get("Retry-After")
	status := response.StatusCode
	again := slices.Contains([]int{408, 425, 429}, status) || status == 409 && asked != "" || status >= 500 && status != 501 && status != 505
	if seconds, err := strconv.ParseUint(asked, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(never/time.Second)))*time.Second + jitter, again
	}
	if at, err := http.ParseTime(asked); err == nil {
		return min(max(0, time.Until(at)), never) + jitter, again
	}
	return jitter, again
}

// pause waits, and reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
