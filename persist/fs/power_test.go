package fs

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	iofs "io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// disk models which states of a directory a power failure can leave. It is fed with the system
// calls of the processes that change the directory. Each change that was not synced may have
// reached the disk or not, with one exception: a renamed file loses its old name only after it has
// its new one. A change whose sync failed is not written by a later sync either.
type disk struct {
	root    string             // the path of the directory
	folders map[string]bool    // on the disk, by their paths below root
	files   map[string]*inode  // on the disk
	cached  map[string]*inode  // as processes see them
	pending []*entry           // changes of folders that may not have reached the disk, in order
	open    map[string]*handle // of open files, by number
}

// handle is an open file or folder.
type handle struct {
	path   string // under which it was opened
	file   *inode // nil: a folder, or outside of root
	offset int    // where the next write goes to
}

type inode struct {
	data, synced []byte
	forgotten    bool // a sync of data has failed
	made, mode   os.FileMode
}

// entry is a change of a folder.
type entry struct {
	path   string
	inode  *inode // nil: the name is removed
	folder bool   // it is the name of a folder
	after  *entry // reaches the disk first; nil: none
	done   bool

	forgotten bool // a sync of it has failed
}

// newDisk returns a disk on which the directory is as it is.
func newDisk(t testing.TB, root string) *disk {
	t.Helper()
	d := &disk{root: root, folders: map[string]bool{}, files: map[string]*inode{}, open: map[string]*handle{}}
	require.NoError(t, filepath.WalkDir(root, func(path string, e iofs.DirEntry, err error) error {
		require.NoError(t, err)
		if e.IsDir() {
			d.folders[d.below(path)] = true
			return nil
		}
		info, err := e.Info()
		require.NoError(t, err)
		data, err := os.ReadFile(path)
		d.files[d.below(path)] = &inode{data: data, synced: data, made: info.Mode(), mode: info.Mode()}
		return err
	}))
	d.cached = maps.Clone(d.files)
	return d
}

// below returns a path below root, or "" for a path elsewhere.
func (d *disk) below(path string) string {
	rel, err := filepath.Rel(d.root, path)
	if err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return rel
}

var (
	callLine = regexp.MustCompile(`^(\w+)\((.*)\)\s+= (\d+)`)
	failed   = regexp.MustCompile(`^f(?:data)?sync\((\d+)\)\s+= -1`)
	quoted   = regexp.MustCompile(`"((?:\\x[0-9a-f]{2})*)"`)
)

// feed takes a system call, as strace -xx prints it, and reports whether it changes anything.
func (d *disk) feed(t testing.TB, line string) bool {
	t.Helper()
	if sync := failed.FindStringSubmatch(line); sync != nil {
		if h := d.open[sync[1]]; h != nil {
			d.forget(h)
		}
		return true
	}
	call := callLine.FindStringSubmatch(line)
	if call == nil {
		return false // it failed, or the process was killed in it
	}
	name, args, result := call[1], call[2], call[3]
	var texts []string
	for _, match := range quoted.FindAllStringSubmatch(args, -1) {
		text, err := hex.DecodeString(strings.ReplaceAll(match[1], `\x`, ""))
		require.NoError(t, err)
		texts = append(texts, string(text))
	}
	fd, _, _ := strings.Cut(args, ",")
	last := args[strings.LastIndexByte(args, ' ')+1:]
	h := d.open[fd]
	if h == nil {
		h = &handle{} // outside of root
	}
	switch name {
	case "openat":
		h = &handle{path: d.below(texts[0])}
		d.open[result] = h
		if strings.Contains(args, "O_CREAT") && h.path != "" && d.cached[h.path] == nil {
			mode, err := strconv.ParseUint(last, 8, 32)
			require.NoError(t, err)
			h.file = &inode{made: os.FileMode(mode), mode: os.FileMode(mode)}
			d.change(&entry{path: h.path, inode: h.file})
			return true
		}
		h.file = d.cached[h.path]
		return false
	case "fchmodat", "chmod", "fchmod":
		file := h.file
		if name != "fchmod" {
			file = d.cached[d.below(texts[0])]
		}
		if file == nil {
			return false
		}
		mode, err := strconv.ParseUint(last, 8, 32)
		require.NoError(t, err)
		file.mode = os.FileMode(mode)
	case "close":
		delete(d.open, fd)
		return false
	case "write":
		if h.file == nil {
			return false
		}
		end := h.offset + len(texts[0])
		h.file.data = slices.Concat(h.file.data[:h.offset], []byte(texts[0]), h.file.data[min(end, len(h.file.data)):])
		h.offset = end
	case "ftruncate":
		size, err := strconv.Atoi(last)
		require.NoError(t, err)
		h.file.data = slices.Clone(h.file.data[:size])
	case "fsync", "fdatasync":
		switch {
		case h.file == nil:
			d.syncFolder(h.path)
		case !h.file.forgotten:
			h.file.synced = h.file.data
		}
	case "mkdirat", "mkdir":
		d.change(&entry{path: d.below(texts[0]), folder: true})
	case "renameat", "renameat2", "rename":
		from, to := d.below(texts[0]), d.below(texts[1])
		if strings.Contains(args, "RENAME_EXCHANGE") {
			a, b := d.cached[from], d.cached[to]
			d.change(&entry{path: to, inode: a})
			d.change(&entry{path: from, inode: b})
			break
		}
		in := &entry{path: to, inode: d.cached[from]}
		d.change(in)
		d.change(&entry{path: from, after: in})
	case "unlinkat", "unlink":
		d.change(&entry{path: d.below(texts[0])})
	}
	return true
}

