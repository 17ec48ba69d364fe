package fs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// openIn returns the open files of this process below dir.
func openIn(t *testing.T, dir string) (found []string) {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, dir) {
			found = append(found, to)
		}
	}
	return found
}

// TestOpenThatFailsKeepsNothing: a failed Open leaves no file open.
func TestOpenThatFailsKeepsNothing(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tmp"), nil, 0o600))
	for range 10 {
		_, err := Open(t.Context(), dir, Config{})
		require.Error(t, err)
	}
	require.Empty(t, openIn(t, dir))
}

// TestFewDescriptors: a store works in a process that may open few files.
func TestFewDescriptors(t *testing.T) {
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	entries, _ := os.ReadDir("/proc/self/fd")
	limit := before
	limit.Cur = uint64(len(entries) + 60)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)
	s := openAt(t, t.TempDir(), impatient)
	failed := 0
	var last error
	for i := range 200 {
		if _, err := s.Commit(context.Background(), put(fmt.Sprint(i), 0)); err != nil {
			failed, last = failed+1, err
		}
	}
	_, loadErr := s.Load(context.Background(), thing("0"))
	_, foreign := os.ReadFile("/etc/hostname")
	syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)
	require.Zero(t, failed, "%v; Load: %v; another file: %v", last, loadErr, foreign)
}
