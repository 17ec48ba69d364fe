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

// walk calls f with each Go file of the module, by its path below the root, with slashes. It
// leaves out testdata and modules inside the module.
func walk(t *testing.T, f func(name string, src []byte)) {
	t.Helper()
	fsys := os.DirFS(root)
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			if _, err := fs.Stat(fsys, path.Join(name, "go.mod")); err == nil && name != "." {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
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