func (d *disk) change(e *entry) {
	d.pending = append(d.pending, e)
	switch {
	case e.folder:
	case e.inode == nil:
		delete(d.cached, e.path)
	default:
		d.cached[e.path] = e.inode
	}
}

// forget records a sync that failed.
func (d *disk) forget(h *handle) {
	if h.file != nil {
		h.file.forgotten = true
		return
	}
	for _, e := range d.pending {
		e.forgotten = e.forgotten || filepath.Dir(e.path) == h.path
	}
}

// syncFolder makes the changes of a folder durable.
func (d *disk) syncFolder(path string) {
	for _, e := range d.pending {
		if filepath.Dir(e.path) == path {
			d.persist(e)
		}
	}
	d.pending = slices.DeleteFunc(d.pending, func(e *entry) bool { return e.done })
}

// persist makes a change durable, after the changes that must come first.
func (d *disk) persist(e *entry) {
	if e.done || e.forgotten {
		return
	}
	for _, earlier := range d.pending {
		if earlier == e {
			break
		}
		if earlier.path == e.path {
			d.persist(earlier)
			earlier.done = true // the later entry replaces it in either case
		}
	}
	if e.after != nil {
		if d.persist(e.after); !e.after.done {
			return
		}
	}
	e.apply(d.files, d.folders)
	e.done = true
}

func (e *entry) apply(files map[string]*inode, folders map[string]bool) {
	switch {
	case e.folder:
		folders[e.path] = true
	case e.inode == nil:
		delete(files, e.path)
	default:
		files[e.path] = e.inode
	}
}

// fail returns a directory as a power failure may leave it. Choose decides for each change that is
// not durable whether it reached the disk, and likewise for the content of files. Torn decides
// whether a file has the first half of its old content and the second half of its new one.
func (d *disk) fail(t testing.TB, choose, torn func() bool) string {
	t.Helper()
	files, folders := maps.Clone(d.files), maps.Clone(d.folders)
	reached := map[*entry]bool{}
	for _, e := range d.pending {
		reached[e] = choose() && (e.after == nil || e.after.done || reached[e.after])
		if reached[e] {
			e.apply(files, folders)
		}
	}
	dir := scratch(t)
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); !errors.Is(err, iofs.ErrExist) {
			require.NoError(t, err)
		}
	}
	for path, file := range files {
		data := file.synced
		switch half := min(len(file.synced), len(file.data)) / 2; {
		case torn():
			data = slices.Concat(file.synced[:half], file.data[half:])
		case choose():
			data = file.data
		}
		mode := file.made
		if choose() {
			mode = file.mode
		}
		err := os.WriteFile(filepath.Join(dir, path), data, mode)
		if !errors.Is(err, iofs.ErrNotExist) { // its folder is not on the disk
			require.NoError(t, err)
		}
	}
	return dir
}

// failures calls check with directories as a power failure at this moment may leave them: with all
// changes on the disk, with none, with torn files, and with some random mixtures.
func (d *disk) failures(t testing.TB, mixtures int, check func(dir string)) {
	t.Helper()
	all := func() bool { return true }
	none := func() bool { return false }
	choices := [][2]func() bool{{all, none}, {none, none}, {none, all}}
	for range mixtures {
		odds := rand.Float64()
		chance := func() bool { return rand.Float64() < odds }
		choices = append(choices, [2]func() bool{chance, chance})
	}
	for _, choose := range choices {
		dir := d.fail(t, choose[0], choose[1])
		check(dir)
		require.NoError(t, os.RemoveAll(dir))
	}
}

// logged lists the system calls that a disk is fed with.
const logged = "trace=openat,close,write,ftruncate,fsync,fdatasync," + mkdirs + "," + renames + "," + unlinks + "," + chmods

// feedTrace feeds a disk with a child's log, line by line, and calls look after each change and
// each answer of the child.
func (d *disk) feedTrace(t testing.TB, log string, look func(answers int)) {
	t.Helper()
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	answers := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "write(1,") {
			answers++
			look(answers)
		} else if d.feed(t, line) {
			look(answers)
		}
	}
}

