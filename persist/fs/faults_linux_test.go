package fs

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/disk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// unavailable asserts that a commit was refused for a reason that can pass.
func unavailable(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, persist.ErrUnavailable)
}

// TestFullDisk leaves room for less and less of a commit. A commit without room writes nothing, the
// records can be read, and commits succeed again when there is room.
//
// Proves STORE-14, TX-3.
func TestFullDisk(t *testing.T) {
	small := disk.Mount(t, "1m")
	s := openAt(t, filepath.Join(small.Dir, "state"), Config{})
	both := func(n uint64) persist.Commit {
		return persist.Commit{ID: fmt.Sprintf("w.%d", n), Writes: []persist.Write{setTo(ann, n, int(n)), setTo(bob, n, int(n))}}
	}
	_, err := s.Commit(t.Context(), both(0))
	require.NoError(t, err)
	version, refusedOnes := uint64(1), 0
	for free := 10; free >= 0; free-- { // pages of 4 KiB
		small.Fill(free)
		_, err := s.Commit(t.Context(), both(version))
		if err == nil {
			version++
		} else {
			unavailable(t, err)
			refusedOnes++
		}
		one := persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: thing("large"), Version: 1, Doc: fmt.Appendf(nil, "%q", strings.Repeat("x", 100<<10))}}}
		_, err = s.Commit(t.Context(), one)
		unavailable(t, err)
		for _, key := range []persist.Key{ann, bob} {
			require.Equal(t, version, load(t, s, key).Version)
		}
		page, err := s.List(t.Context(), persist.Query{})
		require.NoError(t, err)
		require.Len(t, page.Records, 2)
		small.Empty()
		_, err = s.Commit(t.Context(), both(version))
		require.NoError(t, err)
		version++
		require.Empty(t, tempsOf(t, s))
		require.Empty(t, inFolder(t, s.journals, ""))
	}
	testkit.Figures(t, "%d commits refused for want of room, %d written", refusedOnes, version)
	require.Greater(t, refusedOnes, 2)
}

// TestReadOnlyFileSystem: on a file system that turns read-only, commits fail and reads succeed.
//
// Proves STORE-14.
func TestReadOnlyFileSystem(t *testing.T) {
	small := disk.Mount(t, "1m")
	s := openAt(t, filepath.Join(small.Dir, "state"), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	_, err = s.List(t.Context(), persist.Query{})
	require.NoError(t, err)
	small.ReadOnly()
	_, err = s.Commit(t.Context(), put("a", 1))
	unavailable(t, err)
	require.EqualValues(t, 1, load(t, s, thing("a")).Version)
	_, err = s.List(t.Context(), persist.Query{})
	require.NoError(t, err)
	small.Writable()
	_, err = s.Commit(t.Context(), put("a", 1))
	require.NoError(t, err)
	testkit.Figures(t, "a commit refused while read-only, and written afterwards")
}

func init() {
	testkit.Child("unprivileged", unprivilegedChild)
	testkit.Child("handles", handlesChild)
}

// childTest runs a child and expects it to print "done".
func childTest(t *testing.T, role, dir string) {
	t.Helper()
	child := testkit.Start(t, role, childDir+"="+dir, "GORACE=atexit_sleep_ms=0") // without it each child takes a second to end
	testkit.Ready(child)
	require.Equal(t, []string{"done"}, child.Wait())
}

// TestUnwritableDirectory: in a directory that its owner may not write to, commits fail and reads
// succeed.
//
// Proves STORE-14, TX-3.
func TestUnwritableDirectory(t *testing.T) {
	dir, err := os.MkdirTemp("", "pawl-fs-") // a folder that is open to all users
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o777))
	childTest(t, "unprivileged", filepath.Join(dir, "state"))
}

