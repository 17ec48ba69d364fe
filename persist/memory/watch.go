package memory

import (
	"context"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// Watch calls wake for each change as persist.Watcher describes. A slow wake delays no writer and
// no other watcher: hints for up to 1024 keys are kept for it, then the zero hint replaces them. It
// returns ctx's error, and persist.ErrClosed after Close.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	return s.hints.Watch(ctx, wake)
}

// hint sends the hint for a changed record to the watchers, if the change calls for one.
func (s *Store) hint(before, after persist.Record) {
	if hint, ok := hints.Of(before, after); ok {
		s.hints.Send(hint)
	}
}