// TestPowerFailure cuts the power at every moment of a commit. All of the commit is on the disk or
// nothing, and all of it once it was acknowledged.
//
// Proves TX-3, STORE-6.
func TestPowerFailure(t *testing.T) {
	for role, c := range commits {
		dir, log := seed(t), filepath.Join(t.TempDir(), "log")
		d := newDisk(t, dir)
		require.Equal(t, []string{committed, "done"}, trace(t, role, dir, "-xx", "-s", "1000000", "-e", logged, "-o", log))
		moments, failures := 0, 0
		d.feedTrace(t, log, func(answers int) {
			moments++
			d.failures(t, 15, func(dir string) {
				failures++
				s := newcomer(t, dir)
				there := state(t, c, byLoad(t, s))
				require.True(t, there || answers == 0, "an acknowledged commit is lost")
				require.Equal(t, there, state(t, c, byList(t, s)))
			})
		})
		testkit.Figures(t, "%s: %d moments, %d power failures", role, moments, failures)
	}
}

func init() {
	testkit.Child("purge", func() error {
		ctx := context.Background()
		s, err := Open(ctx, os.Getenv(childDir), Config{})
		if err != nil {
			return err
		}
		testkit.Begin()
		_, err = s.Commit(ctx, commits["transfer"])
		if err == nil {
			_, err = s.Commit(ctx, persist.Commit{ID: "child.2", Writes: []persist.Write{{Key: receipt, Expected: 1, Version: 2, Deleted: true}}})
		}
		removed := 0
		if err == nil {
			removed, err = s.Purge(ctx, persist.Query{})
		}
		testkit.Say("%d", removed)
		return err
	})
}

// TestPowerFailureAfterPurge: a journal that a power failure brings back does not restore a purged
// record.
//
// Proves TX-3.
func TestPowerFailureAfterPurge(t *testing.T) {
	dir, log := seed(t), filepath.Join(t.TempDir(), "log")
	d := newDisk(t, dir)
	require.Equal(t, []string{"1"}, trace(t, "purge", dir, "-xx", "-s", "1000000", "-e", logged, "-o", log))
	deleted := false // durably
	d.feedTrace(t, log, func(answers int) {
		d.failures(t, 15, func(dir string) {
			s := newcomer(t, dir)
			r := byLoad(t, s)(receipt)
			if r.Absent() && r.Version > 0 || r.Deleted {
				return
			}
			require.False(t, deleted || answers > 0, "version %d of a deleted record is back", r.Version)
		})
		if r, err := newcomer(t, d.fail(t, func() bool { return false }, func() bool { return false })).read(receipt); err == nil && r.Deleted {
			deleted = true
		}
	})
	require.True(t, deleted)
}

// TestFailedSystemCalls lets the first, second, third... call of each sort fail. The error of the
// commit tells its outcome, the store works without being opened again, and a power failure
// afterwards changes neither.
//
// Proves STORE-6, TX-3.
func TestFailedSystemCalls(t *testing.T) {
	start := seed(t)
	outcomes := map[string]int{}
	for role, c := range commits {
		for calls, failure := range map[string]string{
			"openat": "EMFILE", "write": "ENOSPC", "ftruncate": "EIO", "fsync": "EIO", "fdatasync": "EIO", "?rename,?renameat": "EROFS", "?renameat2": "EROFS",
			unlinks: "EACCES", mkdirs: "ENOSPC", "?chmod,?fchmodat": "EPERM", "fchmod": "EPERM", "flock": "ENOLCK",
		} {
			for n := 1; ; n++ {
				dir, log := copied(t, start), filepath.Join(t.TempDir(), "log")
				d := newDisk(t, dir)
				said := trace(t, role+" and more", dir, "-xx", "-s", "1000000", "-e", logged, "-e", fmt.Sprintf("inject=%s:error=%s:when=%d", calls, failure, n), "-o", log)
				if !failedBeforeAnswer(t, log) {
					break
				}
				require.Len(t, said, 3, "%s %d: %q", calls, n, said)
				require.Equal(t, "done", said[2], "%s %d", calls, n)
				outcome, there := said[0], said[1] == "true"
				require.True(t, outcome == unknown || there == (outcome == committed), "%s %d: %q", calls, n, said)
				outcomes[outcome]++
				heard := 0
				d.feedTrace(t, log, func(answers int) {
					if answers == heard && !strings.HasSuffix(calls, "sync") { // only a failed sync shows at every later moment
						return
					}
					heard = answers
					d.failures(t, 1, func(dir string) {
						s := newcomer(t, dir)
						now := state(t, c, byLoad(t, s))
						require.False(t, now && outcome == refused, "%s %d: a commit that was not applied is there", calls, n)
						require.True(t, answers < 2 || now == there, "%s %d: a commit that was there is lost", calls, n)
						require.True(t, answers < 3 || slices.Contains(byLoad(t, s)(bob).Commits, "top.1"), "%s %d: the commit on top is lost", calls, n)
					})
				})
			}
		}
	}
	testkit.Figures(t, "commits with a failed call, by what their error said: %v", outcomes)
	require.Len(t, outcomes, 3)
}

