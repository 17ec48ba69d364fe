package source

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

var root = filepath.Join("..", "..")

// walk calls f with each Go file of the module, by its path below the root, with slashes. It skips
// testdata and nested modules.
func walk(t *testing.T, f func(name string, src []byte)) {
	t.Helper()
	files(t, func(name string, d fs.DirEntry) bool {
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(root, name, "go.mod"))
			return err != nil
		}
		return path.Ext(name) == ".go"
	}, f)
}

// files calls f with each file of the repository that match accepts. It enters the folders that
// match accepts, except testdata and hidden ones.
func files(t *testing.T, match func(name string, d fs.DirEntry) bool, f func(name string, src []byte)) {
	t.Helper()
	fsys := os.DirFS(root)
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == ".":
			return nil
		case d.IsDir():
			if d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || !match(name, d) {
				return fs.SkipDir
			}
			return nil
		case !match(name, d):
			return nil
		}
		src, err := fs.ReadFile(fsys, name)
		if err == nil {
			f(name, src)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
