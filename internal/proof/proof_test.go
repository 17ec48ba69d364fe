package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// Every proof names tests that exist and a planted bug that exists, and no two have one name.
func TestProofsAreCurrent(t *testing.T) {
	var planted strings.Builder
	files, err := filepath.Glob(filepath.Join(root, "internal/planted/bugs*.go"))
	require.NoError(t, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		planted.Write(text)
	}
	names := map[string]bool{}
	for _, p := range proofs {
		require.False(t, names[p.name], p.name)
		names[p.name] = true
		tests := map[string]bool{}
		files, err := filepath.Glob(filepath.Join(root, p.module, p.pkg, "*_test.go"))
		require.NoError(t, err)
		for _, name := range files {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
				tests[m[1]] = true
			}
		}
		for _, test := range p.names() {
			require.True(t, beginsOne(tests, test), "%s: no test matches %s", p.name, test)
		}
		require.NotEmpty(t, p.bug, p.name)
		require.Contains(t, planted.String(), `"`+p.bug+`"`, p.name)
	}
}

// Figures come with the subtest that reported them. A skipped test, or one of the wanted tests without
// figures or a pass, is an error.
func TestRead(t *testing.T) {
	output := []byte(`{"Action":"output","Test":"TestKilled/in_files","Output":"    a_test.go:7: figures: 3 kills\n"}
{"Action":"output","Test":"TestKilled","Output":"    a_test.go:8: figures: 4 kills\n"}
{"Action":"pass","Test":"TestKilled/in_files"}
{"Action":"pass","Test":"TestKilled"}
`)
	r, err := read(output, []string{"TestKilled"})
	require.NoError(t, err)
	require.Equal(t, []string{"in files: 3 kills", "4 kills"}, r.figures)
	require.Contains(t, r.output, "a_test.go:7: figures: 3 kills\n")
	_, err = read(output, []string{"TestKilled", "TestCut"})
	require.ErrorContains(t, err, "TestCut did not pass")

	_, err = read([]byte(`{"Action":"skip","Test":"TestKilled/postgres"}`), []string{"TestKilled"})
	require.ErrorContains(t, err, "TestKilled/postgres was skipped")
	require.ErrorContains(t, err, "TestKilled did not pass")
}

// Variables that make tests shorter are not passed on.
func TestCleared(t *testing.T) {
	require.Equal(t, []string{"HOME=/", "PAWL_TEST_POSTGRES=x"},
		cleared([]string{"HOME=/", "PAWL_SHORT=1", "PAWL_TEST_STORE_ONLY=sqlite", "GOFLAGS=-short", "PAWL_TEST_POSTGRES=x"}))
}

// A published row replaces that of its proof. The others stay, in the order of the proofs.
func TestInsert(t *testing.T) {
	page := "before\n" + tableBegin + "old header\n| crash-files | kept |\n| crash-scopes | old |\n| gone | old |\n" + tableEnd + "after\n"
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	out, err := insert(page, []row{{proofs[0], false, at, result{figures: []string{"a: 1|2 kills", "b: 3 kills"}}}})
	require.NoError(t, err)
	require.Equal(t, "crash-scopes", proofs[0].name)
	require.True(t, strings.HasPrefix(out, "before\n"+tableBegin))
	require.True(t, strings.HasSuffix(out, "\n"+tableEnd+"after\n"))
	require.Regexp(t, `(?s)\| crash-scopes \| SIGKILL .*a: 1\\\|2 kills<br>b: 3 kills .* 2026-01-02, .*\n\| crash-files \| kept \|\n`, out)
	require.NotContains(t, out, "old |")

	_, err = insert("no table", nil)
	require.Error(t, err)
}

// What the tests of a proof printed replaces what they printed before.
func TestReplaceOutput(t *testing.T) {
	first, second := row{proof: proofs[0], result: result{output: "one\n== proof\n"}}, row{proof: proofs[1], result: result{output: "two"}}
	log := replaceOutput("", []row{second, first})
	require.True(t, strings.HasPrefix(log, outputBegin+proofs[0].name+": "))
	require.Contains(t, log, "\none\n== proof\n"+outputBegin+proofs[1].name)
	require.True(t, strings.HasSuffix(log, "\ntwo\n"))
	first.result.output = "three"
	log = replaceOutput(log, []row{first})
	require.NotContains(t, log, "one")
	require.Contains(t, log, "\nthree\n"+outputBegin)
	require.True(t, strings.HasSuffix(log, "\ntwo\n"))

	path := filepath.Join(t.TempDir(), "log.gz")
	text, err := unpack(path)
	require.NoError(t, err)
	require.Empty(t, text)
	packed, err := pack(log)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, packed, 0o600))
	text, err = unpack(path)
	require.NoError(t, err)
	require.Equal(t, log, text)
}
