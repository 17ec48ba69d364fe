package disk

import (
	"errors"
	iofs "io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// luck decides what of the changes that are not durable has reached the disk.
type luck struct {
	reached func() bool                // a change of a folder or of a mode
	torn    func() bool                // a file is left in halves
	pieces  func(n int) func(int) bool // which of the n pieces of a file
}

func always() bool { return true }
func never() bool  { return false }

// every returns the pieces of a file that all share one fate.
func every(reached func() bool) func(int) func(int) bool {
	return func(int) func(int) bool { return func(int) bool { return reached() } }
}

// lucks returns the fixed fates and some random mixtures.
func (d *Disk) lucks(mixtures int) []luck {
	all := []luck{{always, never, every(always)}, {never, never, every(never)}, {never, always, every(never)}}
	for range mixtures {
		odds := d.random.Float64()
		chance := func() bool { return d.random.Float64() < odds }
		all = append(all, luck{chance, chance, func(n int) func(int) bool { return d.mixture(n, chance) }})
	}
	return all
}

// mixture returns which of the n pieces of one file reach the disk: all or none, each by chance, the
// first ones, or all but one.
func (d *Disk) mixture(n int, chance func() bool) func(int) bool {
	switch d.random.IntN(4) {
	case 0:
		whole := chance()
		return func(int) bool { return whole }
	case 1:
		return func(int) bool { return chance() }
	case 2:
		first := d.random.IntN(n + 1)
		return func(piece int) bool { return piece < first }
	default:
		missing := d.random.IntN(n + 1)
		return func(piece int) bool { return piece != missing }
	}
}

// Failures calls check with directories as a power failure at this moment may leave them: with all
// changes on the disk, with none, with torn files, and with some random mixtures. Each directory is
// removed afterwards.
func (d *Disk) Failures(t testing.TB, mixtures int, check func(dir string)) {
	t.Helper()
	d.moments++
	for i, l := range d.lucks(mixtures) {
		d.failure(t, i, l, check)
	}
}

func (d *Disk) failure(t testing.TB, number int, l luck, check func(dir string)) {
	t.Helper()
	dir := scratch(t)
	defer func() {
		if t.Failed() {
			t.Logf("disk with seed %d: power failure %d at moment %d", d.seed, number, d.moments)
		}
		require.NoError(t, os.RemoveAll(dir))
	}()
	d.leave(t, dir, l)
	check(dir)
}

// Synced returns a directory with nothing but the changes that are durable. It is removed at the end
// of the test.
func (d *Disk) Synced(t testing.TB) string {
	t.Helper()
	dir := scratch(t)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	d.leave(t, dir, luck{never, never, every(never)})
	return dir
}

// leave writes what a power failure leaves into the directory dir.
func (d *Disk) leave(t testing.TB, dir string, l luck) {
	t.Helper()
	files, folders := maps.Clone(d.files), maps.Clone(d.folders)
	reached := map[*entry]bool{}
	for _, e := range d.pending {
		reached[e] = l.reached() && (e.after == nil || e.after.done || reached[e.after])
		if reached[e] {
			e.apply(files, folders)
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); !errors.Is(err, iofs.ErrExist) {
			require.NoError(t, err)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		file := files[path]
		if d.drops(path) {
			continue
		}
		var data []byte
		if l.torn() {
			data = file.halves()
		} else {
			data = file.left(l.pieces(len(file.pending)))
		}
		mode := file.made
		if l.reached() {
			mode = file.mode
		}
		err := os.WriteFile(filepath.Join(dir, path), data, mode)
		if !errors.Is(err, iofs.ErrNotExist) { // its folder is not on the disk
			require.NoError(t, err)
		}
	}
}

// scratch returns a new directory, in memory if the system can do that: tests need very many.
func scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "pawl-disk-")
	if err != nil {
		dir, err = os.MkdirTemp("", "pawl-disk-")
	}
	require.NoError(t, err)
	return dir
}
