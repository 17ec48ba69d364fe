package notify_test

import (
	"fmt"

	"github.com/pawl-go/pawl/internal/notify"
)

// A watcher joins, reads, and reads again whenever it is woken.
func Example() {
	group := notify.NewGroup()
	changed := notify.NewSignal()
	over := group.Join(changed)
	defer group.Leave(changed)

	group.Notify() // a writer has committed
	<-changed
	fmt.Println("look again")

	group.Close()
	<-over
	fmt.Println("no more")
	// Output:
	// look again
	// no more
}
