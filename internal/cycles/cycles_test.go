package cycles_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/cycles"
)

func tx(name string, begin, end int64, ops ...cycles.Op) cycles.Tx {
	return cycles.Tx{Name: name, Begin: begin, End: end, Ops: ops}
}

func unanswered(t cycles.Tx) cycles.Tx {
	t.Outcome = cycles.Unknown
	return t
}

func refused(t cycles.Tx) cycles.Tx {
	t.Outcome = cycles.Refused
	return t
}

func add(key string, value int64) cycles.Op     { return cycles.Op{Key: key, Append: value} }
func see(key string, values ...int64) cycles.Op { return cycles.Op{Key: key, Read: values} }

// Each anomaly is found, under its name.
func TestAnomalies(t *testing.T) {
	for _, test := range []struct {
		name, kind string
		history    []cycles.Tx
	}{
		{"lost update", "rw ww", []cycles.Tx{ // both read nothing, and the second append goes on top of the first
			tx("a", 0, 10, see("x"), add("x", 1)),
			tx("b", 0, 10, see("x"), add("x", 2)),
			tx("end", 20, 21, see("x", 1, 2)),
		}},
		{"overwritten", "lost", []cycles.Tx{
			tx("a", 0, 10, add("x", 1)),
			tx("b", 0, 10, add("x", 2)),
			tx("end", 20, 21, see("x", 2)),
		}},
		{"write skew", "rw rw", []cycles.Tx{
			tx("a", 0, 10, see("x"), add("y", 1)),
			tx("b", 0, 10, see("y"), add("x", 2)),
			tx("end", 20, 21, see("x", 2), see("y", 1)),
		}},
		{"G1c: each sees the other", "wr wr", []cycles.Tx{
			tx("a", 0, 10, add("x", 1), see("y", 2)),
			tx("b", 0, 10, add("y", 2), see("x", 1)),
			tx("end", 20, 21, see("x", 1), see("y", 2)),
		}},
		{"G0: writes in two orders", "ww ww", []cycles.Tx{
			tx("a", 0, 10, add("x", 1), add("y", 1)),
			tx("b", 0, 10, add("x", 2), add("y", 2)),
			tx("end", 20, 21, see("x", 1, 2), see("y", 2, 1)),
		}},
		{"read of two moments", "rw wr", []cycles.Tx{
			tx("a", 0, 10, add("x", 1), add("y", 1)),
			tx("b", 0, 10, see("x"), see("y", 1)),
			tx("end", 20, 21, see("x", 1), see("y", 1)),
		}},
		{"stale read", "rt rw", []cycles.Tx{
			tx("a", 0, 10, add("x", 1)),
			tx("b", 11, 12, see("x")),
			tx("end", 20, 21, see("x", 1)),
		}},
		{"write without an answer appears before its call", "rt wr", []cycles.Tx{
			tx("a", 0, 10, see("x", 1)),
			unanswered(tx("b", 11, 12, add("x", 1))),
			tx("end", 20, 21, see("x", 1)),
		}},
		{"G1a: refused and there", "refused", []cycles.Tx{
			refused(tx("a", 0, 10, add("x", 1))),
			tx("end", 20, 21, see("x", 1)),
		}},
		{"G1b: seen in the middle", "part", []cycles.Tx{
			tx("a", 0, 10, add("x", 1), add("x", 2)),
			tx("b", 0, 10, see("x", 1)),
			tx("end", 20, 21, see("x", 1, 2)),
		}},
		{"half without an answer", "part", []cycles.Tx{
			unanswered(tx("a", 0, 10, add("x", 1), add("y", 1))),
			tx("end", 20, 21, see("x", 1), see("y")),
		}},
		{"not its own append", "part", []cycles.Tx{
			tx("a", 0, 10, add("x", 1), see("x")),
			tx("end", 20, 21, see("x", 1)),
		}},
		{"its own append before it", "early", []cycles.Tx{ // its function ran again after its commit
			tx("a", 0, 10, see("x", 1), add("x", 1)),
			tx("end", 20, 21, see("x", 1)),
		}},
		{"its own append twice", "doubled", []cycles.Tx{
			tx("a", 0, 10, add("x", 1), see("x", 1, 1)),
			tx("b", 0, 10, see("x", 1, 1)),
			tx("end", 20, 21, see("x", 1)),
		}},
		{"its own append twice, for itself", "early", []cycles.Tx{
			tx("a", 0, 10, add("x", 1), see("x", 1, 1)),
			tx("end", 20, 21, see("x", 1)),
		}},
		{"appends in the wrong order", "order", []cycles.Tx{
			tx("a", 0, 10, add("x", 1), add("x", 2)),
			tx("b", 0, 10, add("x", 3)),
			tx("end", 20, 21, see("x", 2, 1, 3)),
		}},
		{"doubled", "doubled", []cycles.Tx{
			tx("a", 0, 10, add("x", 1)),
			tx("end", 20, 21, see("x", 1, 1)),
		}},
		{"two orders", "order", []cycles.Tx{
			tx("a", 0, 10, add("x", 1)),
			tx("b", 0, 10, add("x", 2)),
			tx("c", 0, 10, see("x", 2)),
			tx("end", 20, 21, see("x", 1, 2)),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var found *cycles.Anomaly
			require.ErrorAs(t, cycles.Check(test.history), &found)
			require.Equal(t, test.kind, found.Kind, found.Text)
		})
	}
}

// Histories of one moment after another are fine, also with transactions that were refused or have no
// answer.
func TestSerializable(t *testing.T) {
	require.NoError(t, cycles.Check([]cycles.Tx{
		tx("a", 0, 10, see("x"), add("x", 1), see("x", 1), add("y", 1)),
		refused(tx("b", 0, 12, see("x", 1), add("x", 2))),
		unanswered(tx("c", 5, 13, add("x", 3), add("y", 3))),
		unanswered(tx("d", 5, 13, add("x", 4), add("y", 4))),
		tx("e", 5, 40, see("x", 1), add("x", 5)),
		tx("end", 50, 51, see("x", 1, 5, 3), see("y", 1, 3)),
	}))
}
