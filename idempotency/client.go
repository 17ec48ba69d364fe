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

// NewKey returns a random key of 26 characters with at least 128 bits of randomness. Make one per
// intent, before the first try, and keep it until there is a response; in the database, if the
// intent is stored there.
func NewKey() string { return rand.Text() }

// DefaultRetry is the default of Transport.Retry.
var DefaultRetry = pawl.Retry{Attempts: 6, First: 200 * time.Millisecond, Max: 10 * time.Second, Within: time.Minute}

// Transport is an http.RoundTripper for clients. It gives every request with an unsafe method a
// key, unless it has one, and repeats it under that key until there is a response.
//
//	client := &http.Client{Transport: &idempotency.Transport{}}
//
// It repeats after a connection error, and after 408, 409 with Retry-After, 425, 429 and every 5xx
// except 501 and 505. It waits as Retry-After says, or else with full jitter. Requests with a safe
// method are repeated without a key. A request whose body cannot be read again (GetBody is nil) is
// sent once.
//
// Use it for servers that understand the key: for others, a repeat is a second request.
type Transport struct {
	// Base sends the requests. nil: http.DefaultTransport.
	Base http.RoundTripper
	// Retry bounds the tries. A zero field takes its value from DefaultRetry.
	Retry pawl.Retry
}

// CloseIdleConnections closes the idle connections of Base, if it has such a method.
// http.Client.CloseIdleConnections calls it.
func (t *Transport) CloseIdleConnections() {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	if c, ok := base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper. When the tries are used up it returns the last response,
// or the last error of Base.
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
		wait, again := retryAfter(response, err, retry.Delay(n))
		if !again || n >= retry.Attempts || ctx.Err() != nil || time.Now().Add(wait).After(until) {
			return response, err
		}
		if r.GetBody != nil {
			body, bodyErr := r.GetBody()
			if bodyErr != nil {
				return response, err
			}
			r = r.Clone(ctx) // Base may still use the last one
			r.Body = body
		}
		if response != nil {
			discard(response.Body)
		}
		if !pause(ctx, wait) {
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return nil, fmt.Errorf("idempotency: canceled after %d tries: %w", n, context.Cause(ctx))
		}
	}
}

// discard reads the rest of a response body, so that its connection can be reused. It gives up
// after 100 ms, when a new connection is cheaper.
func discard(body io.ReadCloser) {
	timer := time.AfterFunc(100*time.Millisecond, func() { _ = body.Close() })
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 1<<16))
	timer.Stop()
	_ = body.Close()
}

// maxRetryAfter bounds a Retry-After, so that adding it to a time does not overflow.
const maxRetryAfter = 100 * 365 * 24 * time.Hour

// retryAfter reports whether to try again, and how long to wait before it.
func retryAfter(response *http.Response, err error, jitter time.Duration) (time.Duration, bool) {
	if err != nil {
		return jitter, !errors.Is(err, context.Canceled)
	}
	asked := response.Header.Get("Retry-After")
	status := response.StatusCode
	again := slices.Contains([]int{408, 425, 429}, status) || status == 409 && asked != "" || status >= 500 && status != 501 && status != 505
	if seconds, err := strconv.ParseUint(asked, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second)))*time.Second + jitter, again
	}
	if at, err := http.ParseTime(asked); err == nil {
		return min(max(0, time.Until(at)), maxRetryAfter) + jitter, again
	}
	return jitter, again
}

// pause waits for d. It reports false if ctx ended first.
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
