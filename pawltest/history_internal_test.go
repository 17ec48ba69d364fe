package pawltest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// verb is a call of the random histories: "add" adds by, "set" sets by, "read" reads.
type verb struct {
	name string
	by   int
}

// answer is the answer of a call, and the state of the model.
type answer struct {
	version uint64
	value   int
}

// apply returns the value that a verb makes of a value.
func (v verb) apply(value int) int {
	switch v.name {
	case "add":
		return value + v.by
	case "set":
		return v.by
	}
	return value
}

// specification is a scope as porcupine sees it. A write moves the version by one, and may leave it
// where it changes nothing.
var specification = porcupine.Model{
	Init: func() any { return answer{version: 1} },
	Step: func(state, input, output any) (bool, any) {
		now, v, got := state.(answer), input.(verb), output.(answer)
		next := v.apply(now.value)
		if v.name != "read" && got == (answer{now.version + 1, next}) {
			return true, got
		}
		return got == now && next == now.value, now
	},
}

// The verdict of a History is that of porcupine, which searches for an order of the calls, on
// histories that are right and on histories with one wrong answer.
func TestHistoryAgreesWithSearch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	verdicts := map[bool]int{}
	for range 20_000 {
		ops := randomHistory(rng)
		if rng.IntN(2) == 0 {
			spoil(rng, ops)
		}
		h := historyOf(ops)
		want := porcupine.CheckOperations(specification, ops)
		verdicts[want]++
		if err := h.replay(); (err == nil) != want {
			t.Fatalf("porcupine says %v, the history says %v, of %+v", want, err, ops)
		}
	}
	require.Greater(t, verdicts[true], 1000)
	require.Greater(t, verdicts[false], 1000)
}

// A write of unknown outcome explains one version. A right history stays right when writes lose
// their answers.
func TestHistoryAllowsUnknownOutcomes(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		var known, unknown []porcupine.Operation
		ops := randomHistory(rng)
		for _, op := range ops {
			if op.Input.(verb).name != "read" && rng.IntN(3) == 0 {
				unknown = append(unknown, op)
			} else {
				known = append(known, op)
			}
		}
		h := historyOf(known)
		h.unknown = historyOf(unknown).calls[1:]
		if err := h.replay(); err != nil {
			t.Fatalf("%v, of %+v without the answers of %+v", err, ops, unknown)
		}
	}
}

// A write of unknown outcome explains a version only by what its model makes of the state before.
func TestHistoryFindsAnUpdateLostInDoubt(t *testing.T) {
	for value, right := range map[int]bool{0: false, 1: false, 2: true, 3: false} {
		h := historyOf([]porcupine.Operation{
			{Input: verb{"add", 1}, Output: answer{2, 1}, Call: 20, Return: 30},
			{Input: verb{"read", 0}, Output: answer{3, value}, Call: 40, Return: 50},
		})
		h.unknown = historyOf([]porcupine.Operation{{Input: verb{"add", 1}, Output: answer{}, Call: 10, Return: 11}}).calls[1:]
		if err := h.replay(); (err == nil) != right {
			t.Errorf("%d after two adds, one of them in doubt: %v", value, err)
		}
	}
}

// historyOf returns the history that recorded ops.
func historyOf(ops []porcupine.Operation) *History[int] {
	h := &History[int]{calls: []call[int]{{name: "the start", Snapshot: pawl.NewSnapshot(0, 1, time.Time{})}}}
	for i, op := range ops {
		v, got := op.Input.(verb), op.Output.(answer)
		c := call[int]{name: fmt.Sprint(v.name, i), start: int(op.Call), end: int(op.Return), Snapshot: pawl.NewSnapshot(got.value, got.version, time.Time{})}
		if v.name != "read" {
			c.model = v.apply
		}
		h.calls = append(h.calls, c)
	}
	return h
}

// randomHistory returns a few calls that overlap at random, in the order of their effects.
func randomHistory(rng *rand.Rand) (ops []porcupine.Operation) {
	state := answer{version: 1}
	moment := int64(0)
	for range 1 + rng.IntN(7) {
		v := []verb{{"add", 1}, {"add", 0}, {"set", rng.IntN(3)}, {"read", 0}}[rng.IntN(4)]
		if next := v.apply(state.value); next != state.value || v.name != "read" && rng.IntN(8) == 0 {
			state = answer{state.version + 1, next}
		}
		moment += 10 // the effect; the call begins before it and ends after it
		ops = append(ops, porcupine.Operation{Input: v, Output: state, Call: moment - rng.Int64N(25), Return: moment + 1 + rng.Int64N(25)})
	}
	distinct(ops)
	return ops
}

// spoil makes one answer or the moments of one call wrong.
func spoil(rng *rand.Rand, ops []porcupine.Operation) {
	op := &ops[rng.IntN(len(ops))]
	got := op.Output.(answer)
	switch rng.IntN(4) {
	case 0:
		got.version++
	case 1:
		got.value += 1 - 2*rng.IntN(2)
	case 2:
		got = ops[rng.IntN(len(ops))].Output.(answer)
	case 3:
		op.Call, op.Return = op.Call-2000, op.Return-2000
	}
	op.Output = got
}

// distinct gives each start and end a moment of its own, above 0, and keeps their order. Of two
// equal moments the start comes first, so that the calls overlap.
func distinct(ops []porcupine.Operation) {
	const least = 64
	for i := range ops {
		ops[i].Call = (ops[i].Call+least)*100 + int64(i)
		ops[i].Return = (ops[i].Return+least)*100 + 50 + int64(i)
	}
}
