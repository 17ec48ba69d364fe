package registry_test

import (
	"fmt"

	"github.com/pawl-go/pawl/internal/registry"
	"github.com/pawl-go/pawl/persist"
)

// counter is a container of an in-memory count, used by one goroutine.
type counter struct {
	place registry.Place[*counter]
	n     int
}

func newCounter() (*counter, *registry.Place[*counter]) {
	c := &counter{}
	return c, &c.place
}

// Handles on one key share a container. A container with state is pinned, so it outlives its
// handles.
func Example() {
	counters := registry.New[*counter](registry.DefaultShards)
	visits := persist.Key{Kind: "counter", ID: "visits"}

	first, _ := counters.Find(visits, newCounter)
	first.n++
	first.place.Pin()

	second, _ := counters.Find(visits, newCounter)
	second.n++
	fmt.Println(first.n, second == first)

	fmt.Println(len(counters.Close()), "alive at the end")
	_, open := counters.Find(visits, newCounter)
	fmt.Println("open:", open)
	// Output:
	// 2 true
	// 1 alive at the end
	// open: false
}
