//go:build !linux

package fs

import "errors"

// There are no spares: files cannot change places.

func exchange(string, string) error { return errors.ErrUnsupported }

func overwrite(string, []byte) error { return errors.ErrUnsupported }
