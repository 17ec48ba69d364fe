// Package disk simulates power failures in tests. A child process works under strace, see [Start].
// The log of its system calls is fed to a [Disk], which then writes directories as a power failure at
// that moment may leave them.
//
// The model assumes about a disk and its file system:
//
//   - A sync that returned without an error has written all earlier changes of that file or folder. A
//     sync of a file does not write its name, only that of the folder does.
//   - A change that was not synced may have reached the disk or not, in any order. There is one
//     exception: a renamed file loses its old name only after it has its new one.
//   - A write reaches the disk in part: each sector of 512 bytes by itself. A sector is written as a
//     whole or not at all, and other sectors stay as they are. In addition, a file may have the first
//     half of its old content and the second half of its new one, wherever that cuts a sector.
//   - A file that grew may have its new size without the content; the gap reads as zeros.
//   - A mode that was changed after the file was created may be lost, even after a sync.
//   - A change whose sync failed is not written by a later sync either.
//
// The model follows the calls in [Calls]. It does not see writes to mapped memory; see [Disk.Drop].
//
// [Mount] is about another fault: a file system that is full or read-only.
package disk

import (
	"encoding/hex"
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
)

// Disk models which states of a directory a power failure can leave. Feed it with the log of every
// process that changes the directory.
type Disk struct {
	root    string             // the path of the directory
	folders map[string]bool    // on the disk, by their paths below root
	files   map[string]*inode  // on the disk
	cached  map[string]*inode  // as processes see them
	pending []*entry           // changes of folders that may not have reached the disk, in order
	open    map[string]*handle // of open files, by number
	dropped []string           // the suffixes of Drop

	seed    uint64 // of random
	random  *rand.Rand
	moments int // calls of Failures
}

