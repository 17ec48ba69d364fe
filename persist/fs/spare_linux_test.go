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

// writer returns a function that commits the next version of the document "a", with a text of
// length.
func writer(t *testing.T, s *Store) (commit func(length int)) {
	version := uint64(0)
	return func(length int) {
		t.Helper()
		doc := `{"text":"` + strings.Repeat("x", length) + `"}`
		_, err := s.Commit(t.Context(), persist.Commit{ID: "writer.1", Writes: []persist.Write{{Key: thing("a"), Expected: version, Version: version + 1, Doc: []byte(doc)}}})
		require.NoError(t, err)
		version++
		r, err := s.Load(t.Context(), thing("a"))
		require.NoError(t, err)
		require.Equal(t, version, r.Version)
		require.Equal(t, doc, string(r.Doc))
	}
}

// numberAt returns the inode number of the file at path.
func numberAt(t *testing.T, path string) uint64 {
	t.Helper()
	var stat syscall.Stat_t
	require.NoError(t, syscall.Stat(path, &stat))
	return stat.Ino
}

// TestSpare: the two files of a document that is written again and again change places. Open and
// Close remove the spare.
//
// Proves STORE-3, STORE-6.
func TestSpare(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, dir, impatient)
	commit, temps := writer(t, s), func() []string { return inFolder(t, s.temps, "") }
	commit(10)
	require.Empty(t, temps())
	numbers := map[uint64]int{}
	for _, length := range []int{20, 3000, 5, 9000, 0, 12, 5000, 5001, 4999, 1} {
		commit(length)
		require.Len(t, temps(), 1)
		numbers[numberAt(t, s.file(thing("a")))]++
	}
	require.Len(t, numbers, 2, "the spares are not used")

	for _, length := range []int{maxSpare, maxSpare, 10} { // the first two files are longer than maxSpare
		commit(length)
		require.Empty(t, temps(), "a long file is not kept")
	}
	commit(10)
	require.Len(t, temps(), 1)

	openAt(t, dir, impatient)
	require.Empty(t, temps())
	commit(10)
	require.Len(t, temps(), 1)
	require.NoError(t, s.Close())
	require.Empty(t, temps())
	require.Empty(t, openIn(t, s.temps))
}

// TestSpareOfADeletedDocument: a commit that deletes a document, alone or with others, removes its
// spare.
//
// Proves STORE-6.
func TestSpareOfADeletedDocument(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	for i, others := range [][]persist.Write{nil, {setTo(thing("b"), 0, 1)}} {
		key := thing(string(rune('x' + i)))
		for version := range uint64(3) {
			_, err := s.Commit(t.Context(), persist.Commit{ID: "writer.1", Writes: []persist.Write{setTo(key, version, 1)}})
			require.NoError(t, err)
		}
		require.Len(t, inFolder(t, s.temps, ""), 1)
		_, err := s.Commit(t.Context(), persist.Commit{ID: "writer.1", Writes: append(others, persist.Write{Key: key, Expected: 3, Version: 4, Deleted: true})})
		require.NoError(t, err)
		require.Empty(t, inFolder(t, s.temps, ""))
	}
}

// TestSpareInUse: a file that is open, has a second name, or was replaced by a link is not
// overwritten.
//
// Proves STORE-6.
func TestSpareInUse(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, path string) (left func()){
		"read": func(t *testing.T, path string) (left func()) {
			file, err := os.Open(path)
			require.NoError(t, err)
			t.Cleanup(func() { file.Close() })
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			return func() {
				now := make([]byte, len(text)+1000)
				n, _ := file.ReadAt(now, 0)
				require.Equal(t, string(text), string(now[:n]))
			}
		},
		"linked": func(t *testing.T, path string) (left func()) {
			copied := filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Link(path, copied))
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			return func() {
				now, err := os.ReadFile(copied)
				require.NoError(t, err)
				require.Equal(t, string(text), string(now))
			}
		},
		"another": func(t *testing.T, path string) (left func()) {
			elsewhere := filepath.Join(t.TempDir(), "mine")
			require.NoError(t, os.WriteFile(elsewhere, []byte("mine"), 0o600))
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.WriteFile(elsewhere+".json", text, 0o600))
			require.NoError(t, os.Symlink(elsewhere+".json", path))
			return func() {
				now, err := os.ReadFile(elsewhere + ".json")
				require.NoError(t, err)
				require.Equal(t, string(text), string(now))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openAt(t, t.TempDir(), impatient)
			commit := writer(t, s)
			commit(10)
			commit(11)
			left := use(t, s.file(thing("a")))
			for length := range 5 {
				commit(20 + length)
				left()
			}
		})
	}
}

