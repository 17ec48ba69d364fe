package drain_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/drain"
)

func TestCloseWaitsForRemaining(t *testing.T) {
	var g drain.Group[string]
	require.True(t, g.Begin("a"))
	require.True(t, g.Begin("b"))
	drained := g.Close()
	require.NotNil(t, drained)
	require.False(t, g.Begin("c"))
	g.Continue("d")
	require.ElementsMatch(t, []string{"a", "b", "d"}, g.Live())
	g.End("a")
	g.End("b")
	select {
	case <-drained:
		t.Fatal("drained while d is live")
	default:
	}
	g.End("d")
	g.End("d")
	<-drained
	require.Nil(t, g.Close())
}

func Example() {
	var g drain.Group[int]
	fmt.Println(g.Begin(1))
	drained := g.Close()
	fmt.Println(g.Begin(2))
	g.End(1)
	<-drained
	fmt.Println("drained")
	// Output:
	// true
	// false
	// drained
}
