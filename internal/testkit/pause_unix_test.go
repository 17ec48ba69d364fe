//go:build unix

package testkit_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
)

func TestPause(t *testing.T) {
	p := testkit.Start(t, "echo")
	tries := 0
	p.Pause(func(context.Context) error {
		tries++
		if tries < 3 {
			return errors.New("locked")
		}
		return nil
	})
	require.Equal(t, 3, tries)
	p.Resume()
	testkit.Ready(p)
	p.Wait()
}
