package testkit_test

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m.Run, func() {
		if testkit.Role() == "leak" {
			go func() { select {} }()
		}
	})
}

func init() {
	testkit.Child("echo", func() error {
		testkit.Begin()
		testkit.Say("%d %s", os.Getpid(), os.Getenv("PAWL_TEST_WORD"))
		return nil
	})
	testkit.Child("count", func() error {
		for n := 0; ; n++ {
			testkit.Say("%d", n)
		}
	})
	testkit.Child("fail", func() error { return errors.New("on purpose") })
	testkit.Child("leak", func() error { return nil })
}

func TestChildren(t *testing.T) {
	a, b := testkit.Start(t, "echo", "PAWL_TEST_WORD=a"), testkit.Start(t, "echo", "PAWL_TEST_WORD=b")
	testkit.Ready(a, b)
	require.Equal(t, []string{pid(a) + " a"}, a.Wait())
	b.Expect(pid(b) + " b")
	require.Empty(t, b.Wait())
}

func TestKilledChild(t *testing.T) {
	p := testkit.Start(t, "count")
	p.Expect("0")
	p.Expect("1")
	rest := p.Kill()
	require.Equal(t, "2", append(rest, "2")[0])
	require.True(t, slices.IsSortedFunc(rest, func(a, b string) int { return len(a) - len(b) }))
}

func TestLimitedChild(t *testing.T) {
	p := testkit.Start(t, "echo")
	p.Expect("ready")
	p.Limit(0)
	_, ok := p.Next() // it waits until it is killed
	require.False(t, ok)
	require.Empty(t, p.Kill())
}

// A failing child fails its parent's test, with the reason.
func TestFailedChild(t *testing.T) {
	for role, want := range map[string]string{
		"fail":      "on purpose",
		"leak":      "goroutines outlived the tests",
		"unheard":   `no role is named "unheard"`,
		"TestChild": "only as a child",
	} {
		t.Run(role, func(t *testing.T) {
			f := testkit.Failure(t, func(t testing.TB) { testkit.Start(t, role).Wait() })
			require.Contains(t, f, want)
		})
	}
}

// TestChild is a test that runs in a child.
func TestChild(t *testing.T) {
	switch testkit.Role() {
	case "":
		p := testkit.Start(t, "TestChild", "PAWL_TEST_WORD=yes")
		testkit.Ready(p)
		p.Expect("in TestChild")
		require.Equal(t, []string{"PASS"}, p.Wait())
	default:
		if os.Getenv("PAWL_TEST_WORD") != "yes" {
			t.Log("only as a child")
			os.Stderr.WriteString("only as a child\n")
			t.FailNow()
		}
		testkit.Begin()
		testkit.Say("in %s", t.Name())
	}
}

func TestEventually(t *testing.T) {
	n := 0
	testkit.Eventually(t, func() bool { n++; return n == 3 })
	require.Equal(t, 3, n)
	f := testkit.Failure(t, func(t testing.TB) {
		testkit.EventuallyWithin(t, time.Millisecond, func() bool { return false }, "never")
	})
	require.Equal(t, "not true within 1ms: never", f)
}

func TestReceive(t *testing.T) {
	c := make(chan int, 1)
	c <- 7
	require.Equal(t, 7, testkit.Receive(t, c))
	close(c)
	require.Zero(t, testkit.Receive(t, c))
}

func TestWithin(t *testing.T) {
	ctx := t.Context()
	t.Run("owner", func(t *testing.T) {
		ctx = testkit.Within(t, time.Minute)
		t.Cleanup(func() { require.NoError(t, ctx.Err(), "the context lives during cleanup functions") })
	})
	require.Error(t, ctx.Err())
}

func TestTimes(t *testing.T) {
	short := testkit.Short
	defer func() { testkit.Short = short }()
	for _, c := range []struct {
		short    bool
		variable string
		want     int
	}{{false, "", 10}, {true, "", 3}, {false, "50", 50}, {true, "50", 50}} {
		testkit.Short = c.short
		t.Setenv("PAWL_TEST_TIMES", c.variable)
		require.Equal(t, c.want, testkit.Times(10, 3, "PAWL_TEST_TIMES"))
	}
	t.Setenv("PAWL_TEST_TIMES", "many")
	require.PanicsWithValue(t, `PAWL_TEST_TIMES must be a number, got "many"`, func() { testkit.Times(1, 1, "PAWL_TEST_TIMES") })
}

func TestNow(t *testing.T) {
	a := testkit.Now()
	time.Sleep(time.Millisecond)
	require.Greater(t, testkit.Now(), a)
}

func pid(p *testkit.Process) string { return strconv.Itoa(p.PID()) }
