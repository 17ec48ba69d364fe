//go:build !linux

package fs

import (
	"errors"
	"os"
)

// There are no spares: files cannot change places.

func exchange(string, string) error { return errors.ErrUnsupported }

func reuse(string) (file *os.File, size int64, err error) { return nil, 0, errors.ErrUnsupported }

func letGo(*os.File) {}

func syncData(file *os.File) error { return file.Sync() }

func glance(path string) (data []byte, mode os.FileMode, err error) { return readFile(path) }

func stare(path string) (data []byte, mode os.FileMode, err error) { return readFile(path) }
