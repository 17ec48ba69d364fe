package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// fair asserts that a side does its work: no unit fails, and every acknowledged unit is present.
func fair(t *testing.T, s side, l load) {
	t.Helper()
	b := newBench(t.Context(), true)
	defer b.close()
	m, err := b.once(s, l)
	require.NoError(t, err, s.name)
	require.EqualValues(t, l.writers*l.each, m.acknowledged, s.name)
	require.Zero(t, m.failed, s.name)
	require.Zero(t, m.lost, s.name)
}

func TestContendersInMemory(t *testing.T) {
	many, one := load{writers: 8, each: 50}, load{writers: 1, each: 100}
	contend(t, increments, many)
	contend(t, steps, many)
	contend(t, messages, many)
	contend(t, patches, one) // its count is right for one writer only
	contend(t, sleeps, load{writers: 8, each: 3})
	for _, s := range []side{copySide(increments), copySide(messages), doubling(10), doublingByHand(10)} {
		fair(t, s, one)
	}
	fair(t, copySide(patches), one)
}

func contend[T any](t *testing.T, sh shape[T], l load) {
	t.Run(sh.name+", "+sh.verb, func(t *testing.T) {
		for _, s := range append(copying(sh), atomicSide(sh), dataSide(sh)) {
			fair(t, s, l)
		}
	})
}

// A copy by hand shares nothing with the original, so that readers of a peer are isolated as readers
// of Pawl are.
func TestCopiesByHand(t *testing.T) {
	separate(t, increments)
	separate(t, steps)
	separate(t, messages)
}

func separate[T any](t *testing.T, sh shape[T]) {
	t.Helper()
	s := sh.start()
	sh.change(s, 0, 0)
	next := sh.clone(s)
	require.Equal(t, s, next)
	sh.change(next, 0, 1)
	require.EqualValues(t, 1, sh.count(s))
	require.EqualValues(t, 2, sh.count(next))
}

// Appending by hand does not change older states, although they share the array.
func TestSharedArray(t *testing.T) {
	g := new(guarded[thread])
	g.current.Store(longThread(3))
	var states []*thread
	for i := range 100 {
		states = append(states, g.current.Load())
		g.update(func(next *thread, _, i int) { next.Messages = append(next.Messages, message{Text: title(i)}) }, 0, i)
	}
	for i, s := range states {
		require.Len(t, s.Messages, 3+i)
		if i > 0 {
			require.Equal(t, title(i-1), s.Messages[2+i].Text)
		}
	}
}

// A caller in a chain of goroutines returns at its timeout.
func TestChainTimesOut(t *testing.T) {
	before := make(chan struct{})
	c := &chain[counter]{clone: increments.clone, last: before}
	c.current.Store(newCounter())
	require.ErrorIs(t, c.mutate(func(s *counter) { s.Count++ }, time.Millisecond), errTooLate)
	close(before)
	require.NoError(t, c.mutate(func(s *counter) { s.Count++ }, time.Minute))
	require.EqualValues(t, 2, c.current.Load().Count)
}

// Processor time counts units that compute, and not units that sleep.
func TestProcessorTime(t *testing.T) {
	if cpuTime() == 0 {
		t.Skip("processor time is not available on this platform")
	}
	const used = 20 * time.Millisecond
	computes := &instance{do: func(context.Context, int, int) error {
		for start := cpuTime(); cpuTime()-start < used; {
		}
		return nil
	}}
	m, err := drive(t.Context(), computes, load{writers: 1, each: 2})
	require.NoError(t, err)
	require.GreaterOrEqual(t, m.cpu, 2*used)
	require.GreaterOrEqual(t, cpuPerOp.of(&m), micros(used))

	asleep := &instance{do: func(context.Context, int, int) error { time.Sleep(10 * used); return nil }}
	m, err = drive(t.Context(), asleep, load{writers: 1, each: 1})
	require.NoError(t, err)
	require.Less(t, m.cpu, 10*used)
}

// allocations returns the allocations of one unit.
func TestAllocations(t *testing.T) {
	b := newBench(t.Context(), true)
	kept := make([]*counter, 4)
	for _, n := range []int{0, 3} {
		s := side{open: func(*bench, load) (*instance, error) {
			return &instance{close: func() {}, do: func(_ context.Context, w, _ int) error {
				for range n {
					kept[w] = newCounter()
				}
				return nil
			}}, nil
		}}
		got, err := b.allocations(s, 4)
		require.NoError(t, err)
		require.InDelta(t, n, got, 0.1)
	}
}

// All units succeed with a kind that has NoTimeout.
func TestUnbounded(t *testing.T) {
	k := inMemory[counter]()
	k.Timeout = pawl.NoTimeout
	fair(t, atomicSideOf("Pawl, NoTimeout", increments, k), load{writers: 4, each: 20})
}
