package fs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/pawl-go/pawl/persist"
)

var errNoDirectory = errors.New("fs: the path of the directory is empty")

// formatName is the name of the file that makes a directory a store.
const formatName = "pawl.json"

// create makes the directory a store if it is none. It is safe when many processes do it at once.
func (s *Store) create(ctx context.Context) error {
	isStore, err := s.checkFormat()
	if err != nil {
		return err
	}
	if !isStore {
		if err := s.claim(ctx); err != nil {
			return err
		}
	}
	// A copy of a directory may lack folders that were empty.
	for _, folder := range []string{s.locks.folder, s.temps, s.journals, s.records} {
		if err := s.folder(folder); err != nil {
			return err
		}
	}
	return nil
}

// checkFormat reports whether there is a store, and returns an error if it cannot be used.
func (s *Store) checkFormat() (isStore bool, err error) {
	path := filepath.Join(s.dir, formatName)
	data, err := os.ReadFile(path)
	if errors.Is(err, iofs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var content struct { // what a newer release adds is not looked at: the number decides
		Format int `json:"format"`
	}
	if err := json.Unmarshal(bytes.TrimSpace(data), &content); err != nil || content.Format < 1 {
		return false, &DamagedError{Path: path, Reason: "it does not say which format the directory has"}
	}
	if content.Format > format {
		return false, fmt.Errorf("%w: the format of %s is %d, this release knows %d",
			persist.ErrNewerSchema, s.dir, content.Format, format)
	}
	return true, nil
}

// claim makes an empty directory a store, and refuses one that has anything else in it.
func (s *Store) claim(ctx context.Context) error {
	foreign, err := s.foreign()
	if err != nil {
		return err
	}
	if foreign != "" {
		isStore, err := s.checkFormat() // somebody may have made it one just now
		if err != nil {
			return err
		}
		if !isStore {
			return fmt.Errorf("fs: %s is not empty and no store: it has %q in it, but no %s", s.dir, foreign, formatName)
		}
	}
	err = makeFolder(s.dir)
	if errors.Is(err, iofs.ErrPermission) { // to sync the folder above, which was there
		_, err = os.ReadDir(s.dir)
	}
	if err == nil {
		err = syncAbove(filepath.Dir(s.dir))
	}
	if err != nil {
		return err
	}
	for _, folder := range []string{s.locks.folder, s.temps} {
		if err := s.folder(folder); err != nil {
			return err
		}
	}
	release, err := s.locks.take(ctx, wanted{metaLock: exclusive})
	if err != nil {
		return err
	}
	defer release()
	isStore, err := s.checkFormat()
	if err != nil || isStore {
		return err
	}
	text := fmt.Appendf(nil, "{\n\t\"format\": %d\n}\n", format)
	return s.replace(metaLock, filepath.Join(s.dir, formatName), text)
}

// syncAbove makes the entries of folder and of all folders above it durable, so far as that can be
// done: somebody may have made them for the store and died. Those that may not be read, or are on
// a file system that is not written to, were there before.
func syncAbove(folder string) error {
	for above := filepath.Dir(folder); above != folder; folder, above = above, filepath.Dir(above) {
		err := syncFolder(above)
		settled := errors.Is(err, iofs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EINVAL)
		if err != nil && !settled {
			return err
		}
	}
	return nil
}

// foreign returns the name of something in the directory that claim would not have put there.
func (s *Store) foreign() (string, error) {
	names, err := readNames(s.dir)
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return "", err
	}
	for _, own := range []string{s.locks.folder, s.temps} {
		names = slices.DeleteFunc(names, func(name string) bool { return name == filepath.Base(own) })
	}
	if len(names) == 0 {
		return "", nil
	}
	return slices.Min(names), nil
}

// sweep removes temporary files that belong to nobody. It waits for nothing, and leaves what it
// cannot remove to the next.
func (s *Store) sweep() {
	names, err := readNames(s.temps)
	if err != nil {
		return
	}
	for _, name := range names {
		if lock, ok := tempLock(name); ok {
			s.sweepOne(lock, filepath.Join(s.temps, name))
		}
	}
}

// sweepOne removes a temporary file that the given lock protects.
func (s *Store) sweepOne(lock int, path string) {
	want := wanted{lock: exclusive}
	release, err := s.locks.take(atOnce, want)
	if err != nil {
		return // somebody has it, and perhaps the file
	}
	defer release()
	if found, err := s.pending(want.stripes()); err != nil || len(found) > 0 {
		return // a journal may name it
	}
	_ = os.Remove(path)
}
