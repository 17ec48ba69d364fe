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

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// neighbour returns a key of another record that has the stripe of key.
func neighbour(key persist.Key) persist.Key {
	for i := 0; ; i++ {
		if other := thing(fmt.Sprintf("n%d", i)); stripeOf(other) == stripeOf(key) {
			return other
		}
	}
}

func init() {
	testkit.Child("look at ann", traced(func(s *Store) ([]string, error) {
		_, err := s.Load(context.Background(), ann)
		return []string{fmt.Sprint(err)}, nil
	}))
}

// TestSpareOfANeighbour: who has opened the file of a document, and reads it when it is the file of another one that has the same lock, does not take the document for damaged.
//
// Proves STORE-6.
func TestSpareOfANeighbour(t *testing.T) {
	dir, log := seed(t), filepath.Join(t.TempDir(), "log")
	s := openAt(t, dir, Config{})
	other := neighbour(ann)
	ctx := context.Background()
	for range 3 {
		require.NoError(t, add(ctx, s, other, "seed.2", 1))
	}
	// The reader has opened ann's file, and not locked it yet.
	reader := startTrace(t, "look at ann", dir, "-xx", "-s", "1000000", "-e", "trace=openat,flock", "-e", "inject=openat:signal=SIGSTOP:when=1", "-o", log)
	require.True(t, stopped(t, log))
	number := numberAt(t, s.file(ann))
	require.NoError(t, add(ctx, s, ann, "test.1", 1))   // its file is the spare now,
	require.NoError(t, add(ctx, s, other, "test.2", 1)) // and would be that of another
	require.NotEqual(t, number, numberAt(t, s.file(other)), "it is open")
	reader.child.Resume()
	require.Equal(t, []string{"<nil>"}, reader.wait())
}

// TestSpareOfAnotherProcess: nothing is left of a document that another process has deleted, or that one has written which has died.
//
// Proves STORE-6.
func TestSpareOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	one, other := openAt(t, dir, impatient), openAt(t, dir, impatient)
	for version := range uint64(3) {
		_, err := other.Commit(t.Context(), persist.Commit{ID: "writer.1", Writes: []persist.Write{
			{Key: thing("a"), Expected: version, Version: version + 1, Doc: []byte(`{"secret":"swordfish"}`)}}})
		require.NoError(t, err)
	}
	_, err := one.Commit(t.Context(), persist.Commit{ID: "writer.2", Writes: []persist.Write{{Key: thing("a"), Expected: 3, Version: 4, Deleted: true}}})
	require.NoError(t, err)
	for _, path := range inFolder(t, one.temps, "") {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NotContains(t, string(text), "swordfish", path)
	}
}

// TestLongSpare: what is kept is never longer than largestSpare.
//
// Proves STORE-6.
func TestLongSpare(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	commit := writer(t, s)
	for _, length := range []int{10, 10, 1 << 20, 10} {
		commit(length)
		for _, path := range inFolder(t, s.temps, "") {
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.LessOrEqual(t, info.Size(), int64(largestSpare))
		}
	}
}

// TestSpareThatIsOpen: who reads a file by other means, and is slow, sees one commit.
//
// Proves STORE-6.
func TestSpareThatIsOpen(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	commit := writer(t, s)
	commit(3000)
	commit(3001)
	text, err := os.ReadFile(s.file(thing("a")))
	require.NoError(t, err)
	file, err := os.Open(s.file(thing("a")))
	require.NoError(t, err)
	defer file.Close()
	for length := range 3 {
		commit(2000 + length)
	}
	var now strings.Builder
	_, err = file.WriteTo(&now)
	require.NoError(t, err)
	require.Equal(t, string(text), now.String())
}

// TestSpareOfAnotherOwner: a file that somebody else has put in place is not used again.
//
// Proves STORE-6.
func TestSpareOfAnotherOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	s := openAt(t, t.TempDir(), impatient)
	commit := writer(t, s)
	commit(10)
	path := s.file(thing("a"))
	require.NoError(t, os.Chown(path, 4711, 4711))
	for range 4 {
		commit(10)
		var stat syscall.Stat_t
		require.NoError(t, syscall.Stat(path, &stat))
		require.Zero(t, stat.Uid)
	}
}
