package need_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/need"
	"github.com/pawl-go/pawl/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m.Run) }

func TestRequired(t *testing.T) {
	for list, want := range map[string]bool{
		"":                 false,
		"postgres":         true,
		"strace,postgres":  true,
		"postgres strace":  true,
		"strace, postgres": true,
		"postgresql":       false,
	} {
		t.Setenv(need.Variable, list)
		require.Equal(t, want, need.Required("postgres"), list)
	}
}

// outcome records how Missing ended a test.
type outcome struct {
	testing.TB
	skipped, failed bool
}

func (o *outcome) Skip(...any)           { o.skipped = true }
func (o *outcome) Fatalf(string, ...any) { o.failed = true }

func TestMissing(t *testing.T) {
	// The test continues after Skip and Fatalf of an outcome, so it sees both if both are called.
	for list, want := range map[string]bool{"": false, "postgres": false, "unobtainium": true} {
		t.Setenv(need.Variable, list)
		o := &outcome{TB: t}
		need.Missing(o, "unobtainium", "there is none", "mine it")
		require.Equal(t, want, o.failed, list)
		if !want {
			require.True(t, o.skipped, list)
		}
	}
}

func TestStrace(t *testing.T) {
	output, err := exec.Command(need.Strace(t), "-o", "/dev/stdout", "true").Output()
	require.NoError(t, err)
	require.Contains(t, string(output), "execve(")
}
