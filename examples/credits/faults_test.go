package credits

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// faults is a store in front of another one. A test queues faults, and each commit takes the next.
// It hides the optional methods of the store behind it, so watching works by polling.
type faults struct {
	persist.Store

	mu    sync.Mutex // protects the rest
	queue []fault
	down  bool // all reads and commits fail
}

// fault handles one commit. It calls commit to reach the store, and returns the answer for Pawl.
type fault func(commit func() (time.Time, error)) (time.Time, error)

// add queues faults for the next commits.
func (f *faults) add(next ...fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = append(f.queue, next...)
}

// setDown starts or ends an outage.
func (f *faults) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

// errDown promises that nothing was written. Without persist.ErrNotApplied, the outcome would be
// unknown to Pawl.
var errDown = fmt.Errorf("%w: %w: the test took the store down", persist.ErrUnavailable, persist.ErrNotApplied)

func (f *faults) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	f.mu.Lock()
	down := f.down
	f.mu.Unlock()
	if down {
		return persist.Record{}, errDown
	}
	return f.Store.Load(ctx, key)
}

func (f *faults) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	commit := func() (time.Time, error) { return f.Store.Commit(ctx, c) }
	f.mu.Lock()
	next := fault(func(commit func() (time.Time, error)) (time.Time, error) { return commit() })
	switch {
	case f.down:
		next = outage
	case len(f.queue) > 0:
		next, f.queue = f.queue[0], f.queue[1:]
	}
	f.mu.Unlock()
	return next(commit)
}

// outage refuses the commit. The call returns *pawl.UnavailableError.
func outage(func() (time.Time, error)) (time.Time, error) { return time.Time{}, errDown }

// conflict lets rival write first, so that the commit loses. rival must use the store behind the
// faults, as another process would.
func conflict(rival func() error) fault {
	return func(commit func() (time.Time, error)) (time.Time, error) {
		if err := rival(); err != nil {
			return time.Time{}, err
		}
		return commit()
	}
}

var errLost = errors.New("connection reset")

// lostAnswer commits, and loses the answer. Pawl finds out that the commit landed.
func lostAnswer(commit func() (time.Time, error)) (time.Time, error) {
	if at, err := commit(); err != nil {
		return at, err
	}
	return time.Time{}, errLost
}

// lostRequest loses the commit before it reaches the store. Pawl cannot tell it from lostAnswer, and
// finds out that the commit did not land.
func lostRequest(func() (time.Time, error)) (time.Time, error) { return time.Time{}, errLost }
