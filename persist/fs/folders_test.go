package fs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/disk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

func init() {
	testkit.Child("open", func() error {
		testkit.Begin()
		s, err := Open(context.Background(), os.Getenv(childDir), Config{})
		if err != nil {
			return err
		}
		testkit.Say("open")
		return s.Close()
	})
	testkit.Child("transfer twice", func() error {
		s, err := newStore(os.Getenv(childDir), Config{LockTimeout: defaultLockTimeout})
		if err != nil {
			return err
		}
		testkit.Begin()
		if _, err = s.Commit(context.Background(), commits["transfer"]); err != nil {
			_, err = s.Commit(context.Background(), commits["transfer"])
		}
		testkit.Say("%s", outcomeOf(err))
		return nil
	})
}

// TestFolderWhoseSyncFailed: a folder whose sync failed does not count as durable when its commit
// is tried again.
//
// Proves STORE-6.
func TestFolderWhoseSyncFailed(t *testing.T) {
	start := seed(t)
	acknowledged := 0
	for n := 1; n <= 6; n++ { // the syncs up to those after the new folder
		dir, log := copied(t, start), filepath.Join(t.TempDir(), "log")
		d := newDisk(t, dir)
		said := trace(t, "transfer twice", dir, disk.Flags(log, "-e", fmt.Sprintf("inject=fsync:error=EIO:when=%d", n))...)
		require.Len(t, said, 1)
		if said[0] != committed {
			continue
		}
		acknowledged++
		d.FeedTrace(t, log, func(answers int) {
			if answers == 0 {
				return
			}
			d.Failures(t, 5, func(dir string) {
				require.True(t, state(t, commits["transfer"], byLoad(t, newcomer(t, dir))), "fsync %d failed once: an acknowledged commit is lost", n)
			})
		})
	}
	require.Positive(t, acknowledged)
}

// TestRemovedFolder: an empty folder that was removed is made again, also by a process that
// completes a commit which needs it.
//
// Proves TX-3.
func TestRemovedFolder(t *testing.T) {
	dir, gone := t.TempDir(), persist.Key{Kind: "gone", ID: "1"}
	s, other := openAt(t, dir, Config{}), openAt(t, dir, Config{})
	for i, knows := range []*Store{s, other} {
		_, err := knows.Commit(t.Context(), persist.Commit{ID: "w.1", Writes: []persist.Write{setTo(gone, uint64(i), 1)}})
		require.NoError(t, err)
	}
	removeFolder := func() {
		require.NoError(t, os.Remove(s.file(gone)))
		require.NoError(t, os.Remove(s.kindFolder(gone.Kind)))
	}
	removeFolder()
	both := persist.Commit{ID: "w.2", Writes: []persist.Write{setTo(gone, 0, 2), setTo(thing("a"), 0, 2)}}
	_, err := s.Commit(t.Context(), both)
	require.Equal(t, unknown, outcomeOf(err))
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.True(t, state(t, both, byLoad(t, other)))
	require.True(t, state(t, both, byList(t, other)))

	removeFolder()
	_, err = s.Commit(t.Context(), persist.Commit{ID: "w.3", Writes: []persist.Write{setTo(gone, 0, 3), setTo(thing("a"), 1, 3)}})
	require.NoError(t, err)
}

// TestFoldersAboveAreSynced: Open syncs the folders above a new store, because the process that
// made them may have died before they were durable.
//
// Proves STORE-6.
func TestFoldersAboveAreSynced(t *testing.T) {
	base, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	above := filepath.Join(base, "one", "two")
	require.NoError(t, os.MkdirAll(above, 0o700))
	require.Equal(t, []string{"open"}, trace(t, "open", filepath.Join(above, "store"), "-s", "100000", "-e", disk.Calls, "-o", log))
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	// Between the two calls a busy runtime may send itself signals.
	for _, folder := range []string{above, filepath.Dir(above), base, "/"} {
		synced := regexp.MustCompile(`openat\(AT_FDCWD, "` + regexp.QuoteMeta(folder) + `", .*\) = (\d+)\n(?:--- .*\n)*fsync\((\d+)\)\s+= 0`).FindSubmatch(text)
		require.NotNil(t, synced, "%s was not synced", folder)
		require.Equal(t, string(synced[1]), string(synced[2]))
	}
}