// handle is an open file or folder.
type handle struct {
	path   string // under which it was opened
	file   *inode // nil: a folder, or outside of root
	offset int    // where the next write goes to
	append bool   // writes go to the end
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

// New returns a disk on which the directory is as it is. The seed determines the random mixtures of
// [Disk.Failures]; a test that fails in one of them logs it.
func New(t testing.TB, root string, seed uint64) *Disk {
	t.Helper()
	d := &Disk{
		root: root, folders: map[string]bool{}, files: map[string]*inode{}, open: map[string]*handle{},
		seed: seed, random: rand.New(rand.NewPCG(seed, 0)),
	}
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

// Drop leaves files whose names end in suffix out of every directory that a power failure leaves.
// It is for files in mapped memory that are worth nothing after a restart of the machine.
func (d *Disk) Drop(suffix string) { d.dropped = append(d.dropped, suffix) }

func (d *Disk) drops(path string) bool {
	return slices.ContainsFunc(d.dropped, func(suffix string) bool { return strings.HasSuffix(path, suffix) })
}

// Syncs returns how often the file at path below the directory was synced after a write to it.
func (d *Disk) Syncs(path string) int {
	if file := d.cached[path]; file != nil {
		return file.syncs
	}
	return 0
}

// Verify fails the test unless the files in the directory are those that processes see on the disk:
// the log has shown all changes.
func (d *Disk) Verify(t testing.TB) {
	t.Helper()
	there := New(t, d.root, 0).files
	names := func(files map[string]*inode) []string {
		return slices.DeleteFunc(slices.Sorted(maps.Keys(files)), d.drops)
	}
	require.Equal(t, names(there), names(d.cached), "the names of files")
	for _, path := range names(there) {
		require.True(t, slices.Equal(there[path].data, d.cached[path].data), "the content of %s", path)
	}
}

// below returns a path below root, or "" for a path elsewhere.
func (d *Disk) below(path string) string {
	rel, err := filepath.Rel(d.root, path)
	if err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return rel
}

// Call matches a system call that succeeded, as strace prints it: its name, arguments and result.
var Call = regexp.MustCompile(`^(\w+)\((.*)\)\s+= (\d+)`)

var (
	failed = regexp.MustCompile(`^f(?:data)?sync\((\d+)\)\s+= -1`)
	quoted = regexp.MustCompile(`"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?`)
)

// FeedTrace feeds a disk with a child's log, line by line, and calls look after each change and each
// answer of the child, with the number of answers so far.
func (d *Disk) FeedTrace(t testing.TB, log string, look func(answers int)) {
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

// feed takes a system call, as strace -xx prints it, and reports whether it changes anything.
func (d *Disk) feed(t testing.TB, line string) bool {
	t.Helper()
	if sync := failed.FindStringSubmatch(line); sync != nil {
		if h := d.open[sync[1]]; h != nil {
			d.forget(h)
		}
		return true
	}
	call := Call.FindStringSubmatch(line)
	if call == nil {
		return false // it failed, or the process was killed in it
	}
	name, args, result := call[1], call[2], call[3]
	texts := decode(t, args)
	fd, _, _ := strings.Cut(args, ",")
	last := args[strings.LastIndexByte(args, ' ')+1:]
	h := d.open[fd]
	if h == nil {
		h = &handle{} // outside of root
	}
	switch name {
	case "open", "openat":
		return d.opens(t, args, result, d.below(texts[0]))
	case "fchmodat", "chmod", "fchmod":
		file := h.file
		if name != "fchmod" {
			file = d.cached[d.below(texts[0])]
		}
		if file == nil {
			return false
		}
		file.mode = mode(t, last)
	case "close":
		delete(d.open, fd)
		return false
	case "lseek":
		h.offset = number(t, result)
		return false
	case "write", "pwrite64":
		if h.file == nil {
			return false
		}
		data, at := texts[0][:number(t, result)], h.offset
		switch {
		case h.append:
			at = len(h.file.data)
		case name == "pwrite64":
			at = number(t, last)
		}
		if name == "write" {
			h.offset = at + len(data)
		}
		h.file.write(at, []byte(data))
	case "ftruncate":
		if h.file == nil {
			return false
		}
		h.file.truncate(number(t, last))
	case "fsync", "fdatasync":
		if h.file == nil {
			d.syncFolder(h.path)
		} else {
			h.file.sync()
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

// decode returns the texts among the arguments of a system call.
func decode(t testing.TB, args string) (texts []string) {
	t.Helper()
	for _, match := range quoted.FindAllStringSubmatch(args, -1) {
		require.Empty(t, match[2], "strace has cut off a text")
		text, err := hex.DecodeString(strings.ReplaceAll(match[1], `\x`, ""))
		require.NoError(t, err)
		texts = append(texts, string(text))
	}
	return texts
}

func number(t testing.TB, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

func mode(t testing.TB, text string) os.FileMode {
	t.Helper()
	n, err := strconv.ParseUint(text, 8, 32)
	require.NoError(t, err)
	return os.FileMode(n)
}

// opens records an open file, and reports whether that has created or cut it.
func (d *Disk) opens(t testing.TB, args, result, path string) bool {
	t.Helper()
	h := &handle{path: path, file: d.cached[path], append: strings.Contains(args, "O_APPEND")}
	d.open[result] = h
	switch {
	case strings.Contains(args, "O_CREAT") && path != "" && h.file == nil:
		mode := mode(t, args[strings.LastIndexByte(args, ' ')+1:])
		h.file = &inode{made: mode, mode: mode}
		d.change(&entry{path: path, inode: h.file})
		return true
	case strings.Contains(args, "O_TRUNC") && h.file != nil:
		h.file.truncate(0)
		return true
	}
	return false
}

func (d *Disk) change(e *entry) {
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
func (d *Disk) forget(h *handle) {
	if h.file != nil {
		h.file.forgotten = true
		return
	}
	for _, e := range d.pending {
		e.forgotten = e.forgotten || filepath.Dir(e.path) == h.path
	}
}

// syncFolder makes the changes of a folder durable.
func (d *Disk) syncFolder(path string) {
	for _, e := range d.pending {
		if filepath.Dir(e.path) == path {
			d.persist(e)
		}
	}
	d.pending = slices.DeleteFunc(d.pending, func(e *entry) bool { return e.done })
}

// persist makes a change durable, after the changes that must come first.
func (d *Disk) persist(e *entry) {
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