func unprivilegedChild() error {
	testkit.Begin()
	if os.Geteuid() == 0 { // modes do not restrict root
		const unprivileged = 65534
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(unprivileged), syscall.Setuid(unprivileged)); err != nil {
			return err
		}
	}
	ctx, dir := context.Background(), os.Getenv(childDir)
	s, err := Open(ctx, dir, Config{})
	if err != nil {
		return err
	}
	if _, err := s.Commit(ctx, put("a", 0)); err != nil {
		return err
	}
	both := persist.Commit{ID: "w.1", Writes: []persist.Write{setTo(thing("a"), 1, 2), setTo(persist.Key{Kind: "new", ID: "b"}, 0, 2)}}
	for _, folder := range []string{s.records, s.temps, s.journals} { // the commit also makes a folder
		if err := os.Chmod(folder, 0o500); err != nil {
			return err
		}
		_, err := s.Commit(ctx, both)
		if !errors.Is(err, persist.ErrNotApplied) || !errors.Is(err, persist.ErrUnavailable) || !errors.Is(err, iofs.ErrPermission) {
			return fmt.Errorf("%s: %w", folder, err)
		}
		if r, err := s.Load(ctx, thing("a")); err != nil || r.Version != 1 {
			return fmt.Errorf("version %d: %w", r.Version, err)
		}
		if err := os.Chmod(folder, 0o700); err != nil {
			return err
		}
	}
	// A commit writes to the folder of its records last.
	folder := s.kindFolder("thing")
	if err := os.Chmod(folder, 0o500); err != nil {
		return err
	}
	if _, err := s.Commit(ctx, put("a", 1)); !errors.Is(err, persist.ErrNotApplied) || !errors.Is(err, persist.ErrUnavailable) {
		return err
	}
	if _, err := s.Commit(ctx, both); outcomeOf(err) != unknown {
		return fmt.Errorf("both: %w", err)
	}
	if _, err := s.Load(ctx, thing("a")); !errors.Is(err, persist.ErrUnavailable) {
		return fmt.Errorf("a commit can be read in part: %w", err)
	}
	if err := os.Chmod(folder, 0o700); err != nil {
		return err
	}
	for _, w := range both.Writes {
		if r, err := s.Load(ctx, w.Key); err != nil || r.Version != w.Version {
			return fmt.Errorf("%s has version %d: %w", w.Key, r.Version, err)
		}
	}
	testkit.Say("done")
	return s.Close()
}

// TestTooManyOpenFiles leaves a process fewer and fewer files that it may open. The errors of calls
// tell the outcome, and calls succeed again when more files can be opened.
//
// Proves STORE-14, TX-3.
func TestTooManyOpenFiles(t *testing.T) { childTest(t, "handles", seed(t)) }

func handlesChild() error {
	testkit.Begin()
	ctx := context.Background()
	s, err := Open(ctx, os.Getenv(childDir), Config{})
	if err != nil {
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = 64
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	version, outcomes := uint64(1), map[string]int{}
	for free := range 8 {
		restore, err := useUpHandles(free)
		if err != nil {
			return err
		}
		_, err = s.Commit(ctx, persist.Commit{ID: fmt.Sprintf("w.%d", free), Writes: []persist.Write{setTo(ann, version, 1), setTo(bob, version, 1)}})
		outcome := outcomeOf(err)
		_, loading := s.Load(ctx, ann)
		_, listing := s.List(ctx, persist.Query{})
		restore()
		outcomes[outcome]++
		for _, err := range []error{err, loading, listing} {
			if err != nil && !errors.Is(err, syscall.EMFILE) || outcome == refused && !errors.Is(err, persist.ErrUnavailable) && err != nil {
				return fmt.Errorf("with %d files: %w", free, err)
			}
		}
		one, err := s.Load(ctx, ann)
		if err != nil {
			return err
		}
		two, err := s.Load(ctx, bob)
		if err != nil {
			return err
		}
		if one.Version != two.Version || outcome == committed && one.Version != version+1 || outcome == refused && one.Version != version {
			return fmt.Errorf("with %d files: %s, but versions %d and %d after %d", free, outcome, one.Version, two.Version, version)
		}
		version = one.Version
	}
	if outcomes[committed] == 0 || outcomes[refused] == 0 {
		return fmt.Errorf("outcomes: %v", outcomes)
	}
	testkit.Say("done")
	return s.Close()
}

// useUpHandles opens files until only free more can be opened. It returns the function that closes
// them.
func useUpHandles(free int) (restore func(), err error) {
	var files []*os.File
	for {
		file, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		}
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	for _, file := range files[:free] {
		if err := file.Close(); err != nil {
			return nil, err
		}
	}
	return func() {
		for _, file := range files[free:] {
			_ = file.Close()
		}
	}, nil
}
