package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Most of the time for a bug is the compilation of the tests, and most tests have nothing to do with
// it. prune returns what the test files in a folder become if they declare only what the tests of a
// -run expression need; a file that declares nothing then is "". A declaration is needed if it is
// one of the tests, TestMain, an init function or nameless, or if a needed one mentions its name, be
// it in a string: a child process is told by its name what to run. Methods go with their type. So a
// declaration that is missing by mistake does not compile; it cannot make a test fail.
func prune(folder, run string) (map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(run, "/")
	wanted, err := regexp.Compile(first)
	if err != nil {
		return nil, err
	}
	files := make([]*testFile, len(paths))
	named := make(map[string][]*declaration)
	var next, methods []*declaration
	for i, path := range paths {
		if files[i], err = parseTestFile(path); err != nil {
			return nil, err
		}
		for _, d := range files[i].declarations {
			if d.method != "" {
				methods = append(methods, d)
			}
			for _, name := range d.names {
				named[name] = append(named[name], d)
				if name == "_" || name == "init" || name == "TestMain" || isTest(name) && wanted.MatchString(name) {
					next = append(next, d)
				}
			}
		}
	}
	types := maps.Clone(named)
	for _, d := range methods {
		name := d.receiver
		if types[name] == nil { // of the package that is tested
			name = d.method
		}
		named[name] = append(named[name], d)
	}
	for len(next) > 0 {
		d := next[len(next)-1]
		next = next[:len(next)-1]
		if d.needed {
			continue
		}
		d.needed = true
		for name := range d.mentions {
			next = append(next, named[name]...)
		}
	}
	pruned := make(map[string]string)
	for i, path := range paths {
		pruned[path] = files[i].prune()
	}
	return pruned, nil
}

// testFile is a test file in pieces.
type testFile struct {
	text         string
	imports      []declaration // the name by which the file calls it, and the place of its path
	declarations []*declaration
}

// declaration is a part of a file, from one byte to another.
type declaration struct {
	names    []string
	receiver string // the type of a method
	method   string
	mentions map[string]bool
	imported map[string]bool // names of imports that it mentions
	from, to int
	needed   bool
}

func parseTestFile(name string) (*testFile, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	f := &testFile{text: string(text)}
	for _, spec := range parsed.Imports {
		if d := (declaration{from: offset(spec.Path.Pos()), to: offset(spec.Path.End())}); spec.Name == nil {
			d.names = []string{packageName(spec.Path.Value)}
			f.imports = append(f.imports, d)
		} else if spec.Name.Name != "_" && spec.Name.Name != "." {
			d.names, d.from = []string{spec.Name.Name}, offset(spec.Name.Pos())
			f.imports = append(f.imports, d)
		}
	}
	for _, decl := range parsed.Decls {
		if g, ok := decl.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			continue
		}
		d, doc := declared(decl)
		d.mentions, d.imported = mentions(decl), make(map[string]bool)
		d.from, d.to = offset(decl.Pos()), offset(decl.End())
		for _, name := range parsed.Unresolved { // names that the file does not declare, so imports too
			if decl.Pos() <= name.Pos() && name.End() <= decl.End() {
				d.imported[name.Name] = true
			}
		}
		if doc != nil {
			d.from = offset(doc.Pos())
		}
		f.declarations = append(f.declarations, d)
	}
	return f, nil
}

// declared returns a declaration with the names of d, and the comment in front of it.
func declared(d ast.Decl) (*declaration, *ast.CommentGroup) {
	if f, ok := d.(*ast.FuncDecl); ok {
		if f.Recv == nil {
			return &declaration{names: []string{f.Name.Name}}, f.Doc
		}
		return &declaration{receiver: receiver(f.Recv.List[0].Type), method: f.Name.Name}, f.Doc
	}
	var names []string
	g := d.(*ast.GenDecl)
	for _, s := range g.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			names = append(names, s.Name.Name)
		case *ast.ValueSpec:
			for _, name := range s.Names {
				names = append(names, name.Name)
			}
		}
	}
	return &declaration{names: names}, g.Doc
}

var word = regexp.MustCompile(`[\pL_][\pL_0-9]*`)

// mentions returns all names in a declaration, also those in its strings.
func mentions(d ast.Decl) map[string]bool {
	all := make(map[string]bool)
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			all[n.Name] = true
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				for _, name := range word.FindAllString(n.Value, -1) {
					all[name] = true
				}
			}
		}
		return true
	})
	return all
}

// prune returns the text of f without what is not needed. Lines keep their numbers.
func (f *testFile) prune() string {
	text := []byte(f.text)
	imported, any := make(map[string]bool), false
	for _, d := range f.declarations {
		if d.needed {
			any = true
			maps.Copy(imported, d.imported)
			continue
		}
		for i := d.from; i < d.to; i++ {
			if text[i] != '\n' {
				text[i] = ' '
			}
		}
	}
	if !any {
		return ""
	}
	for i := len(f.imports) - 1; i >= 0; i-- { // from the end: each changes the length
		if d := f.imports[i]; !imported[d.names[0]] {
			spec := f.text[d.from:d.to]
			text = append(text[:d.from:d.from], "_ "+spec[strings.IndexAny(spec, "\"`"):]+string(text[d.to:])...)
		}
	}
	return string(text)
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// packageName guesses the name of a package by its path.
func packageName(quoted string) string {
	full, _ := strconv.Unquote(quoted)
	name := path.Base(full)
	if majorVersion.MatchString(name) {
		name = path.Base(path.Dir(full))
	}
	return strings.TrimPrefix(name, "go-")
}

func isTest(name string) bool {
	return name != "TestMain" && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") || strings.HasPrefix(name, "Example") || strings.HasPrefix(name, "Benchmark"))
}

// receiver returns the name of the type of a receiver.
func receiver(e ast.Expr) string {
	for {
		switch t := e.(type) {
		case *ast.StarExpr:
			e = t.X
		case *ast.IndexExpr:
			e = t.X
		case *ast.IndexListExpr:
			e = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}
