package tiny

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestSum(t *testing.T) {
	t.Run("small", func(t *testing.T) {
		if Sum(1, 2) != 3 {
			t.Error("1 + 2 is not 3")
		}
	})
}

func TestWait(t *testing.T) { Wait(make(chan struct{})) }

func TestGreeting(t *testing.T) {
	if greeting != "hello" {
		t.Error(greeting)
	}
}

// TestBuilt runs the program that it builds.
func TestBuilt(t *testing.T) {
	out, err := exec.Command("go", "run", "./hello").Output()
	if err != nil || strings.TrimSpace(string(out)) != "hello" {
		t.Errorf("%s, %v", out, err)
	}
}

func TestSkipped(t *testing.T) { t.Skip("not today") }

func TestFailing(t *testing.T) { t.Error("always") }

// TestExit ends the process before any test has failed.
func TestExit(t *testing.T) {
	if Untested() != 42 {
		os.Exit(3)
	}
}
