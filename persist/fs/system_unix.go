//go:build !windows

package fs

import (
	"errors"
	"os"
)

// syncFolder makes the entries of a folder durable.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// rename puts the file at from in the place of the one at to.
func rename(from, to string) error { return os.Rename(from, to) }