// failedBeforeAnswer reports whether a system call failed before the child printed the outcome.
func failedBeforeAnswer(t testing.TB, log string) bool {
	t.Helper()
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	before, _, _ := strings.Cut(string(text), "write(1,")
	return strings.Contains(before, "INJECTED")
}

func init() {
	testkit.Child("look", traced(func(s *Store) ([]string, error) {
		r, err := s.Load(context.Background(), bob)
		return []string{has(r)}, err
	}))
	testkit.Child("list", traced(func(s *Store) ([]string, error) {
		page, err := s.List(context.Background(), persist.Query{Kind: "account"})
		if len(page.Records) != 2 {
			return []string{"false"}, err
		}
		return []string{has(page.Records[1])}, err
	}))
	testkit.Child("confirm", traced(func(s *Store) ([]string, error) {
		_, err := s.Commit(context.Background(), persist.Commit{Guards: []persist.Guard{{Key: bob, Read: true, Version: 2}}})
		if conflict := (*persist.Conflict)(nil); errors.As(err, &conflict) {
			return []string{"false"}, nil
		}
		return []string{"true"}, err
	}))
}

// TestPowerFailureAfterKill kills a writer, runs a reader, and cuts the power at every moment of
// the reader. All of the commit is on the disk or nothing, and all of it once the reader returned
// it.
//
// Proves TX-3, STORE-6.
func TestPowerFailureAfterKill(t *testing.T) {
	start := seed(t)
	runs, failures := 0, 0
	for role, c := range commits {
		next := []string{"look", "list", "confirm"}
		if c.Writes[0].Expected > 1 {
			next = next[:2] // confirm expects version 2
		}
		for _, calls := range []string{"fsync", "fdatasync", "?rename,?renameat", "?renameat2", unlinks, "?chmod,?fchmodat", "fchmod"} {
			for n := 1; ; n++ {
				dir, logs := copied(t, start), t.TempDir()
				d := newDisk(t, dir)
				log := filepath.Join(logs, "writer")
				said := trace(t, role, dir, "-xx", "-s", "1000000", "-e", logged, "-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", calls, n), "-o", log)
				if len(said) > 0 {
					break
				}
				d.feedTrace(t, log, func(int) {})
				log = filepath.Join(logs, "next")
				said = trace(t, next[runs%len(next)], dir, "-xx", "-s", "1000000", "-e", logged, "-o", log)
				require.Len(t, said, 1)
				d.feedTrace(t, log, func(answers int) {
					d.failures(t, 4, func(dir string) {
						failures++
						s := newcomer(t, dir)
						there := state(t, c, byLoad(t, s))
						require.True(t, there || answers == 0 || said[0] == "false", "%s returned a commit that is lost", next[runs%len(next)])
						require.Equal(t, there, state(t, c, byList(t, s)))
					})
				})
				runs++
			}
		}
	}
	testkit.Figures(t, "%d kills, %d power failures", runs, failures)
}

// TestPowerFailureAfterKilledFinisher kills a writer whose file is tentative, then a reader at each
// of its syncs, runs another reader, and cuts the power at every moment of it. A commit that a
// reader returned is not lost.
//
// Proves STORE-6.
func TestPowerFailureAfterKilledFinisher(t *testing.T) {
	start, kills := seed(t), 0
	for _, next := range []string{"look", "list", "confirm"} {
		for n := 1; ; n++ {
			dir, logs := copied(t, start), t.TempDir()
			d := newDisk(t, dir)
			play := func(role string, inject ...string) (said []string) {
				log := filepath.Join(logs, "log")
				said = trace(t, role, dir, append([]string{"-xx", "-s", "1000000", "-e", logged, "-o", log}, inject...)...)
				d.feedTrace(t, log, func(answers int) {
					if answers > 0 && said[0] == "true" {
						d.failures(t, 4, func(dir string) {
							require.True(t, state(t, commits["deposit"], byLoad(t, newcomer(t, dir))), "%s, after %d: a commit that was seen is lost", role, n)
						})
					}
				})
				return said
			}
			require.Empty(t, play("deposit", "-e", "inject=fsync:signal=SIGKILL:when=3"))
			if len(play(next, "-e", fmt.Sprintf("inject=fsync:signal=SIGKILL:when=%d", n))) > 0 {
				break
			}
			kills++
			require.Equal(t, []string{"true"}, play("look"))
		}
	}
	require.GreaterOrEqual(t, kills, 6) // each syncs a file and a folder
}
