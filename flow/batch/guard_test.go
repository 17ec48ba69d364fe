package batch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sources returns the files of the package without its tests.
func sources(t testing.TB) (files []*ast.File, set *token.FileSet) {
	t.Helper()
	set = token.NewFileSet()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".go") && !strings.HasSuffix(e.Name(), "_test.go") {
			f, err := parser.ParseFile(set, e.Name(), nil, 0)
			require.NoError(t, err)
			files = append(files, f)
		}
	}
	return files, set
}

// Every constant of type point is reached by the code, the code names no other point, and a process
// is killed at each. Proves CANCEL-11.
func TestEveryPointIsKilled(t *testing.T) {
	files, set := sources(t)
	points, calls := map[string]string{}, map[string]int{} // by the name of the constant
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if typ, ok := n.Type.(*ast.Ident); ok && typ.Name == "point" {
					for i, name := range n.Names {
						value, err := strconv.Unquote(n.Values[i].(*ast.BasicLit).Value)
						require.NoError(t, err)
						points[name.Name] = value
					}
				}
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "hook" {
					name, ok := n.Args[0].(*ast.Ident)
					require.True(t, ok, "%s: the point is no constant", set.Position(n.Pos()))
					calls[name.Name]++
				}
			}
			return true
		})
	}
	require.NotEmpty(t, points)
	require.Equal(t, slices.Sorted(maps.Keys(points)), slices.Sorted(maps.Keys(calls)), "points and the calls of hook")
	killed := map[string]bool{}
	for _, v := range matrix(references(t), false) {
		killed[v.Point] = true
	}
	require.ElementsMatch(t, slices.Collect(maps.Values(points)), slices.Collect(maps.Keys(killed)))
}

// A status and the state of an item are written only by the functions that test the transition.
// Proves CANCEL-1, CANCEL-2.
func TestNoUnconditionalStatus(t *testing.T) {
	files, set := sources(t)
	written := map[string]int{} // by field
	for _, f := range files {
		for _, decl := range f.Decls {
			fn, isFunc := decl.(*ast.FuncDecl)
			become := isFunc && fn.Name.Name == "become"
			ast.Inspect(decl, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for _, left := range n.Lhs {
						if sel, ok := left.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Label" || sel.Sel.Name == "State") {
							require.True(t, become, "%s: %s is written outside of become", set.Position(n.Pos()), sel.Sel.Name)
							written[sel.Sel.Name]++
						}
					}
				case *ast.CompositeLit:
					checkLiteral(t, set, n)
				case *ast.BasicLit: // the name of the field, for a data verb
					require.NotEqual(t, `"label"`, n.Value, "%s", set.Position(n.Pos()))
				case *ast.UnaryExpr: // a pointer to the field
					sel, ok := n.X.(*ast.SelectorExpr)
					require.False(t, ok && n.Op == token.AND && (sel.Sel.Name == "Label" || sel.Sel.Name == "State"), "%s", set.Position(n.Pos()))
				}
				return true
			})
		}
	}
	require.Equal(t, map[string]int{"Label": 1, "State": 1}, written)
}

// checkLiteral checks that a new document has no status, and that a new item is waiting.
func checkLiteral(t testing.TB, set *token.FileSet, lit *ast.CompositeLit) {
	t.Helper()
	typ := lit.Type
	if index, ok := typ.(*ast.IndexListExpr); ok { // item[I, A]
		typ = index.X
	}
	name, ok := typ.(*ast.Ident)
	if !ok || name.Name != "record" && name.Name != "item" {
		return
	}
	for _, elt := range lit.Elts {
		field, ok := elt.(*ast.KeyValueExpr)
		require.True(t, ok, "%s: a field without a name", set.Position(elt.Pos()))
		if key := field.Key.(*ast.Ident).Name; key == "Label" || key == "State" {
			value, ok := field.Value.(*ast.Ident)
			require.True(t, ok && name.Name == "item" && value.Name == "Waiting", "%s", set.Position(elt.Pos()))
		}
	}
}
