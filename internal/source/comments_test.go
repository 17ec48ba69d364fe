package source

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

func TestPackagesHaveAComment(t *testing.T) {
	explained := make(map[string]bool) // by folder
	walk(t, func(name string, src []byte) {
		file := parse(t, name, src)
		if strings.HasSuffix(file.Name.Name, "_test") {
			return // the comment belongs to the package that it tests
		}
		explained[path.Dir(name)] = explained[path.Dir(name)] || file.Doc.Text() != ""
	})
	for dir, ok := range explained {
		if !ok {
			t.Errorf("package in %s has no package comment", dir)
		}
	}
}

// Examples and internal packages are exempt: their readers see the source.
func TestExportedNamesHaveAComment(t *testing.T) {
	walk(t, func(name string, src []byte) {
		folders := strings.Split(path.Dir(name), "/")
		if strings.HasSuffix(name, "_test.go") || slices.Contains(folders, "internal") || folders[0] == "examples" {
			return
		}
		file := parse(t, name, src)
		if file.Name.Name == "main" {
			return
		}
		for _, missing := range uncommented(file) {
			t.Errorf("%s: %s has no doc comment", name, missing)
		}
	})
}

func TestUncommented(t *testing.T) {
	const src = `package p

// A says.
const A = 1

const (
	B = 1 // B says.
	C = 2
	c = 3
)

// Both are said here.
var D, E int

type T struct{}

// U says.
type U[K any] interface { M() }

func F() {}
func (t *T) G() {}
func (u *U[K]) H() {}
func (t T) Error() string { return "" }
func (h hidden) I() {}
func f() {}
`
	want := "C T F T.G U.H"
	if got := strings.Join(uncommented(parse(t, "p.go", []byte(src))), " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func parse(t *testing.T, name string, src []byte) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// uncommented returns the exported names of a file that have no comment.
func uncommented(file *ast.File) []string {
	var names []string
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if name, exported := functionName(d); exported && d.Doc.Text() == "" {
				names = append(names, name)
			}
		case *ast.GenDecl:
			names = append(names, uncommentedSpecs(d)...)
		}
	}
	return names
}

// uncommentedSpecs allows one comment for a group and, beside a constant or variable, a comment
// at the end of its line.
func uncommentedSpecs(d *ast.GenDecl) []string {
	var names []string
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc.Text() == "" && d.Doc.Text() == "" {
				names = append(names, s.Name.Name)
			}
		case *ast.ValueSpec:
			if s.Doc.Text() != "" || s.Comment.Text() != "" || d.Doc.Text() != "" {
				continue
			}
			for _, name := range s.Names {
				if name.IsExported() {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

// functionName returns the name of a function or method and whether it is exported. The methods that
// package errors calls count as not exported: they need no comment.
func functionName(f *ast.FuncDecl) (string, bool) {
	name := f.Name.Name
	if f.Recv == nil {
		return name, f.Name.IsExported()
	}
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	switch t := typ.(type) {
	case *ast.IndexExpr:
		typ = t.X
	case *ast.IndexListExpr:
		typ = t.X
	}
	receiver, ok := typ.(*ast.Ident)
	if !ok {
		return fmt.Sprintf("%T.%s", typ, name), true
	}
	implied := slices.Contains([]string{"Error", "Unwrap", "Is", "As"}, name)
	return receiver.Name + "." + name, receiver.IsExported() && f.Name.IsExported() && !implied
}