func init() {
	testkit.Child("look at ann", traced(func(s *Store) ([]string, error) {
		_, err := s.Load(context.Background(), ann)
		return []string{fmt.Sprint(err)}, nil
	}))
}

// TestSpareOfANeighbour: a file that a reader has opened does not become the file of another record
// with the same stripe.
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
	// The reader has opened the file of ann and not read it yet.
	reader := startTrace(t, "look at ann", dir, "-xx", "-s", "1000000", "-e", "trace=openat,flock", "-e", "inject=openat:signal=SIGSTOP:when=1", "-o", log)
	require.True(t, stopped(t, log))
	number := numberAt(t, s.file(ann))
	require.NoError(t, add(ctx, s, ann, "test.1", 1))   // its file is the spare now
	require.NoError(t, add(ctx, s, other, "test.2", 1)) // and would become the file of other
	require.NotEqual(t, number, numberAt(t, s.file(other)), "the spare is open")
	reader.Child.Resume()
	require.Equal(t, []string{"<nil>"}, reader.Wait())
}

// TestSpareOfAnotherProcess: a commit that deletes a document removes the spares of other
// processes.
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

// TestLongSpare: no spare is longer than maxSpare.
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
			require.LessOrEqual(t, info.Size(), int64(maxSpare))
		}
	}
}

// TestSpareThatIsOpen: a slow reader that does not use this package sees one commit.
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

// TestSpareOfAnotherOwner: a file that another user owns is not kept as a record.
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

// TestReusedFileIsReadAgain: a reader that looks up a file, and opens it when it is the file of
// another record already, reads its own record again with its lock. Here a commit under way has put
// the file of the other record in the place of the file that is looked up.
//
// Proves STORE-6.
func TestReusedFileIsReadAgain(t *testing.T) {
	for name, read := range map[string]func(s *Store) (persist.Record, error){
		"load": func(s *Store) (persist.Record, error) { return s.Load(context.Background(), ann) },
		"list": func(s *Store) (persist.Record, error) {
			page, err := s.List(context.Background(), persist.Query{Kind: ann.Kind, Prefix: ann.ID})
			if err != nil {
				return persist.Record{}, err
			}
			return page.Records[0], nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := seed(t)
			reader, writer := openAt(t, dir, Config{}), openAt(t, dir, Config{})
			release, err := writer.locks.take(t.Context(), wanted{stripeOf(ann): exclusive})
			require.NoError(t, err)
			own, err := os.ReadFile(writer.file(ann))
			require.NoError(t, err)
			others, err := os.ReadFile(writer.file(bob))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(writer.file(ann), others, private))
			answer := make(chan error, 1)
			go func() {
				r, err := read(reader)
				if err == nil && r.Key != ann {
					err = fmt.Errorf("read %q", r.Key)
				}
				answer <- err
			}()
			testkit.Eventually(t, func() bool { // the reader waits for the stripe, or has failed
				gate := reader.locks.local[stripeOf(ann)].gate
				free := gate.TryAcquire(1)
				if free {
					gate.Release(1)
				}
				return !free || len(answer) > 0
			})
			require.NoError(t, os.WriteFile(writer.file(ann), own, private))
			release()
			require.NoError(t, <-answer)
		})
	}
}
