//go:build !linux

package fs

import (
	"context"
	"errors"

	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// notifier is not supported here; the store polls.
type notifier struct{}

func newNotifier(string) (*notifier, error) { return nil, errors.ErrUnsupported }

func (*notifier) run(context.Context, *hints.Hub) error { return errors.ErrUnsupported }
