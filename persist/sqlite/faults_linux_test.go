package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/disk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// both returns a commit that moves the records a and b to the version after expected.
func both(expected uint64) persist.Commit {
	c := put("a", expected)
	c.Writes = append(c.Writes, put("b", expected).Writes...)
	return c
}

// A disk leaves room for less and less of a commit. A commit without room writes nothing, and the store
// says so. The records can be read, and commits succeed again when there is room.
//
// Proves STORE-7, STORE-14, TX-3.
func TestFullDisk(t *testing.T) {
	small := disk.Mount(t, "4m")
	path := filepath.Join(small.Dir, "state.db")
	s := openAt(t, path, Config{})
	version, refused := uint64(0), 0
	large := put("large", 0)
	large.Writes[0].Doc = fmt.Appendf(nil, "%q", strings.Repeat("x", 100<<10))
	for free := 8; free >= 0; free-- { // pages of 4 KiB
		_, err := s.Commit(t.Context(), both(version))
		require.NoError(t, err)
		version++
		small.Fill(free)
		for range 10 {
			if _, err := s.Commit(t.Context(), both(version)); err == nil {
				version++
			} else {
				require.ErrorIs(t, err, persist.ErrNotApplied)
				require.ErrorIs(t, err, persist.ErrUnavailable)
				refused++
			}
		}
		_, err = s.Commit(t.Context(), large)
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.ErrorIs(t, err, persist.ErrUnavailable)
		page, err := s.List(t.Context(), persist.Query{})
		require.NoError(t, err)
		require.Len(t, page.Records, 2)
		for _, r := range page.Records {
			require.Equal(t, version, r.Version)
		}
		small.Empty()
	}
	testkit.Figures(t, "%d commits refused for want of room, %d written", refused, version)
	require.Greater(t, refused, 10)
	_, err := s.Commit(t.Context(), large)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Equal(t, version, alive(t, openAt(t, path, Config{}), "b").Version)
}

const failRole = powerRole + "failing calls"

func init() {
	testkit.Child(failRole, func() error {
		s, err := openChild()
		if err != nil {
			return err
		}
		testkit.Begin()
		ctx := context.Background()
		_, err = s.Commit(ctx, both(1))
		switch {
		case err == nil:
			testkit.Say("committed")
		case errors.Is(err, persist.ErrNotApplied):
			testkit.Say("refused")
		default:
			testkit.Say("unknown")
		}
		r, err := s.Load(ctx, thing("b"))
		testkit.Say("version %d, %v", r.Version, err)
		_, err = s.Commit(ctx, put("c", 0))
		testkit.Say("on top: %v", err)
		return s.Close()
	})
}

// The first, second, third and so on call that reads, writes or syncs fails. The error of the commit
// tells its outcome, and the store works without being opened again.
//
// Proves STORE-7, TX-3.
func TestFailedSystemCalls(t *testing.T) {
	outcomes := map[string]int{}
	for _, failure := range []string{
		"pwrite64:error=ENOSPC", "pwrite64:error=EIO", "fsync,fdatasync:error=EIO", "pread64:error=EIO",
	} {
		for n := 1; ; n++ {
			dir := t.TempDir()
			s := openAt(t, filepath.Join(dir, powerFile), Config{})
			_, err := s.Commit(t.Context(), both(0))
			require.NoError(t, err)
			require.NoError(t, s.Close())
			log := filepath.Join(t.TempDir(), "log")
			calls, _, _ := strings.Cut(failure, ":")
			said := disk.Start(t, failRole, []string{powerDir + "=" + dir},
				[]string{"-o", log, "-e", "trace=write," + calls, "-e", fmt.Sprintf("inject=%s:when=%d", failure, n)}).Wait()
			text, err := os.ReadFile(log)
			require.NoError(t, err)
			if before, _, _ := strings.Cut(string(text), "write(1,"); !strings.Contains(before, "INJECTED") {
				break
			}
			outcome, now := said[0], [2]uint64{alive(t, openAt(t, filepath.Join(dir, powerFile), Config{}), "a").Version,
				alive(t, openAt(t, filepath.Join(dir, powerFile), Config{}), "b").Version}
			outcomes[outcome]++
			require.Equal(t, []string{fmt.Sprintf("version %d, <nil>", now[1]), "on top: <nil>"}, said[1:], "%s %d: %s", failure, n, outcome)
			require.Equal(t, now[0], now[1], "%s %d: the commit is there in part", failure, n)
			want := map[string][]uint64{"committed": {2}, "refused": {1}, "unknown": {1, 2}}[outcome]
			require.True(t, slices.Contains(want, now[0]), "%s %d: %s, and the version is %d", failure, n, outcome, now[0])
		}
	}
	testkit.Figures(t, "commits with a failed call, by what their error said: %v", outcomes)
	require.NotZero(t, outcomes["refused"])
}
