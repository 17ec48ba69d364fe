package guarantees

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// Tests holds the test functions of a source tree and their citations.
type Tests struct {
	// Functions holds the ids that each test function cites. Functions with the same name in
	// different packages count as one, because the table names no packages.
	Functions map[string][]string
	// Citations holds all citations, also those outside a test.
	Citations []Citation
}

// A Citation is one id in one comment.
type Citation struct {
	ID       string
	Function string // the test that the comment belongs to; "": none
	Where    string // file and line
}

// Scan reads the tests in fsys: the functions in _test.go files and, for a conformance suite, the
// functions in other files that have a parameter of package testing. It skips testdata and nested
// modules.
func Scan(fsys fs.FS) (Tests, error) {
	tests := Tests{Functions: make(map[string][]string)}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && skip(fsys, name) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		return tests.add(name, src)
	})
	return tests, err
}

func skip(fsys fs.FS, dir string) bool {
	base := path.Base(dir)
	if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := fs.Stat(fsys, path.Join(dir, "go.mod"))
	return err == nil
}

// add adds the tests of one file.
func (t *Tests) add(name string, src []byte) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	isTest := strings.HasSuffix(name, "_test.go")
	if !isTest && !imports(file, "testing") {
		return nil
	}
	var functions []*ast.FuncDecl
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || !(takesTesting(f) || isTest && strings.HasPrefix(f.Name.Name, "Example")) {
			continue
		}
		functions = append(functions, f)
		if _, ok := t.Functions[f.Name.Name]; !ok {
			t.Functions[f.Name.Name] = nil // it exists, also without a citation
		}
	}
	for _, comment := range file.Comments {
		function := enclosing(functions, comment)
		for _, id := range cited(comment.Text()) {
			t.Citations = append(t.Citations, Citation{
				ID:       id,
				Function: function,
				Where:    fmt.Sprintf("%s:%d", name, fset.Position(comment.Pos()).Line),
			})
			if function != "" {
				t.Functions[function] = append(t.Functions[function], id)
			}
		}
	}
	return nil
}

func imports(file *ast.File, pkg string) bool {
	for _, spec := range file.Imports {
		if strings.Trim(spec.Path.Value, `"`) == pkg {
			return true
		}
	}
	return false
}

// takesTesting reports whether f has a parameter such as *testing.T or testing.TB.
func takesTesting(f *ast.FuncDecl) bool {
	for _, param := range f.Type.Params.List {
		typ := param.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if sel, ok := typ.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "testing" {
				return true
			}
		}
	}
	return false
}

// enclosing returns the name of the function that the comment documents or is inside of; "": none.
func enclosing(functions []*ast.FuncDecl, comment *ast.CommentGroup) string {
	for _, f := range functions {
		if f.Doc == comment || f.Pos() <= comment.Pos() && comment.End() <= f.End() {
			return f.Name.Name
		}
	}
	return ""
}

var (
	citation = regexp.MustCompile(`\bProves\s+(` + idPattern + `(?:(?:,\s*|,?\s+and\s+)` + idPattern + `)*)`)
	anyID    = regexp.MustCompile(idPattern)
)

// cited returns the ids that follow the word Proves in a comment. "Proves that" cites none.
func cited(text string) []string {
	var ids []string
	for _, match := range citation.FindAllStringSubmatch(text, -1) {
		ids = append(ids, anyID.FindAllString(match[1], -1)...)
	}
	return ids
}
