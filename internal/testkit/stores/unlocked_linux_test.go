package stores_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// Unlocked fails while another process holds a lock that a commit or a list has used, even if it is
// only a reader's.
func TestLocked(t *testing.T) {
	stores.Need(t, "fs")
	location := stores.FS.New(t)
	store := stores.OpenFor(t, location)
	_, err := store.Commit(t.Context(), put(1))
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(strings.TrimPrefix(location, "fs:"), "locks", "*"))
	require.NoError(t, err)
	tested, unlocked := 0, stores.Unlocked(store)
	for _, path := range append(files, filepath.Join(filepath.Dir(files[0]), "list")) {
		if strings.HasPrefix(filepath.Base(path), "meta") {
			continue // for opening and purging
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
		require.NoError(t, err)
		require.NoError(t, syscall.Flock(int(file.Fd()), syscall.LOCK_SH))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		require.Error(t, unlocked(ctx), path)
		cancel()
		require.NoError(t, file.Close())
		tested++
	}
	require.GreaterOrEqual(t, tested, 5, "the lock of the record, that of names and their gates, and that of lists")
	require.NoError(t, unlocked(t.Context()))
}
