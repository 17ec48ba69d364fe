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
)

// creating is held from the creation of a database file until it is closed: POSIX drops all of a
// process's locks on a file when any of its descriptors is closed, so no other Open in this
// process may have its locks on the file by then.
var creating sync.Mutex

// prepareFile returns path made absolute, and makes sure that the file exists. SQLite would create
// it readable by everybody; the files that SQLite puts beside it inherit its mode.
func prepareFile(path string) (string, error) {
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
	creating.Lock()
	defer creating.Unlock()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		return path, file.Close()
	}
	if !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("sqlite: cannot create the database: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("sqlite: %s is not a file", path)
	}
	return path, nil
}

// dataSource is the URI of the file at path, which both drivers read alike.
func dataSource(path, settings string) string {
	slashed := filepath.ToSlash(path)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed // C:/x
	}
	uri := url.URL{Scheme: "file", Path: slashed, RawQuery: "mode=rw&" + settings}
	return uri.String()
}
