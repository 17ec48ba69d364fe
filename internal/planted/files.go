package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
)

// Most of the time for a bug is the compilation of the tests, and most test files have nothing to do
// with it. unneeded returns the test files in a folder that the tests of a -run expression do not
// need. A file is needed if it declares one of the tests, TestMain, an init function or no test at
// all, or a name that occurs in a needed file. So a file that is missing by mistake does not compile;
// it cannot make a test fail.
func unneeded(folder, run string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(run, "/")
	wanted, err := regexp.Compile(first)
	if err != nil {
		return nil, err
	}
	files := make([]testFile, len(paths))
	declares := make(map[string][]int) // the files that declare a name
	var next []int
	for i, path := range paths {
		if files[i], err = parseTestFile(path, wanted); err != nil {
			return nil, err
		}
		for name := range files[i].declared {
			declares[name] = append(declares[name], i)
		}
		if files[i].first {
			next = append(next, i)
		}
	}
	needed := make(map[int]bool)
	for len(next) > 0 {
		i := next[len(next)-1]
		next = next[:len(next)-1]
		if needed[i] {
			continue
		}
		needed[i] = true
		for name := range files[i].used {
			next = append(next, declares[name]...)
		}
	}
	var rest []string
	for i, path := range paths {
		if !needed[i] {
			rest = append(rest, path)
		}
	}
	return rest, nil
}

// testFile has the names that a test file declares and uses, those of methods with a dot in front.
type testFile struct {
	declared, used map[string]bool
	first          bool // it is needed for itself
}

func parseTestFile(path string, wanted *regexp.Regexp) (testFile, error) {
	f := testFile{declared: make(map[string]bool), used: make(map[string]bool)}
	parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return f, err
	}
	tests := 0
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil { // a type may satisfy an interface by methods in another file
				f.declared["methods of "+receiver(d.Recv.List[0].Type)], f.declared["."+d.Name.Name] = true, true
				continue
			}
			f.declared[d.Name.Name] = true
			if isTest(d.Name.Name) {
				tests++
				f.first = f.first || wanted.MatchString(d.Name.Name)
			}
			f.first = f.first || d.Name.Name == "init" || d.Name.Name == "TestMain"
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					f.declared[s.Name.Name], f.used["methods of "+s.Name.Name] = true, true
				case *ast.ValueSpec:
					for _, name := range s.Names {
						f.declared[name.Name] = true
					}
				}
			}
		}
	}
	f.first = f.first || tests == 0
	for _, name := range parsed.Unresolved { // names that the file does not declare
		f.used[name.Name] = true
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			f.used["."+s.Sel.Name] = true
		}
		return true
	})
	return f, nil
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
