package fs

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"
	"github.com/stretchr/testify/require"
)

// TestShare: those who come soon have the lock together; who comes later waits until all have left, and
// gets it anew, behind whoever waits at the gate.
//
// Proves STORE-3.
func TestShare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	synctest.Test(t, func(t *testing.T) {
		var s share
		opened := 0
		open := func() (free func(), err error) {
			opened++
			file := flock.New(path)
			_, err = file.TryRLock()
			return func() { require.NoError(t, file.Unlock()) }, err
		}
		others := flock.New(path)
		isFree := func() bool {
			free, err := others.TryLock()
			require.NoError(t, err)
			if free {
				require.NoError(t, others.Unlock())
			}
			return free
		}
		first, err := s.join(t.Context(), open)
		require.NoError(t, err)
		second, err := s.join(t.Context(), open)
		require.NoError(t, err)
		require.Equal(t, 1, opened)

		time.Sleep(tenure)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = s.join(ended, open)
		require.ErrorIs(t, err, context.Canceled, "it would have to wait")
		third := make(chan func(), 1)
		go func() {
			leave, err := s.join(t.Context(), open)
			require.NoError(t, err)
			third <- leave
		}()
		synctest.Wait()
		require.Empty(t, third)
		first()
		synctest.Wait()
		require.Empty(t, third, "one has it still")
		require.False(t, isFree())
		second()
		leave := <-third
		require.Equal(t, 2, opened)
		require.False(t, isFree())
		leave()
		require.True(t, isFree())

		failure := errors.New("no")
		_, err = s.join(t.Context(), func() (func(), error) { return nil, failure })
		require.ErrorIs(t, err, failure)
		leave, err = s.join(t.Context(), open)
		require.NoError(t, err)
		leave()
	})
}
