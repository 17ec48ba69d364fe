package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/need"
)

// Small is a small file system in memory, which can be full or read-only.
type Small struct {
	Dir string // where it is mounted

	t testing.TB
}

// Mount mounts a small file system until the test ends. Size is in the notation of mount, such as 1m.
func Mount(t testing.TB, size string) Small {
	t.Helper()
	s := Small{t.TempDir(), t}
	if err := syscall.Mount("tmpfs", s.Dir, "tmpfs", 0, "size="+size); err != nil {
		need.Missing(t, "mount", "a file system of its own cannot be mounted: "+err.Error(), "run the tests as root")
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(s.Dir, 0)) })
	return s
}

// Fill fills the file system except for some pages.
func (s Small) Fill(free int) {
	s.t.Helper()
	var stat syscall.Statfs_t
	require.NoError(s.t, syscall.Statfs(s.Dir, &stat))
	size := max(0, int(stat.Bavail)-free) * int(stat.Bsize)
	err := os.WriteFile(s.filler(), bytes.Repeat([]byte("x"), size), 0o600)
	if free == 0 && errors.Is(err, syscall.ENOSPC) {
		return // others have written meanwhile
	}
	require.NoError(s.t, err)
}

// Empty removes what Fill has written.
func (s Small) Empty() {
	s.t.Helper()
	require.NoError(s.t, os.Remove(s.filler()))
}

func (s Small) filler() string { return filepath.Join(s.Dir, "filler") }

// ReadOnly remounts the file system read-only. The kernel refuses that while a file is open for writing.
func (s Small) ReadOnly() {
	s.t.Helper()
	s.remount(syscall.MS_RDONLY)
}

// Writable undoes ReadOnly.
func (s Small) Writable() {
	s.t.Helper()
	s.remount(0)
}

func (s Small) remount(flags uintptr) {
	s.t.Helper()
	require.NoError(s.t, syscall.Mount("", s.Dir, "", syscall.MS_REMOUNT|flags, ""))
}
