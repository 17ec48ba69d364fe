package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A cache is a build cache for broken versions. Each of them leaves up to 100 MB that no later
// build can use: in the user's own cache, all bugs together would fill a disk. A cache starts with
// hard links to the files of the user's cache, and clear removes what was added.
type cache struct {
	dir   string
	known map[string]bool // files that clear keeps
}

// newCache returns a cache. The caller removes it with os.RemoveAll(c.dir).
func newCache(ctx context.Context) (cache, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return cache{}, fmt.Errorf("go env GOCACHE: %w", err)
	}
	shared := strings.TrimSpace(string(out))
	dir, err := os.MkdirTemp(filepath.Dir(shared), "planted") // links need the same file system
	if err != nil {
		return cache{}, err
	}
	c := cache{dir, make(map[string]bool)}
	err = filepath.WalkDir(shared, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(shared, path)
		if err != nil {
			return err
		}
		c.known[name] = true
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(dir, name), 0o700)
		}
		if err := os.Link(path, filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil // removed by another process: go has trimmed its cache
	})
	if err != nil {
		os.RemoveAll(dir)
		return cache{}, err
	}
	return c, nil
}

// clear removes the files that were added to c.
func (c cache) clear() error {
	return filepath.WalkDir(c.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if name, err := filepath.Rel(c.dir, path); err != nil || c.known[name] {
			return err
		}
		return os.Remove(path)
	})
}
