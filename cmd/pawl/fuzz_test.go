package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/open"
)

// unowned is a store that commands close without an effect.
type unowned struct{ *memory.Store }

func (unowned) Close() error { return nil }

// Any arguments lead to one of the documented exit codes, and an error is explained. Each line of the
// input is an argument.
func FuzzArguments(f *testing.F) {
	for _, args := range []string{
		"", "ls", "ls\nthing\n--label\nopen\n--json", "get\nthing/a", "get\nthing/%zz\n--json", "rm\nthing/a\n--yes", "export\nthing", "import\n-",
		"copy\nmem:a\nmem:b", "runs\n--state\nfailed", "streams\nann", "erase\nann\n--yes", "doctor", "watch\nthing/a", "help\nls", "-store\nmem:b\nls", "--\nls", "completion\nbash",
	} {
		f.Add(args, "")
	}
	f.Add("import\n-", `{"kind":"thing","id":"a","version":1,"doc":{}}`)
	f.Fuzz(func(t *testing.T, text, in string) {
		args := strings.Split(text, "\n")
		if slices.Contains(args, "inspect") { // it serves until it is interrupted
			return
		}
		t.Setenv(Variable, "mem:a")
		t.Chdir(t.TempDir())
		stores := map[string]*memory.Store{"a": memory.New(), "b": memory.New()}
		_, err := stores["a"].Commit(t.Context(), persist.Commit{ID: "w.1", Writes: []persist.Write{
			{Key: persist.Key{Kind: "thing", ID: "a"}, Version: 1, Doc: []byte(`{"n":1}`), Label: "open"},
		}})
		require.NoError(t, err)
		schemes := open.Schemes{"mem": func(_ context.Context, location string, _ open.Options) (persist.Store, error) {
			if s := stores[strings.TrimPrefix(location, "mem:")]; s != nil {
				return unowned{s}, nil
			}
			return nil, persist.ErrNotFound
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // of a command that follows changes
		defer cancel()
		var out, errOut bytes.Buffer
		a := &app{schemes: schemes, in: strings.NewReader(in), out: newOutput(&out), errOut: &errOut, settling: time.Millisecond}
		code := a.execute(ctx, args)
		require.Contains(t, []int{exitOK, exitNegative, exitUsage, exitUnavailable, exitSchema, exitUnknown, exitInterrupted}, code, "%q: %s", args, &errOut)
		if code != exitOK {
			require.NotEmpty(t, errOut.String(), "%q: %d", args, code)
		}
		require.NotContains(t, errOut.String(), "\x1b", "%q", args)
	})
}
