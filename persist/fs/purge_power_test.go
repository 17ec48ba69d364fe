package fs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/disk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// revive creates the receipt again after its tombstone was purged, together with another record.
var revive = persist.Commit{ID: "child.9", Writes: []persist.Write{
	setTo(ann, 1, 70),
	{Key: receipt, Version: 3, Doc: []byte(`{"n":3}`)},
}}

func init() {
	for role, do := range map[string]func(*Store) (string, error){
		"purge once": func(s *Store) (string, error) {
			n, err := s.Purge(context.Background(), persist.Query{})
			return fmt.Sprint(n), err
		},
		"purge twice": func(s *Store) (string, error) {
			_, _ = s.Purge(context.Background(), persist.Query{}) // one of its system calls fails
			n, err := s.Purge(context.Background(), persist.Query{})
			return fmt.Sprint(n), err
		},
		"revive": func(s *Store) (string, error) {
			_, err := s.Commit(context.Background(), revive)
			return outcomeOf(err), err
		},
	} {
		testkit.Child(role, func() error {
			s, err := newStore(os.Getenv(childDir), Config{LockTimeout: defaultLockTimeout})
			if err != nil {
				return err
			}
			testkit.Begin()
			answer, err := do(s)
			testkit.Say("%s", answer)
			return err
		})
	}
}

// withTombstone returns a copy of seed with a receipt that was deleted at version 2.
func withTombstone(t testing.TB) string {
	t.Helper()
	dir := seed(t)
	s := openAt(t, dir, Config{})
	_, err := s.Commit(t.Context(), persist.Commit{ID: "seed.2", Writes: []persist.Write{setTo(receipt, 0, 1)}})
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), persist.Commit{ID: "seed.3", Writes: []persist.Write{{Key: receipt, Expected: 1, Version: 2, Deleted: true}}})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	return dir
}

// keepsVersion asserts that a power failure does not undo the version of the receipt.
func keepsVersion(t testing.TB, d *disk.Disk, what string) {
	t.Helper()
	d.Failures(t, 5, func(dir string) {
		r := byLoad(t, newcomer(t, dir))(receipt)
		require.GreaterOrEqual(t, r.Version, uint64(2), "%s: the receipt is absent: %t", what, r.Absent())
	})
}

// TestFloorAfterKilledPurge: a purge after a killed one does not rely on a version floor that a
// power failure can undo.
//
// Proves STORE-6.
func TestFloorAfterKilledPurge(t *testing.T) {
	start := withTombstone(t)
	kills := 0
	for ; ; kills++ {
		dir, logs := copied(t, start), t.TempDir()
		d := newDisk(t, dir)
		log := filepath.Join(logs, "first")
		if len(trace(t, "purge once", dir, disk.Flags(log, "-e", fmt.Sprintf("inject=fsync:signal=SIGKILL:when=%d", kills+1))...)) > 0 {
			break
		}
		d.FeedTrace(t, log, func(int) {})
		log = filepath.Join(logs, "second")
		require.Len(t, trace(t, "purge once", dir, disk.Flags(log)...), 1)
		d.FeedTrace(t, log, func(int) { keepsVersion(t, d, fmt.Sprintf("killed at fsync %d", kills+1)) })
	}
	require.Greater(t, kills, 2)
}

// TestFloorAfterFailedSync: a purge after one whose sync failed does not rely on a version floor
// that a power failure can undo.
//
// Proves STORE-6.
func TestFloorAfterFailedSync(t *testing.T) {
	start := withTombstone(t)
	for n := 1; n <= 4; n++ {
		dir, log := copied(t, start), filepath.Join(t.TempDir(), "log")
		d := newDisk(t, dir)
		require.Len(t, trace(t, "purge twice", dir, disk.Flags(log, "-e", fmt.Sprintf("inject=fsync:error=EIO:when=%d", n))...), 1)
		d.FeedTrace(t, log, func(int) { keepsVersion(t, d, fmt.Sprintf("fsync %d failed", n)) })
	}
}

// TestCommitAfterKilledPurge: a commit of several records is complete after a power failure that
// brings back a tombstone which the commit replaced.
//
// Proves TX-3.
func TestCommitAfterKilledPurge(t *testing.T) {
	start := withTombstone(t)
	revived := 0
	for n := 1; ; n++ {
		dir, logs := copied(t, start), t.TempDir()
		d := newDisk(t, dir)
		log := filepath.Join(logs, "purge")
		if len(trace(t, "purge once", dir, disk.Flags(log, "-e", fmt.Sprintf("inject=fsync:signal=SIGKILL:when=%d", n))...)) > 0 {
			break
		}
		d.FeedTrace(t, log, func(int) {})
		if _, err := os.Stat(newcomer(t, dir).file(receipt)); err == nil {
			continue // killed before it removed the tombstone
		}
		log = filepath.Join(logs, "revive")
		require.Equal(t, []string{committed}, trace(t, "revive", dir, disk.Flags(log)...))
		revived++
		d.FeedTrace(t, log, func(int) {
			d.Failures(t, 10, func(dir string) {
				s := newcomer(t, dir)
				a, r := byLoad(t, s)(ann), byLoad(t, s)(receipt)
				require.Equal(t, a.Version == 2, r.Version == 3, "killed at fsync %d: ann has version %d, the receipt %d", n, a.Version, r.Version)
			})
		})
	}
	require.Positive(t, revived)
}
