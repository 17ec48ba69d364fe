package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// fair shows that a side does what it is measured for: nothing fails, and what it acknowledged is there.
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
	contend(t, patches, one) // these count by the one writer's number
	contend(t, records, one)
	fair(t, pingPongSide(), one)
	fair(t, pointerSide(10), one)
}

func contend[T any](t *testing.T, sh shape[T], l load) {
	t.Run(sh.name+", "+sh.verb, func(t *testing.T) {
		sides := append(copying(sh), atomicSide(sh), dataSide(sh), inPlaceSide(sh))
		if sh.ops != nil {
			sides = append(sides, mergeSide(sh))
		}
		for _, s := range sides {
			fair(t, s, l)
		}
	})
}

// A copy by hand shares nothing with what it was made of, so that peers give their readers what Pawl gives its own.
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

// A mutation that waits for too long on a promise tail is given up by its caller.
func TestPromiseTailTimesOut(t *testing.T) {
	before := make(chan struct{})
	tail := &promiseTail[counter]{clone: increments.clone, last: before}
	tail.current.Store(newCounter())
	require.ErrorIs(t, tail.mutate(func(s *counter) { s.Count++ }, time.Millisecond), errTooLate)
	close(before)
	require.NoError(t, tail.mutate(func(s *counter) { s.Count++ }, time.Minute))
	require.EqualValues(t, 2, tail.current.Load().Count)
}

// Allocations are counted to the unit that makes them.
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

// Turning the budget off is done by the kind, and takes effect: nobody comes back early.
func TestUnbounded(t *testing.T) {
	k := inMemory[counter]()
	k.Timeout = pawl.NoTimeout
	fair(t, atomicSideOf("Pawl, NoTimeout", increments, k), load{writers: 4, each: 20})
}
