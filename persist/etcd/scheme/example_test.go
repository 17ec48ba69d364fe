package scheme_test

import (
	"fmt"

	"github.com/pawl-go/pawl/persist/etcd/scheme"
	"github.com/pawl-go/pawl/persist/open"
)

// A program that takes the location of its store from a flag adds the scheme to those of Pawl.
func Example() {
	schemes := open.Standard()
	scheme.Add(schemes)
	fmt.Println(schemes.Check("etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/chat"))
	// Output: <nil>
}
