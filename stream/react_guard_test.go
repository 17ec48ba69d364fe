package stream_test

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

	"github.com/pawl-go/pawl/stream"
)

// reactSources returns the files of the package without its tests.
func reactSources(t testing.TB) (files []*ast.File, set *token.FileSet) {
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

// reactClosing are the points of CloseStream, whose tests are not those of reactions.
var reactClosing = []string{"guarded", "archived", "recorded", "ended"}

// Every constant of type point is reached by the code, the code names no other point, and a process is
// killed at each that belongs to reactions. Proves LEASE-2, LEASE-5.
func TestReactionPointsAreKilled(t *testing.T) {
	files, set := reactSources(t)
	points, calls := map[string]string{}, map[string]bool{} // by the name of the constant
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
					calls[name.Name] = true
				}
			}
			return true
		})
	}
	require.NotEmpty(t, points)
	require.Equal(t, slices.Sorted(maps.Keys(points)), slices.Sorted(maps.Keys(calls)), "points and the calls of hook")
	all := slices.Sorted(maps.Values(points))
	require.ElementsMatch(t, all, stream.ReactPoints(), "the list for tests")
	var killed []string
	for _, v := range reactVisits(t, false) {
		killed = append(killed, v.Point)
	}
	require.ElementsMatch(t, all, append(killed, reactClosing...))
}

// The label of a position is written by become alone, so that no state is skipped. Proves LEASE-4.
func TestReactionLabelIsWrittenOnce(t *testing.T) {
	files, set := reactSources(t)
	written := 0
	for _, f := range files {
		for _, decl := range f.Decls {
			fn, isFunc := decl.(*ast.FuncDecl)
			become := isFunc && fn.Name.Name == "become"
			ast.Inspect(decl, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for _, left := range n.Lhs {
						if sel, ok := left.(*ast.SelectorExpr); ok && sel.Sel.Name == "Label" {
							require.True(t, become, "%s: Label is written outside of become", set.Position(n.Pos()))
							written++
						}
					}
				case *ast.CompositeLit:
					if typ, ok := n.Type.(*ast.Ident); ok && typ.Name == "position" {
						for _, elt := range n.Elts {
							field, ok := elt.(*ast.KeyValueExpr)
							require.True(t, ok && field.Key.(*ast.Ident).Name != "Label", "%s", set.Position(elt.Pos()))
						}
					}
				}
				return true
			})
		}
	}
	require.Equal(t, 1, written)
}
