package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/pawl-go/pawl/persist"
)

// creating is held while a database file is created and closed. POSIX releases all locks of a
// process on a file when one of its descriptors is closed, so no other Open in this process may
// have locks on the file yet.
var creating sync.Mutex

// prepareFile returns the absolute path, and creates the file if there is none, unless existing is
// set. SQLite would create it readable by all users; the files that SQLite puts beside it inherit
// its mode.
func prepareFile(path string, existing bool) (string, error) {
	switch {
	case path == "":
		return "", errors.New("sqlite: the path is empty")
	case path == ":memory:" || strings.HasPrefix(path, "file:"):
		return "", errors.New("sqlite: want the path of a file, not a URI or :memory: (for state that may die with the process there is persist/memory; for settings of your own there is New)")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	if !existing {
		if err := createFile(path); err != nil {
			return "", err
		}
	}
	info, err := os.Stat(path)
	if existing && errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("sqlite: %w: there is no file %s", persist.ErrMissingStore, path)
	}
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("sqlite: %s is not a file", path)
	}
	return path, nil
}

// createFile creates the file at path if there is none.
func createFile(path string) error {
	creating.Lock()
	defer creating.Unlock()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	switch {
	case err == nil:
		return file.Close()
	case errors.Is(err, fs.ErrExist):
		return nil
	}
	return fmt.Errorf("sqlite: cannot create the database: %w", err)
}

// dataSource returns the URI of the file at path with settings that both drivers understand.
func dataSource(path, settings string) string {
	slashed := filepath.ToSlash(path)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed // C:/x
	}
	uri := url.URL{Scheme: "file", Path: slashed, RawQuery: "mode=rw&" + settings}
	return uri.String()
}

// openFile is a file of a database, as it was when a connection opened it.
type openFile struct {
	path string
	info os.FileInfo // nil: there is no such file
}

func openedFile(path string) openFile {
	info, err := os.Stat(path)
	if err != nil {
		return openFile{}
	}
	return openFile{path, info}
}

// inPlace returns an error if the path no longer leads to the file. SQLite does not notice that: it
// goes on to write into a file without a name.
func (f openFile) inPlace() error {
	if f.info == nil {
		return nil
	}
	if now, err := os.Stat(f.path); err != nil || !os.SameFile(f.info, now) {
		return fmt.Errorf("%w: %s was removed or replaced while in use", persist.ErrUnavailable, f.path)
	}
	return nil
}
