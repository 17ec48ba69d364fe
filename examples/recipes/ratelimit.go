package recipes

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/pawl-go/pawl"
)

// Meter is the state of one rate limit, such as that of a user.
type Meter struct {
	Full time.Time `json:"full"` // when the whole burst is available again
}

// Meters is persisted, so all processes share one limit. With InMemory: true, each process has its
// own limit, and a request costs no commit.
var Meters = pawl.Kind[Meter]{Name: "meter", TTL: time.Hour}

// Limit allows one call per Every on average, and Burst calls at once.
type Limit struct {
	Every time.Duration
	Burst int
}

// Allow counts a call. It returns *LimitedError if the call exceeds the limit, and the errors of
// Pawl. The clock is that of this process.
func (l Limit) Allow(ctx context.Context, meter pawl.Scope[Meter]) error {
	_, err := meter.AtomicState(ctx, func(_ context.Context, m *Meter) error {
		now := time.Now()
		full := m.Full
		if full.Before(now) {
			full = now
		}
		full = full.Add(l.Every)
		if wait := full.Sub(now) - time.Duration(l.Burst)*l.Every; wait > 0 {
			return &LimitedError{wait} // nothing is written
		}
		m.Full = full
		return nil
	})
	return err
}

// LimitedError is returned for a call beyond the limit. pawl.Code and pawl.HTTPStatus know it.
type LimitedError struct{ RetryAfter time.Duration }

func (e *LimitedError) Error() string   { return fmt.Sprintf("rate limit: retry after %v", e.RetryAfter) }
func (e *LimitedError) Code() string    { return "RATE_LIMITED" }
func (e *LimitedError) HTTPStatus() int { return http.StatusTooManyRequests }
