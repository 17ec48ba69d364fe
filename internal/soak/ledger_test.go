//go:build linux

package soak_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
)

// ledger holds what the server processes reported about their calls. A line of a process is
// "> verb words" before a call, "= verb words" after one that was acknowledged, and "! verb words"
// after one that was refused. A call without a second line has an unknown outcome.
//
//	inc, push, fold ID    a change of a session
//	patch ID WRITER N     WRITER set its number in a session to N
//	move A B              a transfer between two accounts
//	hold ID               a change of a till
//	set ID RESULT         a change of a basket that only this writer changes
//	event ID, run KEY     an event was appended, a run was started
type ledger struct {
	mu      sync.Mutex // protects the fields below
	tallies map[string]*tally
	marks   map[string]*mark
	cells   map[string]*cell
	verbs   map[string]*tally // calls, by verb
}

// tally counts the changes of one sort of one scope, or of one event or run.
type tally struct{ sent, acked, refused int }

// mark is a number that one writer after another sets, each higher than the last.
type mark struct {
	acked int64
	open  []int64 // numbers of later calls without an answer
}

// cell is a value that one writer sets. Before the first call it is "gone".
type cell struct {
	acked string
	open  []string // values of later calls without an answer
}

func newLedger() *ledger {
	return &ledger{tallies: map[string]*tally{}, marks: map[string]*mark{}, cells: map[string]*cell{}, verbs: map[string]*tally{}}
}

// reported are the verbs that servers report.
var reported = []string{"inc", "push", "fold", "patch", "move", "hold", "set", "event", "run"}

// missing returns the verbs of which no call was acknowledged.
func (l *ledger) missing() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(reported), func(verb string) bool { return entry(l.verbs, verb).acked > 0 })
}

// calls counts all calls.
func (l *ledger) calls() (all tally) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.verbs {
		all.sent, all.acked, all.refused = all.sent+v.sent, all.acked+v.acked, all.refused+v.refused
	}
	return all
}

// entry returns the entry of a key, which is made if there is none.
func entry[T any](m map[string]*T, key string) *T {
	if m[key] == nil {
		m[key] = new(T)
	}
	return m[key]
}

// add adds a line of a process.
func (l *ledger) add(line string) error {
	words := strings.Fields(line)
	if len(words) < 3 || !slices.Contains([]string{">", "=", "!"}, words[0]) {
		return fmt.Errorf("unexpected line of a server: %q", line)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	entry(l.verbs, words[1]).count(words[0])
	switch sign, verb, rest := words[0], words[1], words[2:]; verb {
	case "patch":
		n, err := strconv.ParseInt(rest[2], 10, 64)
		if err != nil {
			return err
		}
		switch m := entry(l.marks, rest[0]+" "+rest[1]); sign {
		case ">":
			m.open = append(m.open, n)
		case "=":
			m.acked, m.open = n, nil
		case "!":
			m.open = m.open[:len(m.open)-1]
		}
	case "set":
		c := entry(l.cells, rest[0])
		switch sign {
		case ">":
			c.open = append(c.open, rest[1])
		case "=":
			c.acked, c.open = rest[1], nil
		case "!":
			c.open = c.open[:len(c.open)-1]
		}
	default:
		for _, key := range rest {
			entry(l.tallies, verb+" "+key).count(sign)
		}
	}
	return nil
}

// count counts a line with a sign.
func (t *tally) count(sign string) {
	switch sign {
	case ">":
		t.sent++
	case "=":
		t.acked++
	case "!":
		t.refused++
	}
}

// found is what the store has.
type found struct {
	tallies map[string]int    // as in ledger.tallies
	marks   map[string]int64  // as in ledger.marks
	cells   map[string]string // as in ledger.cells; baskets that are gone are missing
}

// check compares the store with the answers of the calls: every acknowledged change is there once,
// one without an answer at most once, and nothing else.
func (l *ledger) check(t testing.TB, f found) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var wrong []string
	fault := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for key, n := range f.tallies {
		if l.tallies[key] == nil {
			fault("%s: %d found, none was sent", key, n)
		}
	}
	for key, want := range l.tallies {
		if n := f.tallies[key]; n < want.acked || n > want.sent-want.refused {
			fault("%s: %d found of %+v", key, n, *want)
		}
	}
	for key, n := range f.marks {
		if l.marks[key] == nil {
			fault("patch %s: %d found, none was sent", key, n)
		}
	}
	for key, want := range l.marks {
		if n := f.marks[key]; n != want.acked && !slices.Contains(want.open, n) {
			fault("patch %s: %d found of %+v", key, n, *want)
		}
	}
	for key, value := range f.cells {
		if l.cells[key] == nil {
			fault("set %s: %s found, none was sent", key, value)
		}
	}
	for key, want := range l.cells {
		value, ok := f.cells[key]
		if !ok {
			value = "gone"
		}
		possible := append([]string{want.acked}, want.open...)
		if possible[0] == "" {
			possible[0] = "gone"
		}
		if !slices.Contains(possible, value) {
			fault("set %s: %s found, want one of %s", key, value, possible)
		}
	}
	slices.Sort(wrong)
	require.Empty(t, wrong[:min(len(wrong), 20)], "%d differences between the store and the answers", len(wrong))
}

// The comparison notices lost, doubled and invented changes.
func TestLedger(t *testing.T) {
	l := newLedger()
	for _, line := range strings.Split(strings.TrimSpace(`
> inc 1
= inc 1
> inc 1
! inc 1
> inc 1
> move 1 2
= move 1 2
> patch 1 w 5
= patch 1 w 5
> patch 1 w 6
> patch 1 w 7
! patch 1 w 7
> set 1 7
= set 1 7
> set 1 gone
`), "\n") {
		require.NoError(t, l.add(line))
	}
	right := func() found {
		return found{map[string]int{"inc 1": 1, "move 1": 1, "move 2": 1}, map[string]int64{"1 w": 5}, map[string]string{"1": "7"}}
	}
	l.check(t, right())
	also := right()
	also.tallies["inc 1"], also.marks["1 w"] = 2, 6
	delete(also.cells, "1")
	l.check(t, also)
	for name, spoil := range map[string]func(f found){
		"lost":           func(f found) { f.tallies["inc 1"] = 0 },
		"doubled":        func(f found) { f.tallies["inc 1"] = 3 },
		"torn":           func(f found) { f.tallies["move 2"] = 0 },
		"invented":       func(f found) { f.tallies["run x"] = 1 },
		"lost patch":     func(f found) { f.marks["1 w"] = 4 },
		"refused patch":  func(f found) { f.marks["1 w"] = 7 },
		"invented patch": func(f found) { f.marks["1 v"] = 4 },
		"another basket": func(f found) { f.cells["1"] = "8" },
		"basket unknown": func(f found) { f.cells["2"] = "8" },
	} {
		t.Run(name, func(t *testing.T) {
			f := right()
			spoil(f)
			require.Contains(t, testkit.Failure(t, func(t testing.TB) { l.check(t, f) }), "differences")
		})
	}
	require.Error(t, l.add("panic: something"))
	require.Equal(t, tally{sent: 9, acked: 4, refused: 2}, l.calls())
	require.Equal(t, []string{"push", "fold", "hold", "event", "run"}, l.missing())
}
