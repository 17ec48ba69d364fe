package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if os.Getenv(processEnv) != "" { // a process that demo has started
		main()
		return
	}
	testkit.Main(m.Run)
}

// The two processes spend all credits, and no more.
func TestDemo(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, demo(t.Context(), &out, ""))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Equal(t, "30 credits, 10 bought for 3 each, 0 left, 10 orders", lines[len(lines)-1])
	require.Contains(t, out.String(), "process 1: ")
	require.Contains(t, out.String(), "process 2: ")
}
