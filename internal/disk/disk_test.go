package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m.Run) }

// logging writes system calls as strace -xx prints them.
type logging struct {
	t    *testing.T
	dir  string
	disk *Disk
}

func newLogging(t *testing.T) *logging {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "old"), []byte("old content"), 0o600))
	return &logging{t, dir, New(t, dir, 1)}
}

func inHex(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		fmt.Fprintf(&out, `\x%02x`, b)
	}
	return `"` + out.String() + `"`
}

func (l *logging) path(name string) string { return inHex(filepath.Join(l.dir, name)) }

func (l *logging) feed(format string, args ...any) {
	l.t.Helper()
	log := filepath.Join(l.t.TempDir(), "log")
	require.NoError(l.t, os.WriteFile(log, fmt.Appendf(nil, format+"\n", args...), 0o600))
	l.disk.FeedTrace(l.t, log, func(int) {})
}

func (l *logging) create(name string, fd int) {
	l.t.Helper()
	l.feed(`openat(AT_FDCWD, %s, O_RDWR|O_CREAT|O_CLOEXEC, 0600) = %d`, l.path(name), fd)
}

func (l *logging) open(name string, fd int) {
	l.t.Helper()
	l.feed(`openat(AT_FDCWD, %s, O_RDWR|O_CLOEXEC) = %d`, l.path(name), fd)
}

func (l *logging) write(fd, at int, text string) {
	l.t.Helper()
	l.feed(`pwrite64(%d, %s, %d, %d) = %d`, fd, inHex(text), len(text), at, len(text))
}

// states returns the contents of a file after many power failures; "none" stands for no file.
func (l *logging) states(name string) map[string]bool {
	l.t.Helper()
	states := map[string]bool{}
	l.disk.Failures(l.t, 500, func(dir string) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if os.IsNotExist(err) {
			text, err = []byte("none"), nil
		}
		require.NoError(l.t, err)
		states[string(text)] = true
	})
	return states
}

func set(texts ...string) map[string]bool {
	states := map[string]bool{}
	for _, text := range texts {
		states[text] = true
	}
	return states
}

func TestNamesNeedASyncOfTheFolder(t *testing.T) {
	l := newLogging(t)
	l.create("new", 5)
	l.write(5, 0, "x")
	l.feed("fsync(5) = 0")
	require.Equal(t, set("none", "x"), l.states("new"))
	l.open("", 6)
	l.feed("fsync(6) = 0")
	require.Equal(t, set("x"), l.states("new"))
	l.feed("unlink(%s) = 0", l.path("new"))
	require.Equal(t, set("none", "x"), l.states("new"))
}

func TestWritesReachTheDiskBySector(t *testing.T) {
	l := newLogging(t)
	a, b, c := strings.Repeat("a", sector), strings.Repeat("b", sector), strings.Repeat("c", 7)
	none, zeros := "", strings.Repeat("\x00", sector)
	l.create("new", 5)
	l.open("", 6)
	l.feed("fsync(6) = 0")
	l.write(5, 0, a+b+c)
	tail := zeros[:len(c)]
	require.Equal(t, set(none, a, zeros+b, a+b, zeros+zeros+c, a+zeros+c, zeros+b+c, a+b+c,
		zeros+zeros+tail, a+zeros+tail, zeros+b+tail, a+b+tail), l.states("new"))
	l.feed("fdatasync(5) = 0")
	require.Equal(t, set(a+b+c), l.states("new"))
	require.Equal(t, 1, l.disk.Syncs("new"))

	l.write(5, sector, c) // the rest of the sector stays
	half := (2*sector + len(c)) / 2
	torn := (a + b + c)[:half] + (a + c + b[len(c):] + c)[half:]
	require.Equal(t, set(a+b+c, a+c+b[len(c):]+c, torn), l.states("new"))
	l.feed("fsync(5) = 0")
	l.feed("ftruncate(5, 1) = 0")
	require.Equal(t, set(a+c+b[len(c):]+c, "a"), l.states("new"))
}

func TestWritesAtThePositionOfTheFile(t *testing.T) {
	l := newLogging(t)
	l.open("old", 5)
	l.feed("write(5, %s, 3) = 3", inHex("new"))
	l.feed("write(5, %s, 3) = 1", inHex("-++"))
	l.feed("lseek(5, 0, SEEK_END) = 11")
	l.feed("write(5, %s, 1) = 1", inHex("!"))
	l.feed("fsync(5) = 0")
	require.Equal(t, set("new-content!"), l.states("old"))
	require.NoError(t, os.WriteFile(filepath.Join(l.dir, "old"), []byte("new-content!"), 0o600))
	l.disk.Verify(t)
}

func TestRenamedFileHasAName(t *testing.T) {
	l := newLogging(t)
	l.feed("renameat(AT_FDCWD, %s, AT_FDCWD, %s) = 0", l.path("old"), l.path("new"))
	seen := map[int]bool{}
	l.disk.Failures(t, 500, func(dir string) {
		names, err := os.ReadDir(dir)
		require.NoError(t, err)
		seen[len(names)] = true
	})
	require.Equal(t, map[int]bool{1: true, 2: true}, seen)
}

func TestFailedSyncIsNotRepeated(t *testing.T) {
	l := newLogging(t)
	l.open("old", 5)
	l.write(5, 0, "new")
	l.feed("fsync(5) = -1 EIO (Input/output error) (INJECTED)")
	l.feed("fsync(5) = 0")
	states := l.states("old")
	require.True(t, states["old content"])
	require.True(t, states["new content"])
}

func TestDroppedFiles(t *testing.T) {
	l := newLogging(t)
	l.disk.Drop("ld")
	require.Equal(t, set("none"), l.states("old"))
}

// The same seed leads to the same mixtures.
func TestSeed(t *testing.T) {
	var found [2][]string
	for i := range found {
		l := newLogging(t)
		l.create("new", 5)
		l.write(5, 0, strings.Repeat("x", 20*sector))
		l.disk.Failures(t, 20, func(dir string) {
			text, err := os.ReadFile(filepath.Join(dir, "new"))
			if err != nil {
				text = []byte("none")
			}
			found[i] = append(found[i], string(text))
		})
	}
	require.Len(t, found[0], 23)
	require.Equal(t, found[0], found[1])
}
