package pawl_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// TestNonRetryable: the mark is found through wrapping, and hides nothing.
func TestNonRetryable(t *testing.T) {
	require.NoError(t, pawl.NonRetryable(nil))
	err := fmt.Errorf("around: %w", pawl.NonRetryable(pawl.ErrNotFound))
	require.True(t, pawl.IsNonRetryable(err))
	require.ErrorIs(t, err, pawl.ErrNotFound)
	require.Equal(t, "NOT_FOUND", pawl.Code(err))
	require.Equal(t, 404, pawl.HTTPStatus(err))
	require.Equal(t, pawl.ErrNotFound.Error(), errors.Unwrap(err).Error())
	require.False(t, pawl.IsNonRetryable(pawl.ErrNotFound))
	require.False(t, pawl.IsNonRetryable(nil))
}
