//go:build !linux

package fs

import (
	"context"
	"errors"

	"github.com/pawl-go/pawl/persist/internal/hints"
)

// notifier does not exist here.
type notifier struct{}

func newNotifier(string) (*notifier, error) { return nil, errors.ErrUnsupported }

func (*notifier) run(context.Context, *hints.Subscription) error { return errors.ErrUnsupported }
