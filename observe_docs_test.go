package pawl_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// docs/observability.md lists every type of event and every field of Event.
func TestEventsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("docs/observability.md")
	require.NoError(t, err)
	file, err := parser.ParseFile(token.NewFileSet(), "observe.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	types, fields := map[string]bool{}, 0
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for _, name := range n.Names {
				if strings.HasPrefix(name.Name, "Event") {
					types[name.Name] = true
					assert.Contains(t, string(text), "\n| `"+name.Name+"` | ", "no row for it")
				}
			}
		case *ast.TypeSpec:
			if n.Name.Name != "Event" {
				return true
			}
			for _, f := range n.Type.(*ast.StructType).Fields.List {
				fields++
				assert.Regexp(t, `\b`+f.Names[0].Name+`\b`, string(text))
			}
		}
		return true
	})
	assert.Greater(t, len(types), 20)
	assert.Greater(t, fields, 10)
	for _, row := range regexp.MustCompile("\n\\| `(Event[A-Za-z]+)`").FindAllStringSubmatch(string(text), -1) {
		assert.True(t, types[row[1]], "%s does not exist", row[1])
	}
}

// docs/observability.md lists every field of Stats and of the types in it.
func TestStatsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("docs/observability.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Stats\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	fields := 0
	for _, typ := range []reflect.Type{reflect.TypeFor[pawl.Stats](), reflect.TypeFor[pawl.QueueStats](), reflect.TypeFor[pawl.FunctionStats](), reflect.TypeFor[pawl.LeaseStats]()} {
		for i := range typ.NumField() {
			fields++
			assert.Contains(t, section, "`"+typ.Field(i).Name+"`", "%s has that field", typ)
		}
	}
	assert.Greater(t, fields, 15)
}
