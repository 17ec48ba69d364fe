package pawl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// Peek shows what LastSeen does, through a life: absent, alive, expiring, expired, deleted, anew, closed; and costs nothing.
func TestPeek(t *testing.T) {
	type state struct{ N int }
	for name, inMemory := range map[string]bool{"in memory": true, "persisted": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				kind := pawl.Kind[state]{Name: "peeked", InMemory: inMemory}
				rt, err := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{kind}})
				require.NoError(t, err)
				s := kind.Scope(rt, "1")
				require.Nil(t, s.Peek())

				_, err = s.IncState(ctx, "N", 1)
				require.NoError(t, err)
				require.Equal(t, &state{1}, s.Peek())
				snap, seen := s.LastSeen()
				require.True(t, seen)
				require.Same(t, snap.ReadOnly(), s.Peek(), "it is the state itself")
				require.Zero(t, testing.AllocsPerRun(100, func() { s.Peek() }))

				_, err = s.IncState(ctx, "N", 1, pawl.WithTTL(time.Minute))
				require.NoError(t, err)
				require.Equal(t, &state{2}, s.Peek())
				if inMemory { // the clock of a store is its own
					time.Sleep(time.Minute)
					require.Nil(t, s.Peek(), "expired")
				}
				_, err = s.SetState(ctx, state{3})
				require.NoError(t, err)
				require.Equal(t, &state{3}, s.Peek())
				require.NoError(t, s.Delete(ctx))
				require.Nil(t, s.Peek(), "deleted")
				require.NoError(t, rt.Close(ctx))
				require.Nil(t, s.Peek())
			})
		})
	}
	require.Nil(t, pawl.Scope[state]{}.Peek(), "a zero scope has none")
}

// Via among the defaults of a Local is refused by its verbs, as it is by every verb that it is given to.
func TestViaOfALocal(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(t.Context())
	local := pawl.NewLocal(rt, pawl.Via(memory.New()))
	defer local.Close()
	var wrong *pawl.ArgumentError
	_, err = pawl.Sequencer[struct{ N int }](local, "1").IncState(t.Context(), "N", 1)
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, "Via", wrong.Argument)
}
